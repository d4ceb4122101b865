"""Centering and whitening: better neighbors from the same vectors, fitted without labels.

    transform = VectorTransform.fit(vectors, "half_whiten")
    transform(vectors)          # (N, D) float32, unit rows, compared by cosine as before

Vectors of one encoder share a common direction, so the cosine of two random images is far above 0, and a few directions
of high variance decide most neighbors. "center" subtracts the mean. "whiten" also gives each direction the same
variance (PCA whitening; Jégou and Chum, ECCV 2012). "half_whiten" divides each direction by the square root of its
standard deviation instead: fewer than about 8 vectors per dimension do not determine the small variances, and full
whitening makes their noise as important as the rest. docs/results/transforms.md compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self, get_args

import numpy as np

from nnclr_hub.errors import InvalidRequest

Kind = Literal["raw", "center", "half_whiten", "whiten"]
KINDS: tuple[Kind, ...] = get_args(Kind)
POWERS = {"half_whiten": 0.25, "whiten": 0.5}  # powers of the variances by which directions are divided
# Share of the mean variance that is added to each variance. Directions of (nearly) no variance are noise, and fewer
# vectors than dimensions leave some without any: they must not be blown up. Scores hardly change between .01 and 1.
RIDGE = 0.1
LEAST_VARIANCE = 1e-12  # below which differences of unit vectors in float32 are rounding


@dataclass(frozen=True)
class VectorTransform:
    """An affine map of vectors, followed by normalization."""

    mean: np.ndarray  # (D,) float32
    matrix: np.ndarray | None = None  # (D, D) float32, applied as (x - mean) @ matrix; None: the identity

    @classmethod
    def fit(cls, vectors: np.ndarray, kind: str) -> Self:
        """Fit a transform on vectors (N, D), which are normalized first."""
        if kind not in KINDS:
            raise InvalidRequest(f"The transform must be one of {', '.join(KINDS)}, got {kind!r}.")
        if not len(vectors):
            raise InvalidRequest("A transform needs at least one vector to be fitted on.")
        unit = unit_length(np.asarray(vectors, np.float64))
        if kind == "raw":
            return cls(np.zeros(unit.shape[1], np.float32))
        mean = unit.mean(axis=0)
        if kind not in POWERS:
            return cls(mean.astype(np.float32))
        centered = unit - mean
        variances, directions = np.linalg.eigh(centered.T @ centered / len(unit))
        floor = max(RIDGE * float(variances.mean()), LEAST_VARIANCE)
        matrix = directions / (np.maximum(variances, 0) + floor) ** POWERS[kind]
        return cls(mean.astype(np.float32), matrix.astype(np.float32))

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return (N, D) float32 with rows of length 1; a vector equal to the mean has no direction and becomes 0."""
        moved = unit_length(np.asarray(vectors, np.float32)) - self.mean
        return unit_length(moved if self.matrix is None else moved @ self.matrix)


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Return the rows divided by their lengths; rows of length 0 stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
