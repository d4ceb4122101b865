"""Where the rows of a probe are, so that images of classes that it never saw can be rejected by their distance.

The distance is that of Mahalanobis to the nearest class, with a covariance that all classes share (Lee et al., NeurIPS
2018). The covariance is shrunk towards a sphere, the more the fewer rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

HELD_OUT = 0.2  # share of the rows on which the limit is measured
SEED = 0


@dataclass(frozen=True)
class Region:
    """The region of the fitted rows.

    means: (C, D) float32.
    factor: (D, D) float32; times its transpose, it is the inverse covariance.
    limit: the largest distance inside.
    """

    means: np.ndarray
    factor: np.ndarray
    limit: float

    @classmethod
    def of(cls, rows: np.ndarray, labels: np.ndarray, share: float) -> Region:
        """Return the region that leaves out about this share of further rows of the same classes.

        Args:
            rows: (N, D) float.
            labels: (N,) int64.
            share: above 0, below 1.
        """
        rows = np.asarray(rows, np.float64)
        held = np.random.default_rng(SEED).random(len(rows)) < HELD_OUT
        held[np.unique(labels, return_index=True)[1]] = False  # each class keeps a row, or its others would be far
        part = cls._fit(rows[~held], labels[~held]) if held.any() and not held.all() else cls._fit(rows, labels)
        measured = part.distances(rows[held] if held.any() else rows)
        whole = cls._fit(rows, labels)
        return cls(whole.means, whole.factor, float(np.quantile(measured, 1 - share)))

    @classmethod
    def _fit(cls, rows: np.ndarray, labels: np.ndarray) -> Region:
        classes, places = np.unique(labels, return_inverse=True)
        means = np.zeros((len(classes), rows.shape[1]))
        np.add.at(means, places, rows)
        means /= np.bincount(places)[:, None]
        left = rows - means[places]
        covariance = left.T @ left / len(rows)
        dim = rows.shape[1]
        weight = dim / (len(rows) + dim)
        sphere = np.eye(dim) * max(np.trace(covariance) / dim, 1e-12)
        factor = np.linalg.cholesky(np.linalg.inv((1 - weight) * covariance + weight * sphere))
        return cls(means.astype(np.float32), factor.astype(np.float32), np.inf)

    def contains(self, rows: np.ndarray) -> np.ndarray:
        """Return (Q,) bool: whether each row is inside."""
        return self.distances(rows) <= self.limit

    def distances(self, rows: np.ndarray) -> np.ndarray:
        """Return the squared distance (Q,) float32 of each row to its nearest class."""
        x, centers = np.asarray(rows, np.float32) @ self.factor, self.means @ self.factor
        cross = x @ centers.T
        squares = (x * x).sum(axis=1)[:, None] - 2 * cross + (centers * centers).sum(axis=1)
        return squares.min(axis=1).clip(min=0)
