"""Select rows that show different images, so that copies do not count in statistics of a collection."""

from __future__ import annotations

import numpy as np

ALIKE = 0.9  # centered similarity from which two rows show one image, until it is calibrated
EQUAL = 0.995  # the same of rows that are not centered
SAMPLE = 2_000  # rows that are compared all with all
GAP = 1.005  # how many times more rows a higher similarity may leave, if rows of one image are apart from all others
ROUNDING = 1e-9  # squared distance of equal rows, relative to their mean squared length


def distinct_rows(rows: np.ndarray, alike: float = ALIKE) -> tuple[np.ndarray, float]:
    """Return positions of rows, at most 2,000, no two of which are versions of one image; and the similarity used.

    Args:
        rows: (N, D) float32; of any length, but rows of one image have one length.
        alike: lowest centered similarity of two versions of an image. It is raised while there is no gap between
            versions of one image and different images.

    Returns:
        (M,) int64, sorted, and the similarity: about the cosine after centering.
    """
    sampled = np.arange(len(rows))[:: -(-len(rows) // SAMPLE)]
    rows = rows[sampled]
    # many copies of one image would draw the mean to it; of rows that all point one way, the mean is what they share
    apart = _spread(rows, EQUAL)
    rows = rows - rows[apart if len(apart) > 1 else slice(None)].mean(axis=0)
    distinct = _spread(rows, alike)
    while alike <= EQUAL and len(more := _spread(rows, (1 + alike) / 2)) > GAP * len(distinct):
        distinct, alike = more, (1 + alike) / 2
    return sampled[distinct], alike


def _spread(rows: np.ndarray, alike: float) -> np.ndarray:
    squares = np.einsum("ij,ij->i", rows, rows)
    distances = squares[:, None] + squares - 2 * rows @ rows.T
    lengths = np.sqrt(squares)
    # the similarity is 1 - |a - b|^2 / 2|a||b|
    near = distances <= 2 * (1 - alike) * np.outer(lengths, lengths) + ROUNDING * squares.mean()
    taken = np.zeros(len(rows), bool)
    for i in range(len(rows)):
        taken[i] = not (near[i] & taken).any()
    return np.flatnonzero(taken)
