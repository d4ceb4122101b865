"""The main part of an index: vectors that are searched and never change.

| kind   | finds                                    | bytes a vector (f32; f16 halves the first term) |
|--------|------------------------------------------|-------------------------------------------------|
| flat   | everything, by looking at all            | 4 D                                             |
| hnsw   | nearly everything, through a graph       | 4 D + 272 (f16: 2 D + 144)                      |
| ivf    | nearly everything, in the nearest lists  | 4 D + 16                                        |
| ivf_pq | candidates, whose vectors the catalog has | D / 8 + 24                                     |

How far an approximate search looks (efSearch, nprobe) travels with every search: faiss forgets an
index's own setting as soon as the parameters carry a selector.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import faiss
import numpy as np

# faiss's type stubs lack half of its names
FAISS: Any = faiss
_KINDS = {
    "flat": FAISS.SearchParameters,
    "hnsw": FAISS.SearchParametersHNSW,
    "ivf": FAISS.SearchParametersIVF,
    "ivf_pq": FAISS.SearchParametersIVF,
}
# queries at once, from 20 on faiss takes the other way
FEW = 16
# how many candidates of compressed vectors are compared by their true ones, for each match asked for
REFINED = 10


@dataclass(frozen=True)
class MainIndex:
    """An index over rows 0 ... N-1.

    kind: of the table above.
    index: faiss's.
    metric: of the collection.
    effort: efSearch or nprobe by which it was found to reach WANTED_RECALL; 0 where there is none.
    judged: how many rows it had then.
    """

    kind: str
    index: Any
    metric: str
    effort: int = 0
    judged: int = 0

    def __len__(self) -> int:
        return self.index.ntotal

    @property
    def lossless(self) -> bool:
        """Whether it holds the vectors themselves."""
        return self.kind != "ivf_pq"

    def search(
        self, queries: np.ndarray, k: int, among: np.ndarray | None = None, effort: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k best rows for each query.

        Args:
            queries: (n, D) float32.
            k: at least 1.
            among: bitmap (N / 8,) uint8, little end first, of the candidates; None for all.
            effort: efSearch or nprobe; None: as it was judged.

        Returns:
            scores (n, k) float32, higher is nearer, best first, and rows (n, k) int64; where there are
            no more, some score and -1.
        """
        looks = self._looks(k, effort or self.effort)
        return self._found(self.index, queries, k, _parameters(self.kind, among, **looks))

    def search_all(self, queries: np.ndarray, k: int, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """`search` that looks at every row."""
        if self.kind == "hnsw":
            return self._found(faiss.downcast_index(self.index.storage), queries, k, _parameters("flat", among))
        if self.kind == "flat":
            return self.search(queries, k, among)
        return self._found(self.index, queries, k, _parameters("ivf", among, nprobe=self.index.nlist))

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """(m, D) float32 of rows (m,) int64, as the index holds them."""
        if len(rows) == 0:
            return np.zeros((0, self.index.d), np.float32)
        return self.index.reconstruct_batch(np.ascontiguousarray(rows, np.int64))

    def _looks(self, k: int, effort: int) -> dict[str, int]:
        """How far a search for k looks."""
        if self.kind == "flat":
            return {}
        if self.kind == "hnsw":
            return {"efSearch": max(effort, 2 * k)}
        return {"nprobe": min(max(effort, k // 50), self.index.nlist)}

    def _found(self, index: Any, queries: np.ndarray, k: int, parameters: Any) -> tuple[np.ndarray, np.ndarray]:
        if self.metric != "l2":
            return index.search(queries, k, params=parameters)
        # faiss compares many queries with all rows by dot products, which loses small distances; a few it does not
        step = FEW if index.metric_type == faiss.METRIC_L2 and isinstance(index, faiss.IndexFlat) else len(queries)
        found = [index.search(queries[i : i + step], k, params=parameters) for i in range(0, len(queries), step)]
        return -np.sqrt(np.maximum(np.concatenate([f[0] for f in found]), 0)), np.concatenate([f[1] for f in found])


# ------------------------------------------------------------------------------ searching


def _parameters(kind: str, among: np.ndarray | None, **looks: int) -> Any:
    if among is None:
        return _plain(kind, *looks.items())
    parameters = _KINDS[kind](sel=FAISS.IDSelectorBitmap(among), **looks)
    parameters.bitmap = among  # faiss reads it by address
    return parameters


@lru_cache(maxsize=256)
def _plain(kind: str, *looks: tuple[str, int]) -> Any:
    """Parameters without a filter, made once: faiss only reads them."""
    return _KINDS[kind](**dict(looks))


@contextmanager
def threads(number: int) -> Iterator[None]:
    """So many of faiss's threads, for the calling thread alone.

    A single query gains nothing from several, and idle ones spin against the rest of the process.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(number)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
