"""Classes that an encoder confuses, by the predictions of classifiers that have not seen the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Overlap:
    """Two classes that are taken for each other.

    first, second: class numbers, the lower first.
    share: of the rows of both classes that are predicted as the other one, in [0, 1].
    confused: their number.
    """

    first: int
    second: int
    share: float
    confused: int


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
