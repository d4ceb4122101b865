"""Outliers: images in a thin region of the vector space.

The score is the distance to the k-th nearest neighbor (Ramaswamy et al., SIGMOD 2000), an estimate of the local density
(Loftsgaarden and Quesenberry, 1965). A large k also finds a small group of foreign images that resemble each other: a
group is found if it has fewer than k images. docs/results/inspect.md compares it with the local outlier factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from nnclr_hub.inspect.neighbors import checked, nearest

K = 50
SHARE = 20  # k is at most N / SHARE, so that small collections keep several groups


def outliers(vectors: np.ndarray, k: int | None = None, groups: Iterable[Sequence[int]] = ()) -> np.ndarray:
    """Return (N,) float32, the distance of each row to its k-th nearest neighbor, 0 to 2; high is odd.

    Args:
        vectors: (N, D) float; normalized here.
        k: 1 to N - 1; None: 50, or N / 20 if that is less.
        groups: of duplicates, disjoint. Only the first row of each is a neighbor, and the others have its score, since
            copies of an odd image do not make it usual.

    Raises:
        InvalidRequest: fewer than two vectors, or NaN or infinity.
    """
    every = checked(vectors)
    first = np.arange(len(every))
    for group in groups:
        first[list(group)] = group[0]
    different, place = np.unique(first, return_inverse=True)
    rows = np.ascontiguousarray(every[different])
    if len(rows) < 2:
        return np.zeros(len(every), np.float32)
    k = max(1, min(K, len(rows) // SHARE)) if k is None else k
    cosines = nearest(rows, min(k, len(rows) - 1))[0][:, -1]
    return np.sqrt(np.maximum(2 - 2 * cosines, 0)).astype(np.float32)[place]
