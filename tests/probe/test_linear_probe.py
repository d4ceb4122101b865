"""The linear probe against scikit-learn's logistic regression; its options, files and errors."""

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from nnclr_hub import LinearProbe, fit_linear_probe
from nnclr_hub.errors import FingerprintMismatch, InvalidRequest
from nnclr_hub.probe import logistic


@pytest.fixture
def clouds():
    """Three overlapping clouds: (300, 5) features and their labels."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 100)
    return rng.normal(size=(300, 5)).astype(np.float32) + labels[:, None] * 0.7, labels


@pytest.mark.parametrize("l2", [1e-3, 1e-1])
def test_it_is_scikit_learns_logistic_regression(clouds, l2):
    features, labels = clouds
    ours = fit_linear_probe(features, labels, l2=l2)
    theirs = LogisticRegression(C=1 / (l2 * len(labels)), tol=1e-8, max_iter=5000).fit(features, labels)
    np.testing.assert_allclose(ours.predict(features).probabilities, theirs.predict_proba(features), atol=2e-3)
    assert ours.predict(features).labels == theirs.predict(features).tolist()


def test_labels_come_back_as_they_were_given(clouds):
    features, labels = clouds
    names = np.array(["cat", "dog", "eel"])[labels].tolist()
    probe = fit_linear_probe(features, names)
    assert probe.classes == ("cat", "dog", "eel")
    assert set(probe.predict(features).labels) <= {"cat", "dog", "eel"}
    np.testing.assert_allclose(probe.predict(features).probabilities.sum(axis=1), 1, atol=1e-5)


def test_the_penalty_is_chosen_by_held_out_accuracy():
    """Twenty useful rows among two hundred useless dimensions want a strong penalty, clean rows a weak one."""
    rng = np.random.default_rng(0)
    noisy = rng.normal(size=(40, 200)).astype(np.float32)
    labels = rng.integers(0, 2, 40)
    noisy[:, 0] += labels
    clean = np.eye(4, dtype=np.float32)[np.arange(200) % 4] + 0.01 * rng.normal(size=(200, 4)).astype(np.float32)
    probe = fit_linear_probe(clean, np.arange(200) % 4)
    assert probe.predict(clean).labels == (np.arange(200) % 4).tolist()
    assert fit_linear_probe(noisy, labels).l2 >= 1e-7


@pytest.fixture
def probe():
    rng = np.random.default_rng(0)
    labels = np.repeat(["cat", "dog"], 50)
    features = rng.normal(size=(100, 6)).astype(np.float32)
    features[:, 0] += np.where(labels == "cat", 2, -2)
    return fit_linear_probe(features, labels, l2=0.01, threshold=0.9, fingerprint="abc")


def test_below_the_threshold_the_answer_is_none(probe):
    sure, unsure = np.array([[4, 0, 0, 0, 0, 0], [0.02, 0, 0, 0, 0, 0]], np.float32)
    assert probe.predict(np.stack([sure, unsure])).labels == ["cat", None]


def test_features_of_another_encoder_are_refused(probe):
    with pytest.raises(FingerprintMismatch):
        probe.predict(np.zeros((1, 6)), fingerprint="xyz")
    assert probe.predict(np.zeros((1, 6)), fingerprint="abc").labels == [None]


def test_saved_and_loaded_it_is_the_same(probe, tmp_path):
    again = LinearProbe.load(probe.save(tmp_path / "probe"))
    np.testing.assert_array_equal(again.weight, probe.weight)
    assert (again.classes, again.threshold, again.fingerprint) == (("cat", "dog"), 0.9, "abc")


def test_a_folder_without_a_probe_or_with_a_damaged_one_is_explained(probe, tmp_path):
    with pytest.raises(InvalidRequest):
        LinearProbe.load(tmp_path)
    folder = probe.save(tmp_path / "probe")
    (folder / "probe.safetensors").write_bytes(b"short")
    with pytest.raises(InvalidRequest):
        LinearProbe.load(folder)
    folder = probe.save(tmp_path / "other")
    about = json.loads((folder / "probe.json").read_text())
    (folder / "probe.json").write_text(json.dumps({**about, "classes": ["cat"]}))
    with pytest.raises(InvalidRequest):
        LinearProbe.load(folder)


def test_held_out_rows_choose_and_then_join():
    """With features that only a strong penalty tames, the choice is the strong one."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 100)).astype(np.float32), np.arange(60) % 2
    x[:, 0] += 2 * y
    val_x, val_y = rng.normal(size=(200, 100)).astype(np.float32), np.arange(200) % 2
    val_x[:, 0] += 2 * val_y
    probe = fit_linear_probe(x, y, validation=(val_x, val_y))
    assert probe.l2 >= 0.1
    joined = fit_linear_probe(np.concatenate([x, val_x]), np.concatenate([y, val_y]), l2=probe.l2)
    np.testing.assert_allclose(probe.weight, joined.weight, atol=1e-3)


def test_labels_that_cannot_be_fitted_are_named():
    x = np.eye(4, dtype=np.float32)
    with pytest.raises(InvalidRequest, match="eel"):
        fit_linear_probe(x, ["cat", "dog"] * 2, validation=(x[:1], ["eel"]))
    for labels in (["a", "b", "c", "d"], [0] * 4, ["cat", "dog", "cat"]):
        with pytest.raises(InvalidRequest):
            fit_linear_probe(x, labels)
    with pytest.raises(InvalidRequest):
        fit_linear_probe(x, ["cat", "dog"] * 2, l2=0.1).predict(np.zeros((2, 3)))
    x[2, 1] = np.nan
    with pytest.raises(InvalidRequest):
        fit_linear_probe(x, ["cat", "dog"] * 2)


