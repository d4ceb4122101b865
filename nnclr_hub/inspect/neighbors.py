"""The nearest neighbors of every vector, without the vector itself."""

from __future__ import annotations

import math

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.metrics import require_finite
from nnclr_hub.store.vector_transform import unit_length

EXACT = 20_000  # vectors that are compared all with all; more go through an inverted file
PROBED = 32  # lists of the inverted file that each query reads


def checked(vectors: np.ndarray, least: int = 2) -> np.ndarray:
    """Return unit rows (N, D) float32, contiguous."""
    rows = np.asarray(vectors)
    if rows.ndim != 2 or len(rows) < least:
        raise InvalidRequest(f"Expected an (N, D) array of at least {least} vectors, got shape {rows.shape}.")
    require_finite(rows)
    return np.ascontiguousarray(unit_length(rows.astype(np.float32)))


def nearest(vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines (N, k) float32 and positions (N, k) int64 of the k nearest other rows, best first.

    Up to 20,000 rows the result is exact. Above, an inverted file (Jégou et al., PAMI 2011) finds nearly all.

    Args:
        vectors: (N, D) float32, unit rows.
        k: 1 to N - 1.
    """
    import faiss

    count, dim = vectors.shape
    index = faiss.IndexFlatIP(dim)
    if count > EXACT:
        lists = 4 * round(math.sqrt(count))
        index = faiss.IndexIVFFlat(index, dim, lists, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors[:: max(1, count // (40 * lists))])
        index.nprobe = PROBED
    index.add(vectors)
    scores, places = index.search(vectors, k + 1)
    # drop each row itself; among equal vectors it may not be in the list, and then the last one is dropped
    others = places != np.arange(count)[:, None]
    others[others.all(axis=1), -1] = False
    places = places[others].reshape(count, k)
    scores = scores[others].reshape(count, k)
    return scores, places
