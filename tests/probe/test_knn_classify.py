"""Weighted k-NN equals scikit-learn's with the same weights."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.knn import knn_classify


@pytest.mark.parametrize("k", [1, 5, 20])
def test_equals_scikit_learn(k):
    rng = np.random.default_rng(0)
    train, test = rng.normal(size=(300, 16)), rng.normal(size=(80, 16))
    labels = rng.integers(0, 7, 300)
    reference = KNeighborsClassifier(k, weights=lambda d: np.exp((1 - d) / 0.07), metric="cosine", algorithm="brute")
    want = reference.fit(train, labels).predict(test)
    assert (knn_classify(train, labels, test, k=k, temperature=0.07) == want).all()


def test_a_k_above_the_size_of_the_training_set_uses_all_of_it():
    assert knn_classify(np.eye(2), np.array([0, 1]), np.eye(2), k=50).tolist() == [0, 1]


def test_no_queries_give_no_classes():
    assert knn_classify(np.eye(2), np.array([0, 1]), np.zeros((0, 2))).shape == (0,)


def test_lengths_that_do_not_match_are_refused():
    with pytest.raises(InvalidRequest):
        knn_classify(np.eye(3), np.array([0, 1]), np.eye(3))


@pytest.mark.filterwarnings("ignore")
def test_it_equals_lightly_if_installed():
    """Their weights are the same, exp(similarity / T); k and T given alike."""
    theirs = pytest.importorskip("lightly.utils.benchmarking")
    rng = np.random.default_rng(0)
    bank = rng.normal(size=(500, 16)).astype(np.float32)
    bank /= np.linalg.norm(bank, axis=1, keepdims=True)
    labels, queries = rng.integers(0, 9, 500), bank[:200] + 0.5 * rng.normal(size=(200, 16)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    said = theirs.knn_predict(
        torch.from_numpy(queries),
        torch.from_numpy(bank).T,
        torch.from_numpy(labels),
        num_classes=9,
        knn_k=20,
        knn_t=0.1,
    )
    assert np.array_equal(knn_classify(bank, labels, queries, k=20, temperature=0.1), said[:, 0].numpy())


def test_small_temperatures_let_the_nearest_decide_without_overflow():
    rng = np.random.default_rng(0)
    bank, queries = rng.normal(size=(300, 16)), rng.normal(size=(80, 16))
    labels = rng.integers(0, 7, 300)
    nearest = knn_classify(bank, labels, queries, k=1)
    np.testing.assert_array_equal(knn_classify(bank, labels, queries, k=20, temperature=1e-4), nearest)


def test_values_that_invalidate_the_average_are_refused():
    rows, labels = np.eye(4), np.arange(4)
    broken = rows.copy()
    broken[2, 1] = np.nan
    with pytest.raises(InvalidRequest):
        knn_classify(broken, labels, rows)
    with pytest.raises(InvalidRequest):
        knn_classify(rows, labels, broken)
    for options in ({"k": 0}, {"temperature": 0.0}):
        with pytest.raises(InvalidRequest):
            knn_classify(rows, labels, rows, **options)


NAN = float("nan")


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (["a", NAN], r"1 of 2 labels are missing \(None, NaN or blank\); leave out these rows\."),
        (["a", None], "1 of 2 labels are missing"),
        (np.array([0, NAN]), "1 of 2 labels are missing"),
        (["a", 1], r"Labels must be all names or all numbers, got \['a', 1\]\."),
        ([[1, 0], [0, 1]], r"A label must be a name or a number, got \[1, 0\]\."),
    ],
    ids=["nan", "none", "nan_number", "mixed", "nested"],
)
def test_missing_and_mixed_labels_are_refused(labels, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        knn_classify(np.eye(2), labels, np.eye(2))


def test_labels_keep_their_dtype():
    found = [
        knn_classify(np.eye(2), labels, np.eye(2))
        for labels in (np.array([3, 5], np.int32), {1: "a", 2: "b"}.values(), [np.True_, np.False_])
    ]
    assert [one.dtype.str for one in found] == ["<i4", "<U1", "|b1"]
    assert [one.tolist() for one in found] == [[3, 5], ["a", "b"], [True, False]]
