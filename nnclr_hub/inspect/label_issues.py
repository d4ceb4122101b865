"""Labels that are probably wrong, by the probabilities of classifiers that have not seen the rows.

The ranking is by self-confidence, the probability of the given label, as in confident learning (Northcutt et al.,
JAIR 2021). Its thresholds flag every confident mistake of a classifier, which are mostly mistakes of a weak encoder.
So what is flagged is decided by a model of both: a label is the classifier's, or with a probability that is estimated,
another one at random (Bootkrajang and Kaban, ECML 2012). A weak classifier gives every label a chance, which leaves
little to explain by wrong labels. If a classifier is equally certain of all rows, this model cannot tell its mistakes
from wrong labels; so rows of which it is certain are flagged, too. docs/results/inspect.md compares both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest

TEMPERATURES = np.geomspace(0.4, 2.5, 19)
ROUNDS = 100  # most steps of expectation maximization
START = 0.05  # share of wrong labels
LEAST = 1e-12  # probability
CERTAIN = 0.9  # probability of another class


@dataclass(frozen=True)
class Suspects:
    """How suspicious each label is.

    score: (N,) float32 in [0, 1]; 1 minus the probability of the given label. 0 if its class has no other row.
    proposed: (N,) int64, the most probable other class.
    issue: (N,) bool, whether the label is more probably wrong than right, or another class is certain.
    noise: estimated share of wrong labels.
    """

    score: np.ndarray
    proposed: np.ndarray
    issue: np.ndarray
    noise: float

    @property
    def order(self) -> np.ndarray:
        """Positions, the most suspicious first."""
        return np.argsort(-self.score, kind="stable")


@checked
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
    judged = np.bincount(labels, minlength=classes)[labels] > 1  # no classifier knows a class of one row
    own = np.where(judged, probabilities[rows, labels], 1.0)
    wrong, noise = _wrong(probabilities[judged], labels[judged])
    others = probabilities.copy()
    others[rows, labels] = -1
    issue = np.zeros(count, bool)
    issue[judged] = (wrong > 0.5) | (others[judged].max(axis=1) >= CERTAIN)
    return Suspects((1 - own).astype(np.float32), others.argmax(axis=1), issue, noise)


def _wrong(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the probability (M,) that each label is wrong, and the share of wrong labels.

    The temperature of the classifier is estimated with the share, because wrong labels make it look less certain than
    it is. Both maximize the likelihood of the given labels.
    """
    best: tuple[float, np.ndarray, float] = (-np.inf, np.zeros(len(labels)), 0.0)
    logs = np.log(np.maximum(probabilities, LEAST))
    for temperature in TEMPERATURES if len(labels) else ():
        scaled = np.exp((logs - logs.max(axis=1, keepdims=True)) / temperature)
        own = scaled[np.arange(len(labels)), labels] / scaled.sum(axis=1)
        other = (1 - own) / (probabilities.shape[1] - 1)  # a wrong label is one of the other classes
        share, wrong = START, np.zeros(len(labels))
        for _ in range(ROUNDS):
            wrong = share * other / np.maximum(share * other + (1 - share) * own, LEAST)
            share = float(wrong.mean())
        likelihood = float(np.log(np.maximum(share * other + (1 - share) * own, LEAST)).sum())
        if likelihood > best[0]:
            best = likelihood, wrong, share
    return best[1], best[2]


@dataclass(frozen=True)
class Overlap:
    """Two classes that are taken for each other.

    first, second: class numbers, the lower first.
    share: share of the rows of both classes that are predicted as the other one, in [0, 1].
    confused: their number.
    """

    first: int
    second: int
    share: float
    confused: int


@checked
def class_overlap(predicted: np.ndarray, labels: np.ndarray, most: int = 50) -> list[Overlap]:
    """Return the pairs of classes with confusions, the largest share first.

    Args:
        predicted, labels: (N,) int64, 0 ... C - 1; predictions as of `probe.cross_validation.out_of_fold`.
        most: number of pairs.
    """
    classes = int(max(predicted.max(initial=0), labels.max(initial=0))) + 1
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, predicted), 1)
    sizes = counts.sum(axis=1)
    both = counts + counts.T
    first, second = np.nonzero(np.triu(both, 1))
    found = [
        Overlap(int(i), int(j), float(both[i, j] / (sizes[i] + sizes[j])), int(both[i, j]))
        for i, j in zip(first, second, strict=True)
    ]
    return sorted(found, key=lambda one: (-one.share, one.first, one.second))[:most]
