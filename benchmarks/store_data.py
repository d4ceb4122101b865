"""Vectors for the store's benchmark: clusters on the sphere, like those of image encoders, generated chunk by chunk.

A cluster has a random center and spread. Two vectors of a cluster have a cosine of 0.6 to 0.8 on average. The
variance of the directions inside a cluster falls like 1/j, the same for all clusters, with a random rotation.
Neighbors therefore differ in some tens of dimensions, like those of real encoders. Queries are further samples: no
query is stored. The same seed gives the same rows for any selection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

CHUNK = 10_000
CLUSTERS = 1000
LABELS = 100
PARTS = 10_000
COSINE = (0.6, 0.8)
INDEXED = ("half", "part")

# share of the items that pass, and the filter; labels go with the clusters, half and part with nothing
FILTERS: dict[str, Mapping[str, Any]] = {
    "50%": {"must": [{"key": "half", "match": "left"}]},
    "1%": {"must": [{"key": "part", "range": {"lt": PARTS // 100}}]},
    "0.01%": {"must": [{"key": "part", "match": 7}]},
    "1%, not indexed": {"must": [{"key": "label", "match": "class-07"}]},
}


@dataclass(frozen=True)
class Rows:
    """Consecutive items: `start` is the number of the first, vectors (n, D) float32 with unit rows."""

    start: int
    vectors: np.ndarray
    cluster: np.ndarray
    left: np.ndarray
    part: np.ndarray

    def ids(self) -> list[str]:
        """Return ids as long as the hashes of `nnclr index`, in the order of the rows."""
        return [f"{self.start + i:016d}" for i in range(len(self.vectors))]

    def metadata(self) -> list[dict[str, Any]]:
        """Return typical metadata of images: a path, a label and two more fields."""
        columns = zip((self.cluster % LABELS).tolist(), self.left.tolist(), self.part.tolist(), strict=True)
        return [
            {
                "path": f"class-{label:02d}/{self.start + i:09d}.jpg",
                "label": f"class-{label:02d}",
                "half": "left" if left else "right",
                "part": part,
            }
            for i, (label, left, part) in enumerate(columns)
        ]

    def passing(self, name: str) -> np.ndarray:
        """Return (n,) bool: rows that pass a filter of FILTERS, computed without the store's code; "" passes all."""
        passes = {
            "": np.ones(len(self.part), bool),
            "50%": self.left,
            "1%": self.part < PARTS // 100,
            "0.01%": self.part == 7,
            "1%, not indexed": self.cluster % LABELS == 7,
        }
        return passes[name]


class Clusters:
    """`items` rows of `dim` numbers; see the module."""

    def __init__(self, items: int, dim: int, seed: int = 0) -> None:
        self.items, self.dim, self._seed = items, dim, seed
        rng = np.random.default_rng([seed, dim])
        self._centers = _unit(rng.standard_normal((CLUSTERS, dim), np.float32))
        # of two vectors c + s u with unit c and E|u|^2 = 1 the cosine is 1 / (1 + s^2)
        self._spread = np.sqrt(1 / rng.uniform(*COSINE, CLUSTERS).astype(np.float32) - 1)
        variance = 1 / np.arange(1, dim + 1)
        turned, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
        self._basis = (np.sqrt(variance / variance.sum())[:, None] * turned).astype(np.float32)

    def chunks(self) -> Iterator[Rows]:
        """Yield all rows, CHUNK at a time."""
        for start in range(0, self.items, CHUNK):
            yield self._draw(start, min(CHUNK, self.items - start), [self._seed, start])

    def queries(self, count: int) -> np.ndarray:
        """Return (count, D) float32 of the same distribution; none of them is stored."""
        return self._draw(0, count, [self._seed, 2**40]).vectors

    def _draw(self, start: int, count: int, seed: list[int]) -> Rows:
        rng = np.random.default_rng(seed)
        cluster = rng.integers(0, CLUSTERS, count)
        left = rng.random(count) < 0.5
        part = rng.integers(0, PARTS, count)
        noise = rng.standard_normal((count, self.dim), np.float32) @ self._basis
        vectors = self._centers[cluster] + self._spread[cluster, None] * noise
        return Rows(start, _unit(vectors), cluster, left, part)


def exact(data: Clusters, queries: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """Return the true neighbors by brute force, best first.

    Returns:
        by filter, "" for none: row numbers (n, k) int64; -1 where fewer pass.
    """
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in ("", *FILTERS)}
    for rows in data.chunks():
        scores = queries @ rows.vectors.T
        for name, parts in found.items():
            own = np.where(rows.passing(name), scores, -np.inf)
            best = np.argpartition(-own, min(k, own.shape[1]) - 1, axis=1)[:, :k]
            parts.append((np.take_along_axis(own, best, 1), best + rows.start))
    merged = {}
    for name, parts in found.items():
        scores, numbers = (np.concatenate(column, 1) for column in zip(*parts, strict=True))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        numbers = np.where(np.isfinite(scores), numbers, -1)
        merged[name] = np.take_along_axis(numbers, best, 1)
    return merged


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
