"""Vectors, and their neighbors by a loop over everything."""

import numpy as np

DIM = 8


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def vectors(n: int, seed: int = 0) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32))


def scores(metric: str, rows: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return the score of each row (n, D), by the definition of the metric."""
    if metric == "l2":
        return -np.linalg.norm(rows - query, axis=1)
    return unit(rows) @ unit(query) if metric == "cosine" else rows @ query


def nearest(metric: str, truth: dict[str, np.ndarray], query: np.ndarray) -> list[tuple[str, float]]:
    """Return ids and scores of all vectors, best first."""
    if not truth:
        return []
    found = scores(metric, np.stack(list(truth.values())), query)
    return sorted(zip(truth, found.tolist(), strict=True), key=lambda pair: -pair[1])
