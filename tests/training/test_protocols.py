"""Protocols on features, compared with scikit-learn; their names and settings."""

from contextlib import nullcontext

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.neighbors import KNeighborsClassifier

from nnclr_hub.errors import InvalidRequest, UnknownSetting
from nnclr_hub.store.vector_transform import VectorTransform
from training.evals.evaluate import PROTOCOLS, find_protocols, settings_of
from training.evals.features import Features, PartFeatures, accuracy
from training.evals.frozen import PENALTIES, few_shot, knn, linear, quick_linear, retrieval


@pytest.fixture
def features():
    """Eight clouds of unequal size in 24 dimensions, not normalized."""
    rng = np.random.default_rng(0)

    def part(n):
        y = rng.choice(8, n, p=np.arange(1, 9) / 36)
        return PartFeatures((3 * rng.normal(size=(n, 24)) + 4 * np.eye(24)[y]).astype(np.float32), y)

    names = tuple("abcdefgh")
    return Features("clouds", names, part(400), part(300), part(200))


def test_linear_is_the_best_penalty_on_val_refitted_on_both(features):
    found = dict(linear(features))
    x, y = features.train.raw, features.train.labels
    val, test = features.val, features.test
    scores = {}
    for penalty in PENALTIES[::2]:  # scikit-learn's C is the inverse of the penalty of the sum
        fitted = LogisticRegression(C=1 / penalty, max_iter=3000, tol=1e-6).fit(x, y)
        scores[penalty] = fitted.score(val.raw, val.labels)
    best = max(scores, key=lambda penalty: (scores[penalty], penalty))
    assert max(scores.values()) - scores[best] == 0
    chosen = found["linear/clouds/l2"] * len(x)
    assert np.isclose(PENALTIES, chosen).any()
    final = LogisticRegression(C=len(x) / (chosen * (len(x) + len(val.raw))), max_iter=5000, tol=1e-7)
    final.fit(np.concatenate([x, val.raw]), np.concatenate([y, val.labels]))
    assert found["linear/clouds"] == pytest.approx(final.score(test.raw, test.labels), abs=0.007)
    assert found["linear/clouds/top5"] > found["linear/clouds"]
    at_choice = LogisticRegression(C=1 / chosen, max_iter=3000, tol=1e-6).fit(x, y).score(val.raw, val.labels)
    assert at_choice >= max(scores.values()) - 0.01


def test_knn_with_a_huge_temperature_is_scikit_learns_majority(features):
    unit = [part.unit() for part in (features.train, features.test)]
    theirs = KNeighborsClassifier(15, metric="cosine").fit(unit[0], features.train.labels)
    ours = dict(knn(features, k=15, temperature=1e6))
    assert ours["knn15_T1e+06/clouds"] == pytest.approx(theirs.score(unit[1], features.test.labels), abs=0.02)


def test_the_quick_linear_score_has_a_fixed_penalty_on_unit_rows(features):
    """Shuffled labels need a strong penalty, which a sweep would choose."""
    test = features.test
    shuffled = PartFeatures(features.train.raw, np.random.default_rng(0).permutation(features.train.labels))
    for train in (features.train, shuffled):
        fitted = LogisticRegression(C=1 / (1e-4 * len(train.raw)), max_iter=3000).fit(train.unit(), train.labels)
        [(_, found)] = quick_linear(Features("clouds", features.classes, train, test))
        assert found == pytest.approx(fitted.score(test.unit(), test.labels), abs=0.007)


@pytest.mark.parametrize("kind", ["center", "half_whiten", "whiten"])
def test_vectors_are_transformed_as_fitted_on_the_training_images(kind, features):
    transform = VectorTransform.fit(features.train.raw, kind)
    parts = (PartFeatures(transform(part.raw), part.labels) for part in (features.train, features.test))
    given = Features("clouds", features.classes, *parts)
    for protocol, names in ((knn, "knn20"), (retrieval, "retrieval")):
        found, want = dict(protocol(features, vectors=kind)), dict(protocol(given))
        assert list(found.values()) == list(want.values()) != list(dict(protocol(features)).values())
        assert next(iter(want)) == f"{names}/clouds"
    assert f"knn20_{kind}/clouds" in dict(knn(features, vectors=kind))


