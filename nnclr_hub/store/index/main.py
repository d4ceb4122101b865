"""The main part of an index: rows that faiss searches, and that never change.

The effort of an approximate search (efSearch, nprobe) is passed with every search: faiss ignores the setting of the
index itself as soon as the parameters carry a selector.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import faiss
import numpy as np

from nnclr_hub.store.index_kinds import FLAT, IndexKind
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import VectorTransform

FAISS: Any = faiss  # whose type stubs lack half of its names
FEW = 16  # queries per call: from 20 on, faiss switches to matrix products, which lose small distances
# A forked child lacks the threads of its parent, which the OpenMP library of faiss would wait for.
os.register_at_fork(after_in_child=lambda: FAISS.omp_set_num_threads(1))
NO_ROWS = np.zeros(0, np.int64)
Found = tuple[np.ndarray, np.ndarray]  # scores (n, k) float32, best first, and rows or row ids (n, k) int64


@dataclass(frozen=True)
class Main:
    """An index over rows 0 ... N-1. Nothing may be added to `index` afterwards: faiss would move its vectors."""

    spec: CollectionSpec
    kind: IndexKind
    index: Any
    rids: np.ndarray  # (N,) int64 ascending, the row ids
    effort: int = 0  # efSearch or nprobe that calibration chose; 0 for an exact kind
    calibrated_rows: int = 0  # number of rows at that time
    recall: float = 1.0  # share of the ten nearest that searches found then; 1.0 for an exact kind
    transform: VectorTransform | None = None  # of the vectors in the index and of queries
    fitted_rows: int = 0  # live rows of the collection when the transform was fitted

    @classmethod
    def empty(cls, spec: CollectionSpec) -> Main:
        return cls(spec, FLAT, None, NO_ROWS)

    def __len__(self) -> int:
        return len(self.rids)

    def compared(self, vectors: np.ndarray) -> np.ndarray:
        """Return vectors (n, D) float32 as they are compared; NaN stays NaN."""
        return vectors if self.transform is None else self.transform(vectors)

    def search(
        self,
        queries: np.ndarray,
        k: int,
        bitmap: np.ndarray | None = None,
        *,
        effort: int = 0,
        exhaustive: bool = False,
    ) -> Found:
        """Return scores and rows; missing results have row -1.

        Args:
            queries: (n, D) float32, transformed.
            k: at least 1.
            bitmap: (N / 8,) uint8, little-endian bits, of the rows to consider; None: all.
            effort: efSearch or nprobe; 0: the calibrated one.
            exhaustive: look at every row.
        """
        index, kind, options = self._exhaustive if exhaustive else (self.index, self.kind, None)
        if options is None:
            options = kind.search_options(index, k, effort or self.effort)
        selector = {} if bitmap is None else {"sel": FAISS.IDSelectorBitmap(bitmap)}
        parameters = getattr(FAISS, kind.parameters)(**selector, **options)
        parameters.bitmap = bitmap  # faiss reads it by address, so it must live as long as the parameters
        if self.spec.metric != "l2":
            return index.search(queries, k, params=parameters)
        step = FEW if isinstance(index, faiss.IndexFlat) else len(queries)
        found = [index.search(queries[i : i + step], k, params=parameters) for i in range(0, len(queries), step)]
        return -np.sqrt(np.maximum(np.concatenate([f[0] for f in found]), 0)), np.concatenate([f[1] for f in found])

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors (m, D) float32 of rows (m,) int64, as the index holds them."""
        if self._stored is not None:  # faiss takes twenty times as long for f16
            return self._stored[rows].astype(np.float32, copy=False)
        return self.index.reconstruct_batch(np.ascontiguousarray(rows, np.int64))

    @cached_property
    def _stored(self) -> np.ndarray | None:
        """The vectors (N, D) where they are, float16 or float32; None: they are in lists, or codes of another kind."""
        index = self._exhaustive[0]
        is_f16 = isinstance(index, faiss.IndexScalarQuantizer) and index.sq.qtype == faiss.ScalarQuantizer.QT_fp16
        if not is_f16 and not isinstance(index, faiss.IndexFlat):
            return None
        stored = faiss.rev_swig_ptr(index.codes.data(), index.codes.size())
        return stored.view("<f2" if is_f16 else "<f4").reshape(len(self), index.d)

    @cached_property
    def _exhaustive(self) -> tuple[Any, IndexKind, dict[str, int]]:
        return self.kind.exhaustive(self.index)


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


# ------------------------------------------------------------------------------ exhaustive comparison


# faiss is used although numpy's matrix product is as fast: the threads that numpy wakes keep spinning for a while
# against those of faiss, and every graph search at the same time takes twice as long.


def compare(queries: np.ndarray, vectors: np.ndarray, k: int, metric: str, few: int = FEW) -> Found:
    """Return scores and rows of the k nearest of vectors (m, D) to queries (n, D); -inf for a vector of NaN."""
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    vectors, k = np.ascontiguousarray(vectors), min(k, len(vectors))
    found = [faiss.knn(queries[i : i + few], vectors, k, metric=kind) for i in range(0, len(queries), few)]
    scores, rows = np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])
    if metric == "l2":
        scores = -np.sqrt(np.maximum(scores, 0))
    scores[rows < 0] = -np.inf
    return scores, rows


def nearest(metric: str, batches: Iterator[np.ndarray], queries: np.ndarray, k: int) -> Found:
    """Return scores and positions of the k nearest of the vectors of several batches (n, D) float32."""
    found, start = [], 0
    for batch in batches:
        if len(batch):
            scores, rows = compare(queries, batch, k, metric, len(queries))
            found, start = [*found, (scores, rows + start)], start + len(batch)
    return merge(found, k)


def score(query: np.ndarray, vectors: np.ndarray, metric: str) -> np.ndarray:
    """Return the scores (m,) float32 of vectors (m, D) for a query (D,); -inf for a vector of NaN."""
    scores = -np.linalg.norm(vectors - query, axis=1) if metric == "l2" else np.einsum("ij,j->i", vectors, query)
    return np.where(np.isnan(scores), -np.inf, scores)


def merge(found: list[Found], k: int) -> Found:
    """Return the k best of several results for the same queries. A single result is returned unchanged."""
    if len(found) == 1:
        return found[0]
    return best(np.concatenate([f[0] for f in found], axis=1), np.concatenate([f[1] for f in found], axis=1), k)


def best(scores: np.ndarray, rows: np.ndarray, k: int) -> Found:
    """Return the k best columns of scores (n, m) and rows (n, m), best first."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
