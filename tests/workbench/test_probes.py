"""Probes of a collection's labels, kept in its store: which items count, what is refused, and how well they do."""

import numpy as np
import pytest
from labeling import fit_probe

from nnclr_hub.encoder.preprocessing import unit_rows
from nnclr_hub.errors import (
    FingerprintMismatch,
    InvalidFilter,
    InvalidRequest,
    ItemNotFound,
    ProbeExists,
    ProbeNotFound,
    StoreReadOnly,
)
from nnclr_hub.probe.linear import fit_linear_probe
from nnclr_hub.probe.metrics import average_precision_11
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.labels import LabeledVectors, label_of, labeled_items
from nnclr_hub.workbench.probes import FitOptions, few_shot_scores, fit_and_score, get_probe, list_probes

QUICK = FitOptions(l2=0.01)  # a given penalty needs no search
CENTERS = 2 * np.eye(3, 8)


def rows(n: int, seed: int = 0, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """(3 n, 8) vectors around three centers, and which."""
    rng = np.random.default_rng(seed)
    which = np.repeat(np.arange(3), n)
    return (CENTERS[which] + rng.normal(0, noise, (3 * n, 8))).astype(np.float32), which


@pytest.fixture
def bench(request, tmp_path):
    """A store with 90 labeled items; its metric is cosine unless a test chooses another."""
    vectors, which = rows(30)
    with open_store(str(tmp_path / "store")) as store:
        spec = CollectionSpec(8, metric=getattr(request, "param", "cosine"), fingerprint="f", model="m")
        items = [
            Item(f"{i:03}", row, {"label": "xyz"[c], "n": int(c), "half": bool(c), "f": i / 7})
            for i, (row, c) in enumerate(zip(vectors, which, strict=True))
        ]
        store.create("points", spec).upsert(items)
        yield Workbench(None, store)  # type: ignore[arg-type]


@pytest.mark.parametrize("bench", ["cosine", "l2"], indirect=True)
def test_a_probe_is_fitted_on_unit_rows_for_every_metric(bench):
    vectors, which = rows(30)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = fit_linear_probe(unit, ["xyz"[c] for c in which])
    steps: list[tuple[int, int]] = []
    kept = fit_probe(bench, "p", "points", "label", progress=lambda done, total: steps.append((done, total)))
    np.testing.assert_allclose(kept.probe.weight, expected.weight, atol=1e-4)
    assert (kept.probe.l2, kept.probe.classes) == (expected.l2, expected.classes)
    assert (kept.probe.fingerprint, kept.probe.model) == ("f", "m")
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1]
    same = get_probe(bench.store.records, "p")
    np.testing.assert_array_equal(same.probe.weight, kept.probe.weight)
    assert same.about == kept.about
    said = bench.predict("p", vectors=vectors * 7, k=3)
    wanted = expected.predict(unit)
    assert [one.label for one in said] == wanted.labels
    np.testing.assert_allclose([one.top[0][1] for one in said], wanted.probabilities.max(axis=1), atol=1e-4)


def test_scores_are_measured_on_held_out_rows(bench):
    """Close to those on many fresh rows, and not those of the rows that were fitted."""
    vectors, which = rows(400, noise=1.5)
    collection = bench.store.create("more", CollectionSpec(8))
    collection.upsert(
        [Item(f"{i:04}", row, {"label": int(c)}) for i, (row, c) in enumerate(zip(vectors, which, strict=True))]
    )
    kept = fit_probe(bench, "p", "more", "label")
    fresh, truth = rows(3000, seed=1, noise=1.5)
    right = np.array([one.label for one in bench.predict("p", vectors=fresh)]) == truth
    assert kept.about["held_out"] == 240
    assert kept.about["scores"]["top1"] == pytest.approx(right.mean(), abs=0.07)
    for c, row in enumerate(kept.about["per_class"]):
        assert (row["label"], row["rows"], row["held_out"]) == (c, 400, 80)
        assert row["score"] == pytest.approx(right[truth == c].mean(), abs=0.15)
    assert kept.about["scores"]["mean_per_class"] == pytest.approx(
        np.mean([row["score"] for row in kept.about["per_class"]])
    )


