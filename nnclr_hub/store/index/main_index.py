"""The main part of an index: vectors that are searched and never change.

The effort of an approximate search (efSearch, nprobe) is passed with every search: faiss ignores the setting of the
index itself as soon as the parameters carry a selector.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import faiss
import numpy as np

from nnclr_hub.store.index_kinds import IndexKind
from nnclr_hub.store.vector_transform import VectorTransform

# faiss's type stubs lack half of its names
FAISS: Any = faiss
FEW = 16  # queries per call: from 20 on, faiss switches to matrix products
# A forked child lacks the threads of its parent, which the OpenMP library of faiss would wait for.
os.register_at_fork(after_in_child=lambda: FAISS.omp_set_num_threads(1))
FEW_IN_PLACE = 2  # queries; for more, a copy of the rows pays off


@dataclass(frozen=True)
class MainIndex:
    """An index over rows 0 ... N-1.

    Nothing may be added to `index` in place once this object exists: faiss would move its vectors, whose address
    `vectors` keeps.

    kind: of the index.
    index: faiss's object.
    metric: of the collection.
    effort: efSearch or nprobe that calibration chose; 0 for an exact kind.
    calibrated_rows: number of rows at that time.
    recall: share of the ten nearest that searches found then; 1.0 for an exact kind.
    transform: of the vectors in the index and of queries; None: they are compared as they are.
    fitted_rows: number of live rows of the collection when the index was built and the transform fitted.
    """

    kind: IndexKind
    index: Any
    metric: str
    effort: int = 0
    calibrated_rows: int = 0
    recall: float = 1.0
    transform: VectorTransform | None = None
    fitted_rows: int = 0

    def __len__(self) -> int:
        return self.index.ntotal

    @property
    def lossless(self) -> bool:
        """Whether it holds the vectors themselves."""
        return self.kind.lossless

    def search(
        self,
        queries: np.ndarray,
        k: int,
        among: np.ndarray | None = None,
        effort: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best rows for each query.

        Args:
            queries: (n, D) float32.
            k: at least 1.
            among: bitmap (N / 8,) uint8, little-endian bits, of the rows to consider; None for all.
            effort: efSearch or nprobe; None: the calibrated one.

        Returns:
            scores (n, k) float32, higher is nearer, best first, and rows (n, k) int64. Missing results have row -1.
        """
        options = self.kind.search_options(self.index, k, effort or self.effort)
        return self._search(self.index, queries, k, _parameters(self.kind, among, options))

    def search_all(self, queries: np.ndarray, k: int, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Search every row; arguments and results are those of `search`."""
        index, kind, options = self._exhaustive
        return self._search(index, queries, k, _parameters(kind, among, options))

    def search_rows(self, queries: np.ndarray, k: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Compare with rows (m,) int64 where they are; return None if copying them first is faster or necessary.

        Arguments and results are otherwise those of `search`.
        """
        index = self._exhaustive[0]
        if not len(rows) or len(queries) > FEW_IN_PLACE or not isinstance(index, faiss.IndexFlat):
            return None  # other kinds would look every row up in the list
        return self._search(index, queries, min(k, len(rows)), FAISS.SearchParameters(sel=FAISS.IDSelectorArray(rows)))

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors (m, D) float32 of rows (m,) int64, as the index holds them."""
        if len(rows) == 0:
            return np.zeros((0, self.index.d), np.float32)
        if self._stored is not None:  # faiss takes twenty times as long for f16
            return self._stored[rows].astype(np.float32, copy=False)
        return self.index.reconstruct_batch(np.ascontiguousarray(rows, np.int64))

    @cached_property
    def _stored(self) -> np.ndarray | None:
        """The vectors (N, D) where they are, float16 or float32; None: they are in lists, or codes of another kind."""
        index = self._exhaustive[0]
        if isinstance(index, faiss.IndexFlat):
            kind = "<f4"
        elif isinstance(index, faiss.IndexScalarQuantizer) and index.sq.qtype == faiss.ScalarQuantizer.QT_fp16:
            kind = "<f2"
        else:
            return None
        return faiss.rev_swig_ptr(index.codes.data(), index.codes.size()).view(kind).reshape(len(self), index.d)

    @cached_property
    def _exhaustive(self) -> tuple[Any, IndexKind, dict[str, int]]:
        return self.kind.exhaustive(self.index)

    def _search(self, index: Any, queries: np.ndarray, k: int, parameters: Any) -> tuple[np.ndarray, np.ndarray]:
        if self.metric != "l2":
            return index.search(queries, k, params=parameters)
        # for many queries faiss expands the square into dot products, which loses small distances; for a few it does
        # not
        step = FEW if index.metric_type == faiss.METRIC_L2 and isinstance(index, faiss.IndexFlat) else len(queries)
        found = [index.search(queries[i : i + step], k, params=parameters) for i in range(0, len(queries), step)]
        return -np.sqrt(np.maximum(np.concatenate([f[0] for f in found]), 0)), np.concatenate([f[1] for f in found])


def _parameters(kind: IndexKind, among: np.ndarray | None, options: dict[str, int]) -> Any:
    if among is None:
        return _unfiltered(kind.parameters, *options.items())
    parameters = getattr(FAISS, kind.parameters)(sel=FAISS.IDSelectorBitmap(among), **options)
    parameters.bitmap = among  # faiss reads it by address, so it must live as long as the parameters
    return parameters


@lru_cache(maxsize=256)
def _unfiltered(name: str, *options: tuple[str, int]) -> Any:
    """Return parameters without a filter, which searches can share because faiss only reads them."""
    return getattr(FAISS, name)(**dict(options))


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Limit faiss to this many threads, for the calling thread alone.

    A single query gains nothing from several threads, and idle ones spin against the rest of the process.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(number)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
