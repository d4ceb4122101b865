"""The nearest neighbors of every vector, without the vector itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.linear_probe import feature_matrix
from nnclr_hub.store.vector_transform import unit_length

EXACT = 20_000  # vectors that are compared all with all; more go through an inverted file
PROBED = 32  # lists of the inverted file that each query reads


def unit_rows(vectors: np.ndarray, least: int = 2) -> np.ndarray:
    """Return unit rows (N, D) float32, contiguous."""
    rows = feature_matrix(vectors)
    if len(rows) < least:
        raise InvalidRequest(f"Expected an (N, D) array of at least {least} vectors, got shape {rows.shape}.")
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


TAIL = 0.01  # share of the random pairs whose distances are fitted
LEAST = 20  # distances in the tail
TINY = 1e-9


def chance_level(scores: np.ndarray, pairs: float, expected: float = 1.0) -> float:
    """Return the score that `expected` of this many random pairs reach by chance.

    Near 0, the distances of random pairs follow a power law, whose exponent is the local dimension of the vectors. It
    is estimated by maximum likelihood (Hill, 1975; Levina and Bickel, NIPS 2004), and the law is continued to as many
    pairs as the collection has.

    Args:
        scores: (M,) float up to 1, where 1 means equal, of random pairs; at least two.
        pairs: their number in the whole collection.
    """
    distances = np.sort(np.maximum(1 - np.asarray(scores, np.float64), TINY))
    size = min(max(LEAST, round(len(distances) * TAIL)), len(distances) - 1)
    edge = distances[size]
    logs = np.log(edge / distances[:size])  # they follow an exponential distribution, the largest first
    # the closest tenth may be true duplicates, which are not chance: only their number counts (a censored sample)
    censored = size // 10
    exponent = float((logs[censored:].sum() + censored * logs[censored]) / (size - censored))
    rate = expected / pairs * len(distances) / size
    return float(1 - edge * min(rate, 1.0) ** exponent)


K = 50
SHARE = 20  # k is at most N / SHARE, so that small collections keep several groups


@checked
def outliers(vectors: np.ndarray, k: int | None = None, groups: Iterable[Sequence[int]] = ()) -> np.ndarray:
    """Return (N,) float32, the distance of each row to its k-th nearest neighbor, 0 to 2; high is odd.

    It estimates the local density (Loftsgaarden and Quesenberry, 1965; Ramaswamy et al., SIGMOD 2000). A large k also
    finds a group of foreign images that resemble each other, if it has fewer than k. docs/results/inspect.md compares
    it with the local outlier factor.

    Args:
        vectors: (N, D) float; normalized here.
        k: 1 to N - 1; None: 50, or N / 20 if that is less.
        groups: of duplicates, disjoint. Only the first row of each is a neighbor, and the others have its score, since
            copies of an odd image do not make it usual.

    Raises:
        InvalidRequest: fewer than two vectors, or NaN or infinity.
    """
    every = unit_rows(vectors)
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
