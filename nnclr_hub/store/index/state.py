"""The index as it was after one commit: a `State` never changes, and is searched without a lock.

    State     main, an index of faiss over most rows; the rows that were added since, `recent`; which of both exist
    States    the last 64 by the number of their commit; a reader takes the one that its transaction sees

A commit makes a new state from the one before: rows are appended behind those that older states see, and the marks of
deleted rows are copied. A fold replaces `main` and empties `recent` (see `fold.py`). States before it are forgotten,
and a reader whose transaction is older begins another one.

Callers pass vectors and queries as the catalog has them. The index holds them after the transform of the main part.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.index.compare import Found, best, compare, merge, score
from nnclr_hub.store.index.main_index import MainIndex, threads
from nnclr_hub.store.index.transform import compared
from nnclr_hub.store.index_kinds import FLAT, IndexKind
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import VectorTransform

KEPT = 64  # states, for readers whose transaction began some commits ago
WAIT_SECONDS = 1.0  # for the state of a commit, which follows within moments
# below this share of the main part, comparing with the rows that pass a filter is cheaper than walking past the others
SCAN_SHARE = 0.05
SCAN_BYTES = 64 << 20
MAX_EFFORT = 4096
# up to this share of deleted rows, they are dropped from the results, and SLACK more results are requested
DROP_SHARE = 0.05
SLACK = 4

# takes row ids (n,) int64, returns their vectors (n, D) float32 from the catalog, NaN for rows that do not exist
Fetch = Callable[[np.ndarray], np.ndarray]
NO_ROWS = np.zeros(0, np.int64)


class Recent:
    """Rows in the order in which they were added. One thread appends; nothing moves or changes behind a reader.

    Args:
        dim: D.
        block: rows per block of vectors.
    """

    def __init__(self, dim: int, block: int) -> None:
        self._dim, self._block = dim, block
        self._vectors: list[np.ndarray] = []
        self._rids = np.zeros(0, np.int64)

    def append(self, start: int, rids: np.ndarray, vectors: np.ndarray) -> None:
        """Add rows from place `start` on: rids (n,) int64 ascending and above those before, vectors (n, D) float32."""
        count = start + len(rids)
        if count > len(self._rids):
            grown = np.zeros(max(self._block, 2 * count), np.int64)
            grown[:start] = self._rids[:start]  # into a new array: a reader keeps the old one
            self._rids = grown
        self._rids[start:count] = rids
        while len(self._vectors) * self._block < count:
            self._vectors.append(np.empty((self._block, self._dim), np.float32))
        for first, part in self._parts(start, count):
            part[:] = vectors[first - start : first - start + len(part)]

    def rids(self, count: int) -> np.ndarray:
        """Return the ids of the first rows, (count,) int64."""
        return self._rids[:count]

    def blocks(self, count: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the vectors of the first rows: their places, and (m, D) float32."""
        for first, part in self._parts(0, count):
            yield slice(first, first + len(part)), part

    def vectors(self, start: int, stop: int) -> np.ndarray:
        """Return a copy of the vectors of rows start ... stop-1."""
        parts = [part for _, part in self._parts(start, stop)]
        return np.concatenate(parts) if parts else np.zeros((0, self._dim), np.float32)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        while start < stop:
            place = start % self._block
            end = min(stop, start - place + self._block)
            yield start, self._vectors[start // self._block][place : place + end - start]
            start = end


class RowSet:
    """Rows of a state, all of which exist: those that pass a filter.

    Args:
        flags: (N,) bool, of the main part.
        recent: (m,) int64 ascending, ids of recent rows.
    """

    def __init__(self, flags: np.ndarray, recent: np.ndarray) -> None:
        self.flags = flags
        self.recent = recent

    @classmethod
    def of(cls, rids: np.ndarray, main_rids: np.ndarray) -> RowSet:
        """Return a set of row ids (n,) int64 ascending, for a main part with `main_rids`."""
        place = np.searchsorted(rids, main_rids[-1], "right") if len(main_rids) else 0
        flags = np.zeros(len(main_rids), bool)
        flags[positions(main_rids, rids[:place])] = True
        return cls(flags, rids[place:])

    def __len__(self) -> int:
        return self.count + len(self.recent)

    @cached_property
    def rows(self) -> np.ndarray:
        """Positions in the main part, (n,) int64 ascending."""
        return np.flatnonzero(self.flags)

    @cached_property
    def count(self) -> int:
        """The number of rows of the main part."""
        return int(np.count_nonzero(self.flags))

    @cached_property
    def bitmap(self) -> np.ndarray:
        """The flags as faiss reads them, (N / 8,) uint8 with little-endian bits."""
        return np.packbits(self.flags, bitorder="little")


@dataclass(frozen=True)
class State:
    """The index after one commit.

    seq: the last change of the commit.
    spec: of the collection.
    main: the part that a build made, or None.
    rids: (N,) int64 ascending, row ids of main.
    live: bitmap (N / 8,) uint8, little-endian bits, of the rows of main that exist; None: all.
    deleted: number of rows of main that do not exist.
    recent, count: rows that were added since, and how many of them this state has; all are above those of main.
    recent_live: (count,) bool, which of them exist; None: all.
    """

    seq: int
    spec: CollectionSpec
    main: MainIndex | None
    rids: np.ndarray
    recent: Recent
    live: np.ndarray | None = None
    deleted: int = 0
    count: int = 0
    recent_live: np.ndarray | None = None

    # ---- what it has

    @property
    def transform(self) -> VectorTransform | None:
        """The transform of vectors and queries, or None."""
        return None if self.main is None else self.main.transform

    @property
    def kind(self) -> IndexKind:
        """The kind of index that answers searches."""
        return self.main.kind if self.main else FLAT

    @property
    def recent_rids(self) -> np.ndarray:
        """Ids of the recent rows, (count,) int64, deleted ones included."""
        return self.recent.rids(self.count)

    @property
    def live_count(self) -> int:
        """The number of rows that exist."""
        gone = 0 if self.recent_live is None else self.count - int(np.count_nonzero(self.recent_live))
        return len(self.rids) - self.deleted + self.count - gone

    def live_rows(self) -> np.ndarray:
        """Return the positions of the rows of main that exist, (n,) int64 ascending."""
        return np.arange(len(self.rids)) if self.live is None else np.flatnonzero(_bits(self.live, len(self.rids)))

    def live_rids(self) -> np.ndarray:
        """Return the ids of all rows that exist, (n,) int64 ascending."""
        recent = self.recent_rids
        recent = recent if self.recent_live is None else recent[self.recent_live]
        return np.concatenate([self.rids if self.live is None else self.rids[self.live_rows()], recent])

    @property
    def nbytes(self) -> int:
        """Approximate memory of the index in bytes."""
        matrix = 0 if self.transform is None or self.transform.matrix is None else self.transform.matrix.nbytes
        return len(self.rids) * self.kind.bytes_per_vector(self.spec) + self.count * 4 * self.spec.dim + matrix

    # ---- the next state

    def after(self, seq: int, deleted: np.ndarray, added: np.ndarray, vectors: np.ndarray) -> State:
        """Return the state after a commit; only one thread may call it, on the newest state.

        Args:
            seq: its last change.
            deleted, added: (n,) int64 ascending row ids; one that is in both does not exist afterwards.
            vectors: (n, D) float32 of the added rows, as the catalog has them.
        """
        state = replace(self, seq=seq)
        if len(added):
            self.recent.append(self.count, added, compared(self.transform, vectors))
            mine = self.recent_live
            mine = None if mine is None else np.concatenate([mine, np.ones(len(added), bool)])
            state = replace(state, count=self.count + len(added), recent_live=mine)
        return state.without(deleted) if len(deleted) else state

    def without(self, rids: np.ndarray) -> State:
        """Return the same state without some rows (n,) int64 ascending; unknown ones are ignored."""
        rows, places = positions(self.rids, rids), positions(self.recent_rids, rids)
        live, deleted, mine = self.live, self.deleted, self.recent_live
        if len(rows):
            live = np.full(-(-len(self.rids) // 8), 255, np.uint8) if live is None else live.copy()
            deleted += int(np.count_nonzero(live[rows >> 3] & (1 << (rows & 7))))
            np.bitwise_and.at(live, rows >> 3, ~(1 << (rows & 7)).astype(np.uint8))
        if len(places):
            mine = np.ones(self.count, bool) if mine is None else mine.copy()
            mine[places] = False
        return replace(self, live=live, deleted=deleted, recent_live=mine)

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
            chosen: the rows to consider; None: all.
            exact: compare with everything.
            effort: efSearch or nprobe; None: the calibrated one.

        Returns:
            scores (n, j) float32, higher is nearer, and row ids (n, j) int64, all of which exist in this state; -inf
            and -1 where a query has no more results, which happens only if no more rows exist.
        """
        queries = compared(self.transform, queries)
        found = []
        if self.main is not None:
            search = _MainSearch(self, self.main, queries, k, fetch, exact, effort)
            if len(queries) == 1:
                with threads(1):
                    found.append(search.run(chosen))
            else:
                found.append(search.run(chosen))
        found += self._scan_recent(queries, k, chosen)
        return merge(found, k) if found else _nothing(len(queries))

    def _scan_recent(self, queries: np.ndarray, k: int, chosen: RowSet | None) -> list[Found]:
        rids, wanted = self.recent_rids, self.recent_live
        if chosen is not None:
            wanted = np.zeros(self.count, bool)
            wanted[positions(rids, chosen.recent)] = True
        found = []
        for place, vectors in self.recent.blocks(self.count):
            check_cancelled()
            known, those = rids[place], None if wanted is None else wanted[place]
            if those is not None and not those.all():
                vectors, known = vectors[those], known[those]
            if len(known):
                found.append(compare(queries, vectors, known, k, self.spec.metric))
        return found


@dataclass(frozen=True)
class _MainSearch:
    """A search of the main part of a state; the fields are the arguments of `State.search`."""

    state: State
    main: MainIndex
    queries: np.ndarray
    k: int
    fetch: Fetch
    exact: bool
    effort: int | None

    def run(self, chosen: RowSet | None) -> Found:
        state, total = self.state, len(self.state.rids)
        if chosen is not None:
            if self.exact or chosen.count <= SCAN_SHARE * total:
                return self._scan(chosen.rows)
            return self._walk(chosen.bitmap, chosen.count)
        if self.exact and not self.main.lossless:
            return self._scan(state.live_rows())
        if not state.deleted:
            return self._walk(None, total)
        if not self.exact and state.deleted <= DROP_SHARE * total:
            found = self._walk(None, total, SLACK, drop=True)
            if (found[1] >= 0).sum(axis=1).min() >= min(self.k, total - state.deleted):
                return found
        return self._walk(state.live, total - state.deleted)

    def _walk(self, bitmap: np.ndarray | None, candidates: int, slack: int = 0, *, drop: bool = False) -> Found:
        """Search with the index, and exhaustively if that finds too few; `drop` leaves out deleted rows afterwards."""
        main = self.main
        k = main.kind.candidates(self.k) + slack
        wanted, k = min(k, candidates), min(k, len(main))
        effort = self.effort or main.effort
        if candidates < len(main):  # only this share of the nodes that a walk passes counts
            effort = min(MAX_EFFORT, int(effort * len(main) / max(1, candidates)))
        scores, rows = (
            main.search_all(self.queries, k, bitmap) if self.exact else main.search(self.queries, k, bitmap, effort)
        )
        if wanted and rows[:, wanted - 1].min() < 0:
            scores, rows = main.search_all(self.queries, k, bitmap)
        missing = rows < 0
        if drop:
            assert self.state.live is not None
            missing |= (self.state.live[rows >> 3] >> (rows & 7)) & 1 == 0
        rids = self.state.rids[rows]
        scores[missing], rids[missing] = -np.inf, -1
        if not main.lossless:
            return self._rescore(scores, rids)
        return best(scores, rids, self.k) if drop else (scores, rids)

    def _scan(self, rows: np.ndarray) -> Found:
        """Compare with rows (n,) int64 ascending of the main part."""
        in_place = self.main.search_rows(self.queries, self.k, rows)
        if in_place is not None:
            scores, places = in_place
            scores[places < 0] = -np.inf
            return scores, np.where(places < 0, -1, self.state.rids[places])
        found: list[Found] = []
        step = max(1, SCAN_BYTES // (4 * self.queries.shape[1]))
        for start in range(0, len(rows), step):
            check_cancelled()
            some = rows[start : start + step]
            rids = self.state.rids[some]
            vectors = self.main.vectors(some) if self.main.lossless else self._stored(rids)
            part = compare(self.queries, vectors, rids, self.k, self.main.metric)
            found = [merge([*found, part], self.k)]
        return found[0] if found else _nothing(len(self.queries))

    def _rescore(self, scores: np.ndarray, rids: np.ndarray) -> Found:
        """Rank candidates from compressed vectors by their exact ones."""
        wanted = np.unique(rids[rids >= 0])
        vectors = self._stored(wanted)
        for query, known, scored in zip(self.queries, rids, scores, strict=True):
            some = known >= 0
            scored[some] = score(query, vectors[np.searchsorted(wanted, known[some])], self.main.metric)
        return best(scores, rids, self.k)

    def _stored(self, rids: np.ndarray) -> np.ndarray:
        return compared(self.main.transform, self.fetch(rids))


class States:
    """The newest states by the number of their commit; one thread at a time replaces the newest.

    Args:
        state: the first.
    """

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
            if since not in (None, self.latest.seq):
                return
            state = self.latest.after(seq, deleted, added, vectors)
            self.added += len(added)
            self.deleted += len(deleted)
            self._publish(state)

    def replace(self, change: Callable[[State], State | None]) -> bool:
        """Publish a state that has the same rows as the newest in another form, or other rows, and forget all others.

        Args:
            change: takes the newest state, which stays the newest until it returns; returns None to change nothing.

        Returns:
            Whether something was changed.
        """
        with self._changed:
            state = change(self.latest)
            if state is None:
                return False
            if state.seq != self.latest.seq:  # of a rebuild
                self.added += state.live_count
                self.deleted += self.latest.live_count
            self._states.clear()
            self._publish(state)
            return True

    def at(self, seq: int) -> State | None:
        """Return the state after a commit; None if it is forgotten, or does not come.

        Args:
            seq: of the transaction in which rows will be looked up; its state may follow in a moment.
        """
        if self.latest.seq < seq:
            with self._changed:
                self._changed.wait_for(lambda: self.latest.seq >= seq, WAIT_SECONDS)
        return self._states.get(seq)

    def wait_for(self, seq: int, seconds: float) -> None:
        """Wait until the newest state has a change."""
        with self._changed:
            self._changed.wait_for(lambda: self.latest.seq >= seq, seconds)

    def _publish(self, state: State) -> None:
        self._states[state.seq] = state
        self.latest = state
        while len(self._states) > KEPT:
            self._states.popitem(last=False)
        self._changed.notify_all()


def empty_state(spec: CollectionSpec, block: int, seq: int = 0) -> State:
    """Return a state without rows."""
    return State(seq, spec, None, NO_ROWS, Recent(spec.dim, block))


def positions(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the positions in `known` of those of `wanted` that are in it; both (n,) int64, ascending."""
    place = np.searchsorted(known, wanted)
    inside = place < len(known)
    place, wanted = place[inside], wanted[inside]
    return place[known[place] == wanted]


def _bits(bitmap: np.ndarray, count: int) -> np.ndarray:
    return np.unpackbits(bitmap, count=count, bitorder="little")


def _nothing(queries: int) -> Found:
    return np.zeros((queries, 0), np.float32), np.zeros((queries, 0), np.int64)
