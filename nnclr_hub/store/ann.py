"""The index: faiss as a cache of the catalog.

A main part that never changes, a delta that grows, and marks on what has died since. One writer
mutates; any number of threads search meanwhile, for they work on a `_Parts` that is swapped as a
whole, a delta whose rows are written before its count moves, and marks that only ever go from alive
to dead. What a search returns are row ids, which the caller must look up in the catalog: a row that
died a moment ago is simply not there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import faiss
import numpy as np

from nnclr_hub.store.base import CollectionSpec

SMALLEST_DELTA = 4096
# below this share of the main part a filter is cheaper as a scan of its rows alone
SCAN_SHARE = 0.05


@dataclass
class _Parts:
    """One generation: swapped whole, so that a reader never sees halves of two.

    main: faiss index over `main_rids`, or None when empty.
    main_vectors: (N, D) float32, the same memory as the index.
    main_rids: (N,) int64, ascending.
    main_dead: (N,) bool.
    delta: (capacity, D) float32; delta_rids (capacity,) int64 ascending; delta_dead (capacity,) bool.
    count: rows of the delta in use; moved only after they are written.
    """

    main: faiss.Index | None
    main_vectors: np.ndarray
    main_rids: np.ndarray
    main_dead: np.ndarray
    delta: np.ndarray
    delta_rids: np.ndarray
    delta_dead: np.ndarray
    count: int = 0


class AnnIndex:
    """Row ids by nearness; see the module.

    Args:
        spec: of the collection.
    """

    def __init__(self, spec: CollectionSpec) -> None:
        self._spec = spec
        self._mutation = threading.Lock()
        self._parts = self._build(np.zeros(0, np.int64), np.zeros((0, spec.dim), np.float32))

    # ---- writing: one thread at a time

    def add(self, rids: np.ndarray, vectors: np.ndarray) -> None:
        """Makes rows searchable.

        Args:
            rids: (n,) int64, ascending and above all earlier ones.
            vectors: (n, D) float32, as the collection keeps them.
        """
        with self._mutation:
            parts = self._parts
            if parts.count + len(rids) > len(parts.delta):
                self._fold(rids, vectors)
                return
            place = slice(parts.count, parts.count + len(rids))
            parts.delta[place] = vectors
            parts.delta_rids[place] = rids
            parts.count += len(rids)

    def remove(self, rids: np.ndarray) -> None:
        """Marks rows dead; unknown ones are passed over."""
        with self._mutation:
            parts = self._parts
            for known, dead in (
                (parts.main_rids, parts.main_dead),
                (parts.delta_rids[: parts.count], parts.delta_dead),
            ):
                dead[_positions(known, rids)] = True

    def reset(self, rids: np.ndarray, vectors: np.ndarray) -> None:
        """Starts over with these rows: rids (N,) int64 ascending, vectors (N, D) float32."""
        with self._mutation:
            self._parts = self._build(rids, vectors)

    def compact(self) -> None:
        """Folds the delta into the main part and forgets the dead."""
        with self._mutation:
            self._fold(np.zeros(0, np.int64), np.zeros((0, self._spec.dim), np.float32))

    def live(self) -> tuple[np.ndarray, np.ndarray]:
        """Row ids (N,) int64 ascending and vectors (N, D) float32 of everything alive, as copies."""
        parts = self._parts
        count = parts.count
        main, delta = ~parts.main_dead, ~parts.delta_dead[:count]
        return (
            np.concatenate([parts.main_rids[main], parts.delta_rids[:count][delta]]),
            np.concatenate([parts.main_vectors[main], parts.delta[:count][delta]]),
        )

    # ---- searching: any thread

    def search(self, query: np.ndarray, k: int, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The k best rows, best first.

        Args:
            query: (D,) float32.
            k: at least 1.
            among: (n,) int64 ascending row ids; only these are candidates.

        Returns:
            scores (<= k,) float32, higher is nearer, and row ids (<= k,) int64. Fewer than k only if
            there are no more.
        """
        parts = self._parts
        count = parts.count
        with _one_thread():
            found = [self._search_main(parts, query, k, among), self._search_delta(parts, count, query, k, among)]
        scores = np.concatenate([scores for scores, _ in found])
        rids = np.concatenate([rids for _, rids in found])
        best = np.argsort(-scores, kind="stable")[:k]
        return scores[best], rids[best]

    def _search_main(
        self, parts: _Parts, query: np.ndarray, k: int, among: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if parts.main is None:
            return _NOTHING
        if among is not None:
            rows = _positions(parts.main_rids, among)
            rows = rows[~parts.main_dead[rows]]
            if len(rows) < SCAN_SHARE * len(parts.main_rids):
                return _best(self._scores(parts.main_vectors[rows], query), parts.main_rids[rows], k)
            alive = np.zeros(len(parts.main_rids), bool)
            alive[rows] = True
        else:
            alive = ~parts.main_dead if parts.main_dead.any() else None
        # the selector reads the bitmap by address: the name keeps it alive while faiss works
        bitmap = None if alive is None else np.packbits(alive, bitorder="little")
        selector = None if bitmap is None else faiss.IDSelectorBitmap(bitmap)  # pyright: ignore[reportCallIssue]
        parameters = None if selector is None else faiss.SearchParameters(sel=selector)  # pyright: ignore[reportCallIssue]
        values, rows = parts.main.search(query[None], min(k, len(parts.main_rids)), params=parameters)
        values, rows = values[0][rows[0] >= 0], rows[0][rows[0] >= 0]
        return -np.sqrt(np.maximum(values, 0)) if self._spec.metric == "l2" else values, parts.main_rids[rows]

    def _search_delta(
        self, parts: _Parts, count: int, query: np.ndarray, k: int, among: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        alive = ~parts.delta_dead[:count]
        if among is not None:
            chosen = np.zeros(count, bool)
            chosen[_positions(parts.delta_rids[:count], among)] = True
            alive &= chosen
        if alive.all():
            return _best(self._scores(parts.delta[:count], query), parts.delta_rids[:count], k)
        return _best(self._scores(parts.delta[:count][alive], query), parts.delta_rids[:count][alive], k)

    def _scores(self, vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
        if self._spec.metric == "l2":
            return -np.linalg.norm(vectors - query, axis=1)
        return vectors @ query

    # ---- inside

    def _fold(self, rids: np.ndarray, vectors: np.ndarray) -> None:
        live_rids, live_vectors = self.live()
        self._parts = self._build(np.concatenate([live_rids, rids]), np.concatenate([live_vectors, vectors]))

    def _build(self, rids: np.ndarray, vectors: np.ndarray) -> _Parts:
        """A new generation with everything in the main part; the delta grows with it, so folding stays rare."""
        dim, total = self._spec.dim, len(rids)
        main = None
        if total:
            main = faiss.IndexFlatL2(dim) if self._spec.metric == "l2" else faiss.IndexFlatIP(dim)
            main.add(np.ascontiguousarray(vectors, np.float32))
            vectors = faiss.rev_swig_ptr(main.get_xb(), total * dim).reshape(total, dim)
        capacity = max(SMALLEST_DELTA, total // 4)
        return _Parts(
            main,
            vectors,
            rids,
            np.zeros(total, bool),
            np.zeros((capacity, dim), np.float32),
            np.zeros(capacity, np.int64),
            np.zeros(capacity, bool),
        )


_NOTHING = (np.zeros(0, np.float32), np.zeros(0, np.int64))


@contextmanager
def _one_thread() -> Iterator[None]:
    """A single query gains nothing from faiss's threads, and idle ones spin against the rest of the process."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # of the calling thread alone
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


def _positions(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where those of `wanted` that are in `known` stand; both ascending."""
    wanted = np.asarray(wanted, np.int64)
    place = np.searchsorted(known, wanted)
    place, wanted = place[place < len(known)], wanted[place < len(known)]
    return place[known[place] == wanted]


def _best(scores: np.ndarray, rids: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    if len(scores) > k:
        top = np.argpartition(-scores, k - 1)[:k]
        scores, rids = scores[top], rids[top]
    return scores, rids
