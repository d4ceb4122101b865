"""A score that remembers the value of each test image, for intervals and paired tests."""

from __future__ import annotations

import numpy as np


class Score(float):
    """The mean of `each`.

    each: (N,) float32, one value per test image: 0 or 1 for accuracy, average precision for retrieval. For the mean
        over classes the values are weighted so that their mean is the score.
    """

    each: np.ndarray

    def __new__(cls, each: np.ndarray) -> Score:
        """Build the score of N values."""
        score = super().__new__(cls, np.asarray(each, np.float64).mean())
        score.each = np.asarray(each, np.float32)
        return score


def accuracy(right: np.ndarray, labels: np.ndarray, metric: str) -> Score:
    """Return the share of right answers, over images (top1) or as the mean over classes (mean_per_class).

    Args:
        right: (N,) bool.
        labels: (N,) int64.
        metric: "top1" or "mean_per_class".
    """
    if metric != "mean_per_class":
        return Score(right)
    _, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return Score(right * (len(labels) / (len(counts) * counts[place])))