def test_a_mean_over_classes_is_scikit_learns(features):
    labels = features.test.labels
    predicted = np.where(np.arange(len(labels)) % 3 == 0, 0, labels)
    for metric, want in (("mean_per_class", balanced_accuracy_score(labels, predicted)), ("top1", None)):
        score = accuracy(predicted == labels, labels, metric)
        assert score == pytest.approx((predicted == labels).mean() if want is None else want)
        assert score.each.mean() == pytest.approx(score)
    balanced, plain = (
        dict(
            few_shot(Features("x", features.classes, features.train, features.test, None, metric), shots=(5,), seeds=2)
        )
        for metric in ("mean_per_class", "top1")
    )
    assert balanced["few_shot/x/5"] != plain["few_shot/x/5"]


def test_the_metric_of_the_set_is_what_is_reported(features):
    balanced = Features(
        *(features.name, features.classes, features.train, features.test, features.val), "mean_per_class"
    )
    for protocol in (knn, linear):
        one, other = (next(protocol(f))[1] for f in (features, balanced))
        assert one != other
    top = dict(linear(balanced))
    assert 0 < top["linear/clouds"] < top["linear/clouds/top5"] <= 1


def test_only_linear_accepts_several_labels(features):
    def several(part):
        return PartFeatures(part.raw, np.eye(8, dtype=np.float32)[part.labels])

    many = Features("many", features.classes, several(features.train), several(features.test), None, "map11")
    assert 0.3 < dict(linear(many))["linear/many"] <= 1
    for protocol in (knn, few_shot, retrieval):
        with pytest.raises(InvalidRequest, match="several"):
            list(protocol(many))


def test_retrieval_counts_right_neighbors(features):
    found = dict(retrieval(features))
    gallery, queries = features.train, features.test
    order = np.argsort(-(queries.unit() @ gallery.unit().T), axis=1, kind="stable")
    right = gallery.labels[order] == queries.labels[:, None]
    assert found["retrieval/clouds/recall@1"] == pytest.approx(right[:, 0].mean(), abs=0.004)
    assert found["retrieval/clouds/recall@5"] == pytest.approx(right[:, :5].any(axis=1).mean(), abs=0.004)
    itself = Features("alone", features.classes, gallery, gallery)
    assert dict(retrieval(itself))["retrieval/alone/recall@1"] < 1, "an image does not find itself"


def test_curves_and_the_quick_form_yield_their_names(features):
    assert list(dict(few_shot(features, shots=(1, 5), seeds=2))) == [
        *("few_shot/clouds/1", "few_shot/clouds/1/std", "few_shot/clouds/5", "few_shot/clouds/5/std")
    ]
    assert [name for name, _ in quick_linear(features)] == ["linear/clouds"]


def test_settings_go_to_the_protocols_that_have_them():
    one, two = find_protocols(["knn", "few_shot"], ["k=200", "temperature=0.1", "shots=1,3"])
    assert (one.name, one.settings) == ("knn", {"k": 200, "temperature": 0.1, "vectors": "raw"})
    assert two.settings["shots"] == (1, 3)
    tuned, swept = find_protocols(["finetune", "semi_supervised"], ["epochs=2"])
    assert (tuned.settings["epochs"], swept.settings["epochs"]) == (2, (2,)), "each by its type"
    for name, wrong in (
        *(("knn", setting) for setting in ("k=0", "k=-1", "temperature=0", "temperature=nan")),
        *(("finetune", setting) for setting in ("seed=99999999999", "image_size=1", "batch_size=0", "drop_path=-1")),
    ):
        with pytest.raises(UnknownSetting, match="must"):
            find_protocols([name], [wrong])
    with pytest.raises(UnknownSetting, match="'lars'"):
        find_protocols(["linear_images"], ["optimizer=larz"])
    with pytest.raises(UnknownSetting, match="temperature"):
        find_protocols(["knn"], ["temprature=1"])
    with pytest.raises(InvalidRequest, match="'linear'"):
        find_protocols(["liner"], [])
    for name, setting, fits in (
        *(("finetune", f"image_size={size}", size in (0, 8, 2048)) for size in (0, 7, 8, 2048, 2049)),
        *(("few_shot", f"shots={shots}", shots == "2,1") for shots in ("2,1", "2,0")),
        *(("finetune", f"lr={lr}", lr == "0") for lr in ("0", "inf")),
    ):
        with nullcontext() if fits else pytest.raises(UnknownSetting):
            assert find_protocols([name], [setting])
    assert all(settings_of(name) is not None for name in PROTOCOLS)


def test_a_protocol_runs_with_its_settings(features):
    [found] = find_protocols(["knn"], ["k=3", "temperature=0.5"])
    assert dict(found.run(features)) == dict(knn(features, k=3, temperature=0.5)) != dict(knn(features))