def test_a_rare_label_does_not_stop_the_choice_of_the_penalty():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 6)).astype(np.float32), np.zeros((40, 2), np.float32)
    y[::2, 0], y[7, 1] = 1, 1
    for seed in range(6):  # the single one of the second label is held out in some of them, in others not
        assert fit_linear_probe(x, y, classes=["often", "once"], seed=seed).classes == ("often", "once")


@pytest.mark.parametrize(
    "options",
    [
        {"class_weight": "balance"},
        {"metric": "map11"},
        {"l2": -1.0},
        {"sweep": []},
    ],
)
def test_options_without_a_meaning_are_refused(options):
    with pytest.raises(InvalidRequest):
        fit_linear_probe(np.eye(6, dtype=np.float32), [0, 1] * 3, **options)


def test_rows_are_fitted_to_without_a_copy_of_them(monkeypatch):
    """Neither the split nor the refit makes one: every row that is looked at is a piece."""
    monkeypatch.setattr(logistic, "PIECE", 64)
    monkeypatch.setattr(logistic, "MAX_ROTATED", 0)
    seen, cat = [], torch.cat
    monkeypatch.setattr(
        torch, "cat", lambda parts, *a, **k: (seen.extend(p.numel() for p in parts), cat(parts, *a, **k))[1]
    )
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = (rng.normal(size=(200, 16)) + y[:, None]).astype(np.float16)
    probe = fit_linear_probe(x, y, sweep=[1e-3, 1e-1], validation=(x[:50], y[:50]))
    assert max(seen) < x.size
    want = fit_linear_probe(np.concatenate([x, x[:50]]), np.concatenate([y, y[:50]]), l2=probe.l2)
    np.testing.assert_allclose(probe.weight, want.weight, atol=1e-3)


def test_of_penalties_with_equal_scores_the_one_with_the_best_probabilities_is_chosen():
    """Far apart, every penalty of the sweep scores 1; the strongest would leave all classes nearly as probable."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 30)
    probe = fit_linear_probe(np.eye(3, 8)[labels] + rng.normal(0, 0.05, (90, 8)), labels)
    assert probe.predict(np.eye(3, 8)).probabilities.max(axis=1).min() > 0.95


def test_rows_far_from_the_fit_belong_to_none_of_the_classes(tmp_path):
    random = np.random.default_rng(0)
    centers = random.normal(size=(3, 8)) * 3
    # thin along one axis: far in that direction is near in Euclidean distance
    spread = np.array([1, 1, 1, 1, 1, 1, 1, 0.05])
    labels = np.repeat(np.arange(3), 200)
    rows = (centers[labels] + random.normal(size=(600, 8)) * spread).astype(np.float32)
    probe = fit_linear_probe(rows, labels, l2=1e-3, reject_far=0.05)
    more = (centers[labels] + random.normal(size=(600, 8)) * spread).astype(np.float32)
    inside = [label is not None for label in probe.predict(more).labels]
    assert 0.9 < np.mean(inside) < 0.99
    off = more + np.array([0, 0, 0, 0, 0, 0, 0, 1], np.float32)
    assert probe.predict(off).labels == [None] * 600
    covariance = np.cov((rows - np.stack([rows[labels == k].mean(axis=0) for k in range(3)])[labels]).T, bias=True)
    means = np.stack([rows[labels == k].mean(axis=0) for k in range(3)])
    weight = 8 / 608
    shrunk = (1 - weight) * covariance + weight * np.eye(8) * np.trace(covariance) / 8
    expected = [min((x - m) @ np.linalg.solve(shrunk, x - m) for m in means) for x in more[:20]]
    np.testing.assert_allclose(probe.region.distances(more[:20]), expected, rtol=1e-3)
    again = LinearProbe.load(probe.save(tmp_path / "probe"))
    assert again.predict(off).labels == [None] * 600
    assert again.predict(more).labels == probe.predict(more).labels
    assert None not in fit_linear_probe(rows, labels, l2=1e-3).predict(off).labels
    targets = np.eye(3, dtype=np.float32)[labels]
    several = fit_linear_probe(rows, targets, classes=[0, 1, 2], l2=1e-3, reject_far=0.05)
    assert set(several.predict(off + 50).labels) == {()}
    for share in (0, 1, -0.1):
        with pytest.raises(InvalidRequest):
            fit_linear_probe(rows, labels, l2=1e-3, reject_far=share)


def test_two_rows_of_each_class_are_enough_to_reject_far_rows():
    """A class must not lose both to the measurement of the limit."""
    random = np.random.default_rng(0)
    centers = random.normal(size=(40, 16)) * 10
    labels = np.repeat(np.arange(40), 2)
    rows = (centers[labels] + random.normal(size=(80, 16)) * 0.1).astype(np.float32)
    probe = fit_linear_probe(rows, labels, l2=1e-3, reject_far=0.1)
    others = random.normal(size=(200, 16)).astype(np.float32) * 10
    assert np.mean([label is None for label in probe.predict(others).labels]) > 0.95


def test_labels_may_be_numbers_of_numpy_and_views_of_a_dict(clouds):
    x, y = clouds[:2]
    flags = y == y[0]
    probe = fit_linear_probe(x, list(flags), l2=1e-3)
    assert probe.classes == (False, True)
    named = dict(enumerate(np.where(flags, "yes", "no").tolist()))
    assert fit_linear_probe(x, named.values(), l2=1e-3).classes == ("no", "yes")
    with pytest.raises(InvalidRequest, match="need classes"):
        fit_linear_probe(x, np.stack([flags, ~flags], axis=1), l2=1e-3)
