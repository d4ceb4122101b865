"""Exhaustive comparison, for the few vectors that do not justify an index.

faiss is used although numpy's matrix product is as fast. The threads that numpy wakes keep spinning for a while against
those of faiss, and every graph search at the same time takes twice as long (0.35 instead of 0.17 ms per query at
1,000,000 x 256).
"""

from __future__ import annotations

from collections.abc import Iterator

import faiss
import numpy as np

from nnclr_hub.store.index.main_index import FEW

Found = tuple[np.ndarray, np.ndarray]


def compare(queries: np.ndarray, vectors: np.ndarray, rids: np.ndarray, k: int, metric: str) -> Found:
    """Return the k nearest of vectors (m, D) for each of queries (n, D).

    Args:
        queries, vectors: float32.
        rids: (m,) int64, the row ids of the vectors.
        k: at least 1.
        metric: "cosine", "dot" or "l2".

    Returns:
        scores (n, j) float32, best first, and rids (n, j) int64, j = min(k, m); -inf and -1 for a vector of NaN.
    """
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    vectors, k = np.ascontiguousarray(vectors), min(k, len(vectors))
    # a few queries at a time: for many, faiss uses a matrix product as well
    found = [faiss.knn(queries[i : i + FEW], vectors, k, metric=kind) for i in range(0, len(queries), FEW)]
    scores, rows = np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])
    if metric == "l2":
        scores = -np.sqrt(np.maximum(scores, 0))
    known = rids[rows]
    if rows.min(initial=0) < 0:
        missing = rows < 0
        scores[missing], known[missing] = -np.inf, -1
    return scores, known


def nearest(metric: str, batches: Iterator[np.ndarray], queries: np.ndarray, k: int) -> Found:
    """Compare with every vector of several batches (n, D) float32.

    Returns:
        scores (n, k) and positions (n, k) of the vectors nearest to queries (n, D).
    """
    scores, rows, start = [], [], 0
    for batch in batches:
        if len(batch):
            kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
            found, numbers = faiss.knn(queries, np.ascontiguousarray(batch), min(k, len(batch)), metric=kind)
            scores.append(-np.sqrt(np.maximum(found, 0)) if metric == "l2" else found)
            rows.append(numbers + start)
            start += len(batch)
    return best(np.concatenate(scores, axis=1), np.concatenate(rows, axis=1), k)


def score(query: np.ndarray, vectors: np.ndarray, metric: str) -> np.ndarray:
    """Return the scores (m,) float32 of vectors (m, D) for a query (D,); -inf for a vector of NaN."""
    scores = -np.linalg.norm(vectors - query, axis=1) if metric == "l2" else np.einsum("ij,j->i", vectors, query)
    return np.where(np.isnan(scores), -np.inf, scores)


def merge(found: list[Found], k: int) -> Found:
    """Return the k best of several results for the same queries, best first. A single result is returned unchanged."""
    if len(found) == 1:
        return found[0]
    return best(np.concatenate([f[0] for f in found], axis=1), np.concatenate([f[1] for f in found], axis=1), k)


def best(scores: np.ndarray, rids: np.ndarray, k: int) -> Found:
    """Return the k best columns of scores (n, m) and rids (n, m) in each row, best first."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    each = np.arange(len(scores))[:, None]
    return scores[each, order], rids[each, order]