def test_too_few_rows_are_fitted_and_not_scored(bench):
    vectors, which = rows(2)
    collection = bench.store.create("few", CollectionSpec(8))
    collection.upsert([Item(str(i), row, {"label": int(which[i])}) for i, row in enumerate(vectors)])
    kept = fit_probe(bench, "few", "few", "label")
    assert (kept.about["rows"], kept.about["held_out"], kept.about["scores"]) == (6, 0, {})
    assert [row["score"] for row in kept.about["per_class"]] == [None] * 3


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        ("cat", ("cat",)),
        (3, (3,)),
        (3.0, (3,)),
        (True, ("true",)),
        (False, ("false",)),
        (["a", 1, "a", None, ""], ("a", 1)),
        ([], ()),
        (None, None),
        ("", None),
        (" \t", None),
        (float("nan"), None),
        ("NA", ("NA",)),
        (["a", float("nan"), " "], ("a",)),
    ],
)
def test_label_values_are_normalized(value, labels):
    assert label_of(value, "x") == labels


@pytest.mark.parametrize("value", [0.5, {"a": 1}, [["a"]], [{"a": 1}], float("inf")])
def test_invalid_labels_are_refused(value):
    with pytest.raises(InvalidRequest):
        label_of(value, "x")


def test_items_without_a_label_are_left_out_and_counted(bench):
    collection = bench.collection("points")
    vector = np.ones(8, np.float32)
    collection.upsert([Item("a", vector), Item("b", vector, {"label": None}), Item("c", vector, {"label": ""})])
    read = labeled_items(collection, "label")
    assert (len(read.labels), read.left_out, read.several) == (90, {"no label": 3}, False)
    assert np.linalg.norm(read.vectors, axis=1) == pytest.approx(np.ones(90))
    only = labeled_items(collection, "label", {"must": [{"key": "label", "in": ["x", "y"]}]})
    assert (len(only.labels), only.left_out, only.classes) == (60, {}, ("x", "y"))


def test_a_list_holds_several_labels(bench):
    collection = bench.store.create("tagged", CollectionSpec(8))
    vectors, which = rows(40, noise=0.5)
    tags = [[["a"], ["a", "b"], []][c] for c in which]
    tags[0] = "a"  # one alone need not be a list
    collection.upsert([Item(f"{i:03}", row, {"tags": tags[i]}) for i, row in enumerate(vectors)])
    kept = fit_probe(bench, "tags", "tagged", "tags")
    assert (kept.probe.several, kept.probe.classes, kept.about["left_out"]) == (True, ("a", "b"), {})
    assert [row["rows"] for row in kept.about["per_class"]] == [80, 40]
    assert kept.about["scores"]["map11"] == pytest.approx(
        np.mean([row["score"] for row in kept.about["per_class"]]), abs=1e-6
    )
    labels = [one.label for one in bench.predict("tags", vectors=vectors)]
    assert np.mean([set(label) == set(tag) for label, tag in zip(labels, tags, strict=True)]) > 0.9


def test_the_score_of_one_of_several_labels_is_its_average_precision(bench):
    vectors, which = rows(40)
    targets = np.stack([which < 2, which == 1], axis=1).astype(np.float32)
    names = [tuple(name for name, there in zip("ab", row, strict=True) if there) for row in targets]
    collection = bench.store.create("tagged", CollectionSpec(8))
    collection.upsert([Item(f"{i:03}", row, {"t": list(names[i])}) for i, row in enumerate(vectors)])
    read = labeled_items(collection, "t")
    fitted = fit_and_score(read, FitOptions(l2=0.01))
    held = np.zeros(120, bool)
    held[np.random.default_rng(0).permutation(120)[:24]] = True
    judged = fit_linear_probe(read.vectors[~held], targets[~held], classes=("a", "b"), l2=0.01)
    scores = judged.scores(read.vectors[held])
    for c, row in enumerate(fitted.classes):
        assert row["score"] == pytest.approx(average_precision_11(scores[:, c], targets[held, c] == 1))


@pytest.mark.parametrize(
    ("field", "where", "word"),
    [
        ("lable", None, "n, half, f"),
        ("label", {"must": [{"key": "label", "match": "x"}]}, "'x'"),
        ("label", {"must": [{"key": "label", "match": "none"}]}, "filter"),
        ("f", None, "0.14"),
    ],
)
def test_a_field_without_two_classes_is_refused(bench, field, where, word):
    with pytest.raises(InvalidRequest, match=word):
        fit_probe(bench, "p", "points", field, where=where)
    assert list_probes(bench.store.records) == []


