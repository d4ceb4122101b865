"""Vectors for the store's benchmarks: clusters on the sphere, like those of image encoders, generated chunk by chunk.

A cluster has a random center and spread. Two vectors of a cluster have a cosine of 0.6 to 0.8 on average. The
variance of the directions inside a cluster falls like 1/j, the same for all clusters, with a random rotation.
Neighbors therefore differ in some tens of dimensions, like those of real encoders. Queries are further samples: no
query is stored. The same seed gives the same rows for any selection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CHUNK = 10_000
CLUSTERS = 1000
LABELS = 100
PARTS = 10_000
COSINE = (0.6, 0.8)

# share of the items that pass, and the filter; labels go with the clusters, half and part with nothing
FILTERS: dict[str, Mapping[str, Any]] = {
    "50%": {"must": [{"key": "half", "match": "left"}]},
    "1%": {"must": [{"key": "part", "range": {"lt": PARTS // 100}}]},
    "1%, a label": {"must": [{"key": "label", "match": "class-07"}]},
    "0.01%": {"must": [{"key": "part", "match": 7}]},
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
        return [item_id(self.start + i) for i in range(len(self.vectors))]

    def labels(self) -> list[str]:
        return [f"class-{label:02d}" for label in (self.cluster % LABELS).tolist()]

    def metadata(self) -> list[dict[str, Any]]:
        """Return typical metadata of images: a path, a label and two more fields."""
        columns = zip(self.labels(), self.left.tolist(), self.part.tolist(), strict=True)
        return [
            {
                "path": f"{label}/{self.start + i:09d}.jpg",
                "label": label,
                "half": "left" if left else "right",
                "part": part,
            }
            for i, (label, left, part) in enumerate(columns)
        ]

    def passing(self, name: str) -> np.ndarray:
        """Return (n,) bool: rows that pass a filter of FILTERS, computed without the store's code."""
        if name == "50%":
            return self.left
        if name == "1%":
            return self.part < PARTS // 100
        if name == "1%, a label":
            return self.cluster % LABELS == 7
        return self.part == 7


@dataclass(frozen=True)
class Clusters:
    """`items` rows of `dim` numbers; see the module."""

    items: int
    dim: int
    seed: int = 0
    _centers: np.ndarray = field(init=False, repr=False)
    _spread: np.ndarray = field(init=False, repr=False)
    _basis: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.seed, self.dim])
        centers = _unit(rng.standard_normal((CLUSTERS, self.dim), np.float32))
        cosine = rng.uniform(*COSINE, CLUSTERS).astype(np.float32)
        # of two vectors c + s u with unit c and E|u|^2 = 1 the cosine is 1 / (1 + s^2)
        spread = np.sqrt(1 / cosine - 1)
        variance = 1 / np.arange(1, self.dim + 1)
        turned, _ = np.linalg.qr(rng.standard_normal((self.dim, self.dim)))
        basis = np.sqrt(variance / variance.sum())[:, None] * turned
        for name, value in (("_centers", centers), ("_spread", spread), ("_basis", basis.astype(np.float32))):
            object.__setattr__(self, name, value)

    def chunks(self) -> Iterator[Rows]:
        """Yield all rows, CHUNK at a time."""
        for start in range(0, self.items, CHUNK):
            yield self._draw(start, min(CHUNK, self.items - start), [self.seed, start])

    def queries(self, count: int) -> np.ndarray:
        """Return (count, D) float32 of the same distribution; none of them is stored."""
        return self._draw(0, count, [self.seed, 2**40]).vectors

    def _draw(self, start: int, count: int, seed: list[int]) -> Rows:
        rng = np.random.default_rng(seed)
        cluster = rng.integers(0, CLUSTERS, count)
        left = rng.random(count) < 0.5
        part = rng.integers(0, PARTS, count)
        noise = rng.standard_normal((count, self.dim), np.float32) @ self._basis
        vectors = self._centers[cluster] + self._spread[cluster, None] * noise
        return Rows(start, _unit(vectors), cluster, left, part)


def item_id(row: int) -> str:
    """Return ids as long as the hashes of `nnclr index`, in the order of the rows."""
    return f"{row:016d}"


def exact(data: Clusters, queries: np.ndarray, k: int, filters: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Compute the true neighbors by brute force, best first.

    Args:
        queries: (n, D) float32.
        filters: names from FILTERS.

    Returns:
        by filter, "" for none: row numbers (n, k) int64; -1 where fewer pass.
    """
    scores = {name: np.full((len(queries), k), -np.inf, np.float32) for name in ("", *filters)}
    rows = {name: np.full((len(queries), k), -1, np.int64) for name in ("", *filters)}
    for chunk in data.chunks():
        found = queries @ chunk.vectors.T
        for name in scores:
            among = np.arange(len(chunk.vectors)) if not name else np.flatnonzero(chunk.passing(name))
            near = found if not name else found[:, among]
            if near.shape[1] > k:
                top = np.argpartition(-near, k - 1)[:, :k]
                near, place = np.take_along_axis(near, top, 1), among[top]
            else:
                place = np.broadcast_to(among, near.shape)
            both = np.concatenate([scores[name], near], 1)
            numbers = np.concatenate([rows[name], place + chunk.start], 1)
            best = np.argsort(-both, kind="stable")[:, :k]
            scores[name], rows[name] = np.take_along_axis(both, best, 1), np.take_along_axis(numbers, best, 1)
    return rows


def recall(found: list[list[str]], truth: np.ndarray) -> float:
    """Return the share of the true neighbors that were found, over all queries; 1 if there are none."""
    wanted = [{item_id(row) for row in rows if row >= 0} for rows in truth.tolist()]
    hits = sum(len(true.intersection(ids)) for true, ids in zip(wanted, found, strict=True))
    total = sum(map(len, wanted))
    return hits / total if total else 1.0


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
