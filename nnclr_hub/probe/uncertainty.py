"""How sure a score is: intervals of a mean, and a paired test of two sources on the same images.

    low, high = confidence_interval(right)          # right: (N,) 0 or 1 per test image
    paired_difference(right, others)                # Difference(mean=.031, low=.012, high=.049, p=.001)

Two encoders err on many of the same images, so their scores move together and two overlapping intervals say little. The
paired test looks at the images on which they differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnclr_hub.errors import InvalidRequest

RESAMPLES = 4000
LEVEL = 0.95
CELLS = 1 << 22  # numbers drawn at a time


@dataclass(frozen=True)
class Difference:
    """The mean of one source minus that of another.

    low, high: its 95% interval.
    p: share of random sign flips whose difference is at least as large; the smallest possible value is 1 / 4001.
    """

    mean: float
    low: float
    high: float
    p: float


def confidence_interval(each: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """Return the 95% bootstrap interval (percentiles) of the mean of one value per image.

    Args:
        each: (N,) float; for accuracy 0 or 1.
        seed: seed of the resampling.
    """
    low, high = np.quantile(_bootstrap_means(_values(each), seed), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def paired_difference(first: np.ndarray, second: np.ndarray, *, seed: int = 0) -> Difference:
    """Compare two sources on the same images in the same order.

    The interval is a bootstrap over images. The test flips the signs of the differences at random: if the sources were
    equally good, either could have given each answer.

    Args:
        first, second: (N,) float, one value per image.
        seed: seed of the resampling.
    """
    first, second = _values(first), _values(second)
    if len(first) != len(second):
        raise InvalidRequest(f"A paired test needs the same images; got {len(first)} and {len(second)} values.")
    difference = first - second
    low, high = confidence_interval(difference, seed=seed)
    # only images with different values can change the sum
    changed = difference[difference != 0]
    random = np.random.default_rng(seed)
    flipped = np.concatenate(
        [(2 * random.integers(0, 2, (rows, len(changed)), np.int8) - 1) @ changed for rows in _pieces(len(changed))]
    )
    extreme = np.sum(np.abs(flipped) >= abs(changed.sum()) - 1e-9)
    return Difference(float(difference.mean()), low, high, float((1 + extreme) / (1 + RESAMPLES)))


def _values(each: np.ndarray) -> np.ndarray:
    values = np.asarray(each, np.float64)
    if values.ndim != 1 or not len(values):
        raise InvalidRequest(f"An interval needs one value per image; got an array of shape {values.shape}.")
    return values


def _bootstrap_means(values: np.ndarray, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    count = len(values)
    return np.concatenate([values[random.integers(0, count, (rows, count))].mean(axis=1) for rows in _pieces(count)])


def _pieces(width: int) -> list[int]:
    """Split RESAMPLES rows so that an array of that width stays small."""
    rows = max(1, CELLS // max(width, 1))
    return [min(rows, RESAMPLES - start) for start in range(0, RESAMPLES, rows)]
