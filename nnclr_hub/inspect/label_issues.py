"""Labels that are probably wrong: confident learning (Northcutt et al., JAIR 2021) on out-of-fold probabilities.

A label is an issue if the row is confidently another class: its probability of that class is at least the mean
probability which rows of that class have of it. The ranking is by self-confidence, the probability of the given label.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnclr_hub.errors import InvalidRequest


@dataclass(frozen=True)
class Suspects:
    """How suspicious each label is.

    score: (N,) float32 in [0, 1]; 1 minus the probability of the given label.
    proposed: (N,) int64, the most probable other class.
    issue: (N,) bool, whether the row is confidently another class.
    """

    score: np.ndarray
    proposed: np.ndarray
    issue: np.ndarray

    @property
    def order(self) -> np.ndarray:
        """Positions, the most suspicious first."""
        return np.argsort(-self.score, kind="stable")


def suspect_labels(probabilities: np.ndarray, labels: np.ndarray) -> Suspects:
    """Score the labels of N rows.

    Args:
        probabilities: (N, C) float, of classifiers that have not seen the row; see `probe.cross_validation`.
        labels: (N,) int64, 0 ... C - 1.

    Raises:
        InvalidRequest: shapes that do not fit, or labels out of range.
    """
    labels = np.asarray(labels, np.int64)
    if probabilities.ndim != 2 or len(probabilities) != len(labels) or probabilities.shape[1] < 2:
        raise InvalidRequest(
            f"Expected (N, C) probabilities for N labels, got {probabilities.shape} for {len(labels)}."
        )
    count, classes = probabilities.shape
    if count and not 0 <= labels.min() <= labels.max() < classes:
        raise InvalidRequest(f"Labels must be between 0 and {classes - 1}.")
    rows = np.arange(count)
    own = probabilities[rows, labels]
    thresholds = np.full(classes, np.inf)
    for one in np.unique(labels):
        thresholds[one] = own[labels == one].mean()
    confident = probabilities >= thresholds
    # the confident class of a row is the most probable of those that it reaches
    chosen = np.where(confident, probabilities, -1.0)
    issue = confident.any(axis=1) & (chosen.argmax(axis=1) != labels)
    others = probabilities.copy()
    others[rows, labels] = -1
    return Suspects((1 - own).astype(np.float32), others.argmax(axis=1), issue)
