"""Metrics against scikit-learn, literal loops, and an example worked by hand."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, balanced_accuracy_score, top_k_accuracy_score

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.metrics import (
    average_precision_11,
    mean_average_precision_11,
    mean_per_class,
    retrieval,
    top_k_accuracy,
)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k_is_scikit_learns(k):
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(200, 7)), rng.integers(0, 7, 200)
    assert top_k_accuracy(scores, labels, k) == pytest.approx(
        top_k_accuracy_score(labels, scores, k=k, labels=range(7))
    )
    assert top_k_accuracy(scores, labels, 100) == 1


def test_mean_per_class_is_balanced_accuracy():
    rng = np.random.default_rng(0)
    labels = rng.choice(5, 300, p=[0.6, 0.2, 0.1, 0.06, 0.04])
    predicted = np.where(rng.random(300) < 0.5, labels, 0)
    assert mean_per_class(predicted, labels) == pytest.approx(balanced_accuracy_score(labels, predicted))


def test_eleven_points_by_hand():
    """Ranked right, wrong, right, wrong, wrong, right: recalls 1/3, 2/3, 1 at precisions 1, 2/3, 1/2.

    The levels 0 to 0.3 have a best precision of 1, 0.4 to 0.6 of 2/3, and 0.7 to 1 of 1/2.
    """
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    relevant = np.array([True, False, True, False, False, True])
    assert average_precision_11(scores, relevant) == pytest.approx((4 * 1 + 3 * 2 / 3 + 4 * 1 / 2) / 11)


def test_a_recall_that_meets_a_level_counts_for_it():
    """3 of 10 found is a recall of 0.3, whatever the last binary digit says."""
    relevant = np.array([True] * 3 + [False] * 20 + [True] * 7)
    scores = -np.arange(30.0)
    assert average_precision_11(scores, relevant) == pytest.approx((4 * 1 + 7 * 10 / 30) / 11)


def test_the_mean_over_classes_leaves_out_what_does_not_count():
    scores = np.array([[0.9, 0.1], [0.8, 0.9], [0.1, 0.8]])
    relevant = np.array([[False, True], [True, False], [False, True]])
    counts = np.array([[False, True], [True, True], [True, True]])
    want = (1.0 + average_precision_11(scores[:, 1], relevant[:, 1])) / 2
    assert mean_average_precision_11(scores, relevant, counts) == pytest.approx(want)
    with pytest.raises(InvalidRequest):
        mean_average_precision_11(scores, np.zeros((3, 2), bool))


def test_retrieval_is_a_ranking_of_all_the_others():
    """Recall and average precision by loops, with scikit-learn's for the latter; the query itself left out."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(60, 5)), rng.integers(0, 6, 60)
    got = retrieval(x, labels, ks=(1, 4))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    hits, precisions = {1: 0, 4: 0}, []
    for i in range(60):
        others = np.array([j for j in range(60) if j != i])
        similarity = unit[others] @ unit[i]
        right = labels[others] == labels[i]
        for k in hits:
            hits[k] += right[np.argsort(-similarity)[:k]].any()
        precisions.append(average_precision_score(right, similarity))
    assert got.queries == 60
    assert got.recall == pytest.approx({k: n / 60 for k, n in hits.items()})
    assert got.average_precision.mean() == pytest.approx(np.mean(precisions), abs=1e-5)


def test_queries_without_a_right_one_in_the_gallery_are_left_out_and_counted():
    queries, gallery = np.eye(3), np.eye(3)[[0, 1]]
    got = retrieval(queries, np.array([0, 1, 2]), gallery, np.array([0, 1]), ks=(1,))
    assert (got.queries, got.recall[1], got.average_precision.mean()) == (2, 1.0, 1.0)
    with pytest.raises(InvalidRequest):
        retrieval(queries, np.array([7, 8, 9]), gallery, np.array([0, 1]))
    with pytest.raises(InvalidRequest):
        retrieval(queries, np.array([0, 1]))
