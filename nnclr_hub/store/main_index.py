"""The main part of an index: vectors that are searched and never change.

| kind   | finds                                    | bytes a vector (f32; f16 halves the first term) |
|--------|------------------------------------------|-------------------------------------------------|
| flat   | everything, by looking at all            | 4 D                                             |
| hnsw   | nearly everything, through a graph       | 4 D + 272                                       |
| ivf    | nearly everything, in the nearest lists  | 4 D + 16                                        |
| ivf_pq | candidates, whose vectors the catalog has | D / 8 + 24                                     |

How far an approximate search looks (efSearch, nprobe) travels with every search: faiss forgets an
index's own setting as soon as the parameters carry a selector.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

# faiss's type stubs lack half of its names
FAISS: Any = faiss
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
            no more, -inf and -1.
        """
        return self._found(self.index, queries, k, self._parameters(k, among, effort or self.effort))

    def search_all(self, queries: np.ndarray, k: int, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """`search` that looks at every row."""
        selector = _selector(among)
        if self.kind == "hnsw":
            storage = faiss.downcast_index(self.index.storage)
            return self._found(storage, queries, k, _made(FAISS.SearchParameters, among, sel=selector))
        if self.kind == "flat":
            return self.search(queries, k, among)
        lists = self.index.nlist
        return self._found(self.index, queries, k, _made(FAISS.SearchParametersIVF, among, sel=selector, nprobe=lists))

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """(m, D) float32 of rows (m,) int64, as the index holds them."""
        if len(rows) == 0:
            return np.zeros((0, self.index.d), np.float32)
        return self.index.reconstruct_batch(np.ascontiguousarray(rows, np.int64))

    def _parameters(self, k: int, among: np.ndarray | None, effort: int) -> Any:
        if self.kind == "flat":
            return None if among is None else _made(FAISS.SearchParameters, among, sel=_selector(among))
        if self.kind == "hnsw":
            return _made(FAISS.SearchParametersHNSW, among, sel=_selector(among), efSearch=max(effort, 2 * k))
        return _made(
            FAISS.SearchParametersIVF, among, sel=_selector(among), nprobe=min(max(effort, k // 50), self.index.nlist)
        )

    def _found(self, index: Any, queries: np.ndarray, k: int, parameters: Any) -> tuple[np.ndarray, np.ndarray]:
        scores, rows = index.search(queries, k, params=parameters)
        if self.metric == "l2":
            scores = -np.sqrt(np.maximum(scores, 0))
        if rows.size and rows.min() < 0:
            scores[rows < 0] = -np.inf
        return scores, rows


# ------------------------------------------------------------------------------ searching


def _selector(among: np.ndarray | None) -> Any:
    return None if among is None else FAISS.IDSelectorBitmap(among)


def _made(kind: Any, among: np.ndarray | None, **settings: Any) -> Any:
    """Search parameters that keep their selector's bitmap alive, which faiss reads by address."""
    parameters = kind(**settings)
    parameters.bitmap = among
    return parameters


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
