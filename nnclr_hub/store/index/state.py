"""The index as it was after one commit: a `State` never changes, and is searched without a lock.

    State     main, an index of faiss over most rows; the rows that were added since; which of both exist
    States    the last 64 by the number of their commit; a reader takes the one that its transaction sees

A commit makes a new state from the one before: rows are appended behind those that older states see, and the flags of
existing rows are copied. A fold replaces the main part (see `fold.py`). States before it, or before a larger buffer of
recent rows, are forgotten, and a reader whose transaction is older begins another one.

Callers pass vectors and queries as the catalog has them. The index holds them after the transform of the main part.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import faiss
import numpy as np

from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.index_kinds import FLAT, IndexKind
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import VectorTransform

FAISS: Any = faiss  # whose type stubs lack half of its names
FEW = 16  # queries per call: from 20 on, faiss switches to matrix products, which lose small distances
# A forked child lacks the threads of its parent, which the OpenMP library of faiss would wait for.
os.register_at_fork(after_in_child=lambda: FAISS.omp_set_num_threads(1))
NO_ROWS = np.zeros(0, np.int64)
Found = tuple[np.ndarray, np.ndarray]  # scores (n, k) float32, best first, and rows or row ids (n, k) int64
KEPT = 64  # states, for readers whose transaction began some commits ago
WAIT_SECONDS = 1.0  # for the state of a commit, which follows within moments
# below this share of the main part, comparing with the rows that pass a filter is cheaper than walking past the others
SCAN_SHARE = 0.05
SCAN_BYTES = 64 << 20
MAX_EFFORT = 4096
GROWTH = 65_536  # rows by which a buffer of recent rows grows at most

# takes row ids (n,) int64, returns their vectors (n, D) float32 from the catalog, NaN for rows that do not exist
Fetch = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Main:
    """The main part: an index of faiss over rows 0 ... N-1, which never changes.

    Nothing may be added to `index` afterwards: faiss would move its vectors. The effort of an approximate search
    (efSearch, nprobe) is passed with every search: faiss ignores the setting of the index itself as soon as the
    parameters carry a selector.
    """

    spec: CollectionSpec
    kind: IndexKind
    index: Any
    rids: np.ndarray  # (N,) int64 ascending, the row ids
    effort: int = 0  # efSearch or nprobe that calibration chose; 0 for an exact kind
    calibrated_rows: int = 0  # number of rows at that time
    recall: float = 1.0  # share of the ten nearest that searches found then; 1.0 for an exact kind
    transform: VectorTransform | None = None  # applied to the vectors in the index and to queries
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


class RowSet:
    """Some rows of a state, for example those that pass a filter."""

    def __init__(self, flags: np.ndarray, size: int) -> None:
        self.flags, self.size = flags, size  # (N,) bool, first of the `size` rows of the main part, then of recent ones
        self.recent = flags[size:]

    def __len__(self) -> int:
        return self.count + int(np.count_nonzero(self.recent))

    @cached_property
    def count(self) -> int:
        """The number of rows of the main part."""
        return int(np.count_nonzero(self.flags[: self.size]))

    @cached_property
    def rows(self) -> np.ndarray:
        """Positions in the main part, (n,) int64 ascending."""
        return np.flatnonzero(self.flags[: self.size])

    @cached_property
    def bitmap(self) -> np.ndarray | None:
        """The flags of the main part as faiss reads them, (N / 8,) uint8; None: all rows."""
        return None if self.count == self.size else np.packbits(self.flags[: self.size], bitorder="little")


@dataclass(frozen=True)
class State:
    """The index after one commit."""

    seq: int  # the last change of the commit
    main: Main
    recent_rids: np.ndarray  # (n,) int64 ascending, rows that were added after those of main; all are above them
    recent: np.ndarray  # (n, D) float32, their vectors
    alive: RowSet  # the rows that exist

    @classmethod
    def of(cls, seq: int, main: Main, alive: np.ndarray | None = None) -> State:
        """Return a state without recent rows; `alive`: (N,) bool, None: all rows exist."""
        flags = np.ones(len(main), bool) if alive is None else alive
        return cls(seq, main, NO_ROWS, np.zeros((0, main.spec.dim), np.float32), RowSet(flags, len(main)))

    def live_rids(self) -> np.ndarray:
        """Return the ids of all rows that exist, (n,) int64 ascending."""
        return np.concatenate([self.main.rids[self.alive.rows], self.recent_rids[self.alive.recent]])

    def flags(self, rids: np.ndarray) -> np.ndarray:
        """Return (N,) bool, which rows have one of the ids (n,) int64 ascending; unknown ones are ignored."""
        flags = np.zeros(len(self.alive.flags), bool)
        flags[self.rows(rids)] = True
        return flags

    def rows(self, rids: np.ndarray) -> np.ndarray:
        """Return the rows with ids (n,) int64 ascending, recent ones counted after those of main."""
        recent = _positions(self.recent_rids, rids) + len(self.main)
        return np.concatenate([_positions(self.main.rids, rids), recent])

    @property
    def nbytes(self) -> int:
        """Approximate memory of the index in bytes."""
        transform = self.main.transform
        matrix = 0 if transform is None or transform.matrix is None else transform.matrix.nbytes
        return len(self.main) * self.main.kind.bytes_per_vector(self.main.spec) + self.recent.nbytes + matrix

    def after(self, seq: int, deleted: np.ndarray, added: np.ndarray, vectors: np.ndarray) -> State:
        """Return the state after a commit; only one thread may call it, on the newest state.

        Args:
            seq: its last change.
            deleted, added: (n,) int64 ascending row ids; one that is in both does not exist afterwards.
            vectors: (n, D) float32 of the added rows, as the catalog has them.
        """
        state = self.with_recent(seq, added, self.main.compared(vectors) if len(added) else vectors)
        if not len(deleted) or not len(rows := state.rows(deleted)):
            return state
        flags = state.alive.flags.copy()
        flags[rows] = False
        return replace(state, alive=RowSet(flags, len(self.main)))

    def with_recent(self, seq: int, rids: np.ndarray, vectors: np.ndarray) -> State:
        """Return a state with further rows, whose vectors are transformed."""
        if not len(rids):
            return replace(self, seq=seq)
        flags = np.concatenate([self.alive.flags, np.ones(len(rids), bool)])
        recent = _append(self.recent_rids, rids), _append(self.recent, vectors)
        return State(seq, self.main, *recent, RowSet(flags, len(self.main)))

    def only(self, rids: np.ndarray) -> State:
        """Return the same state in which only rows with these ids exist."""
        return replace(self, alive=RowSet(self.flags(rids), len(self.main)))

    # ---- searching

    def search(
        self,
        queries: np.ndarray,
        k: int,
        fetch: Fetch,
        chosen: RowSet | None = None,
        *,
        exact: bool = False,
        effort: int | None = None,
    ) -> Found:
        """Return the k best rows for each query, best first.

        Args:
            queries: (n, D) float32.
            k: at least 1.
            fetch: reads vectors from the catalog, for an index that has only their compressed form.
            chosen: the rows to consider, all of which exist; None: all.
            exact: compare with everything.
            effort: efSearch or nprobe; None: the calibrated one.

        Returns:
            scores (n, j) float32, higher is nearer, and row ids (n, j) int64, all of which exist in this state; -inf
            and -1 where a query has no more results, which happens only if no more rows exist.
        """
        queries, chosen = self.main.compared(queries), self.alive if chosen is None else chosen
        found = []
        if chosen.count:
            with threads(1) if len(queries) == 1 else nullcontext():
                found.append(self._search_main(queries, k, fetch, chosen, exact, effort or 0))
        check_cancelled()
        if chosen.recent.any():
            some = slice(None) if chosen.recent.all() else chosen.recent  # a slice copies nothing
            matches = compare(queries, self.recent[some], k, self.main.spec.metric)
            found.append(_by_id(matches, self.recent_rids[some]))
        if not found:
            return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
        return merge(found, k)

    def _search_main(
        self, queries: np.ndarray, k: int, fetch: Fetch, chosen: RowSet, exact: bool, effort: int
    ) -> Found:
        main, kind = self.main, self.main.kind
        if chosen.count <= SCAN_SHARE * len(main) or (exact and not kind.lossless):
            return self._scan(queries, k, fetch, chosen.rows)
        if exact:
            return _by_id(main.search(queries, min(k, chosen.count), chosen.bitmap, exhaustive=True), main.rids)
        wanted = min(kind.candidates(k), chosen.count)
        # only this share of the nodes that a walk passes counts
        effort = min(MAX_EFFORT, int((effort or main.effort) * len(main) / chosen.count))
        found = main.search(queries, wanted, chosen.bitmap, effort=effort)
        if found[1][:, -1].min() < 0:  # the walk ended too early
            found = main.search(queries, wanted, chosen.bitmap, exhaustive=True)
        scores, rids = _by_id(found, main.rids)
        if kind.lossless:
            return scores, rids
        # rank candidates from compressed vectors by their exact ones
        unique = np.unique(rids[rids >= 0])
        vectors = main.compared(fetch(unique))
        for query, row_rids, row_scores in zip(queries, rids, scores, strict=True):
            known = row_rids >= 0
            row_scores[known] = score(query, vectors[np.searchsorted(unique, row_rids[known])], main.spec.metric)
        return best(scores, rids, k)

    def _scan(self, queries: np.ndarray, k: int, fetch: Fetch, rows: np.ndarray) -> Found:
        """Compare with rows (n,) int64 ascending of the main part."""
        main, found = self.main, []
        step = max(1, SCAN_BYTES // (4 * main.spec.dim))
        for start in range(0, len(rows), step):
            check_cancelled()
            part = rows[start : start + step]
            vectors = main.vectors(part) if main.kind.lossless else main.compared(fetch(main.rids[part]))
            matches = compare(queries, vectors, k, main.spec.metric)
            found = [merge([*found, _by_id(matches, main.rids[part])], k)]
        return found[0]


class States:
    """The newest states by the number of their commit; one thread at a time replaces the newest."""

    def __init__(self, state: State) -> None:
        self._states = OrderedDict({state.seq: state})
        self._changed = threading.Condition(threading.RLock())
        self.latest = state
        self.added = self.deleted = 0  # rows since the start; an item with another vector counts in both

    def advance(
        self, seq: int, deleted: np.ndarray, added: np.ndarray, vectors: np.ndarray, *, since: int | None = None
    ) -> None:
        """Publish the state after a commit, see `State.after`; with `since`, only if that is the newest."""
        with self._changed:
            if since in (None, self.latest.seq):
                self.added += len(added)
                self.deleted += len(deleted)
                state = self.latest.after(seq, deleted, added, vectors)
                if state.recent.base is not self.latest.recent.base:  # older states would keep the former buffer
                    self._states.clear()
                self._publish(state)

    def replace(self, change: Callable[[State], State | None]) -> None:
        """Publish a state with the rows of the newest in another form, or other rows, and forget all others.

        `change` takes the newest state, which stays the newest until it returns; None changes nothing.
        """
        with self._changed:
            state = change(self.latest)
            if state is not None:
                if state.seq != self.latest.seq:  # the state after a rebuild
                    self.added += len(state.alive)
                    self.deleted += len(self.latest.alive)
                self._states.clear()
                self._publish(state)

    def at(self, seq: int) -> State | None:
        """Return the state after a commit, which may follow in a moment; None if it is forgotten, or does not come."""
        self.wait_for(seq, WAIT_SECONDS)
        return self._states.get(seq)

    def wait_for(self, seq: int, seconds: float) -> None:
        """Wait until the newest state has a change."""
        if self.latest.seq < seq:
            with self._changed:
                self._changed.wait_for(lambda: self.latest.seq >= seq, seconds)

    def _publish(self, state: State) -> None:
        self._states[state.seq] = state
        self.latest = state
        while len(self._states) > KEPT:
            self._states.popitem(last=False)
        self._changed.notify_all()


def _positions(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the positions in `known` of those of `wanted` that are in it; both (n,) int64, ascending."""
    position = np.searchsorted(known, wanted)
    inside = position < len(known)
    position, wanted = position[inside], wanted[inside]
    return position[known[position] == wanted]


def _append(rows: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return rows and new ones behind them, in the same buffer if it has space: older states do not see them."""
    buffer, end = rows if rows.base is None else rows.base, len(rows) + len(new)
    if end > len(buffer):
        buffer = np.empty((end + min(max(end, 1024), GROWTH), *rows.shape[1:]), rows.dtype)
        buffer[: len(rows)] = rows
    buffer[len(rows) : end] = new
    return buffer[:end]


def _by_id(found: Found, rids: np.ndarray) -> Found:
    """Return row ids in the place of rows, and -inf for missing results."""
    scores, rows = found
    missing = rows < 0
    scores[missing] = -np.inf
    return scores, np.where(missing, -1, rids[rows])


# ------------------------------------------------------------------------------ threads and exhaustive comparison


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
