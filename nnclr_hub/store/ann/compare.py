"""Nearness by comparing with each vector, for the few where no index is worth its while.

numpy's matrix product would be as quick by itself, but the threads that it wakes go on spinning for a while against
faiss's own, and every graph search beside it takes twice as long (0.35 ms a query for 0.17, at 1,000,000 x 256).
"""

from __future__ import annotations

import faiss
import numpy as np

from nnclr_hub.store.ann.main_index import FEW

Found = tuple[np.ndarray, np.ndarray]


def compare(queries: np.ndarray, vectors: np.ndarray, rids: np.ndarray, k: int, metric: str) -> Found:
    """The k nearest of vectors (m, D) for each of queries (n, D).

    Args:
        rids: (m,) int64, what the vectors are called.
        metric: "cosine", "dot" or "l2".

    Returns:
        scores (n, j) float32, best first, and rids (n, j) int64, j = min(k, m); -inf and -1 for a vector of NaN.
    """
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    vectors, k = np.ascontiguousarray(vectors), min(k, len(vectors))
    # a few queries at a time: many are compared by faiss through a matrix product as well
    found = [faiss.knn(queries[i : i + FEW], vectors, k, metric=kind) for i in range(0, len(queries), FEW)]
    scores, rows = np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])
    if metric == "l2":
        scores = -np.sqrt(np.maximum(scores, 0))
    none = rows < 0
    return np.where(none, -np.inf, scores), np.where(none, -1, rids[rows])


def score(query: np.ndarray, vectors: np.ndarray, metric: str) -> np.ndarray:
    """(m,) float32: how near each of vectors (m, D) is to a query (D,); -inf for a vector of NaN."""
    scores = -np.linalg.norm(vectors - query, axis=1) if metric == "l2" else np.einsum("ij,j->i", vectors, query)
    return np.where(np.isnan(scores), -np.inf, scores)


def joined(found: list[Found], k: int) -> Found:
    """The k best of several findings for the same queries, best first."""
    return ranked(np.concatenate([f[0] for f in found], axis=1), np.concatenate([f[1] for f in found], axis=1), k)


def ranked(scores: np.ndarray, rids: np.ndarray, k: int) -> Found:
    """The k best columns of scores (n, m) and rids (n, m) in each row, best first."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rids, order, axis=1)
