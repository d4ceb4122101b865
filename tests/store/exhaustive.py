"""Vectors, and their neighbors by a loop over everything."""

import numpy as np

DIM = 8


def vectors(n: int, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def brute_force(truth: dict[str, np.ndarray], query: np.ndarray, k: int, metric: str) -> list[tuple[str, float]]:
    """Return the matches by a loop over everything."""
    if metric == "l2":
        scored = [(id, -float(np.linalg.norm(vector - query))) for id, vector in truth.items()]
    else:
        scored = [(id, float(vector @ query)) for id, vector in truth.items()]
    return sorted(scored, key=lambda pair: -pair[1])[:k]