def test_a_probe_that_rejects_far_rows_is_listed(bench):
    kept = fit_probe(bench, "p", "points", "label", options=FitOptions(reject_far=0.05))
    assert [(one.name, one.about) for one in list_probes(bench.store.records)] == [("p", kept.about)]


def test_an_empty_collection_and_a_wrong_filter_are_refused(bench):
    bench.store.create("empty", CollectionSpec(8))
    with pytest.raises(InvalidRequest):
        fit_probe(bench, "p", "empty", "label")
    for where in ({"maybe": []}, [], {"must": "x"}):
        with pytest.raises(InvalidFilter):
            fit_probe(bench, "p", "points", "label", where=where)


def test_a_fit_above_the_memory_limit_is_refused(bench, monkeypatch):
    monkeypatch.setattr("nnclr_hub.store.settings.default_index_memory", lambda: 8 * 8 * 89)
    with pytest.raises(InvalidRequest):
        fit_probe(bench, "p", "points", "label", options=QUICK)


def test_an_existing_name_is_refused_without_replace(bench):
    fit_probe(bench, "p", "points", "label", options=QUICK)
    with pytest.raises(ProbeExists):
        fit_probe(bench, "p", "points", "n", options=QUICK)
    kept = fit_probe(bench, "p", "points", "half", replace=True, options=QUICK)
    assert kept.probe.classes == ("false", "true")
    assert [(one.name, one.probe.classes) for one in list_probes(bench.store.records)] == [("p", ("false", "true"))]
    with pytest.raises(InvalidRequest):
        fit_probe(bench, "no name", "points", "label")


def test_items_are_labeled_by_their_ids(bench):
    fit_probe(bench, "p", "points", "label", options=FitOptions(l2=0.01, threshold=0.5))
    first, missing, last = bench.predict("p", collection="points", ids=["000", "nobody", "089"])
    assert (first.label, last.label) == ("x", "z")
    assert isinstance(missing, ItemNotFound)
    bench.store.create("other", CollectionSpec(8, fingerprint="another"))
    with pytest.raises(FingerprintMismatch):
        bench.predict("p", collection="other", ids=["a"])
    with pytest.raises(FingerprintMismatch):
        bench.predict("p", vectors=np.ones((1, 8)), fingerprint="another")
    with pytest.raises(InvalidRequest):
        bench.predict("p", vectors=np.ones((1, 9)))
    with pytest.raises(InvalidRequest):
        bench.predict("p", ids=["a"])
    with pytest.raises(ProbeNotFound):
        bench.predict("q", vectors=np.ones((1, 8)))


def test_a_read_only_store_predicts_but_does_not_fit(bench):
    fit_probe(bench, "p", "points", "label", options=QUICK)
    with open_store(str(bench.store.folder), read_only=True) as store:
        reader = Workbench(None, store)  # type: ignore[arg-type]
        assert reader.predict("p", vectors=np.ones((1, 8)))[0].label in "xyz"
        with pytest.raises(StoreReadOnly):
            fit_probe(reader, "q", "points", "label", options=QUICK)


def test_confusions_and_few_shot_scores_use_held_out_rows():
    vectors, which = rows(30, noise=0.8)
    labels = [("xyz"[c],) for c in which]
    read = LabeledVectors(unit_rows(vectors), labels, False, {})
    fitted = fit_and_score(read, FitOptions(), fingerprint="f", model="m")
    table = np.array(fitted.confusion)
    assert table.sum(axis=1).tolist() == [one["held_out"] for one in fitted.classes]
    np.testing.assert_allclose(np.diag(table) / table.sum(axis=1), [one["score"] for one in fitted.classes])
    assert np.trace(table) / table.sum() == pytest.approx(fitted.held_out.scores["top1"])
    curve = few_shot_scores(read)
    assert [one.per_class for one in curve] == [1, 2, 5, 10, 20]
    assert np.mean(curve[-1].accuracy) >= np.mean(curve[0].accuracy)
    few = LabeledVectors(read.vectors[[0, 1, 31, 32]], [("x",), ("x",), ("y",), ("y",)], False, {})
    without = fit_and_score(few, FitOptions(), fingerprint="f", model="m")
    assert (without.held_out, without.confusion, few_shot_scores(few)) == (None, None, ())
