"""Exhaustive search by numpy, which the store is held against."""

import numpy as np


def scores(vectors: np.ndarray, query: np.ndarray, metric: str) -> np.ndarray:
    """Return the score (n,) float32 of each row of vectors (n, D): cosine, dot product, or minus the distance."""
    if metric == "l2":
        return -np.linalg.norm(vectors - query, axis=1)
    if metric == "cosine":
        query = query / np.linalg.norm(query)
    return vectors @ query


def best_scores(vectors: np.ndarray, query: np.ndarray, metric: str) -> list[float]:
    """Return the scores of all rows, best first."""
    return sorted(scores(vectors, query, metric).tolist(), reverse=True)
