"""The index: a cache of the catalog, for any number of searching threads beside one that writes.

A main part that never changes, marks on what has died of it, and a delta of what came since. A search
names the change that its view of the catalog is up to and sees the rows as they were then: one that
is being replaced is found as the old or as the new one, never as neither. Rows that are newer than the
view come back too; the caller looks row ids up in the catalog, where they are not there yet.

Nothing moves under a reader: it works on a `Parts` that is swapped as a whole. `fold` takes the delta
into a new main part beside the running searches; a search whose view is older than what was forgotten
then must be repeated with a newer view.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nnclr_hub.store.ann.compare import Found, compare, joined, ranked, score
from nnclr_hub.store.ann.deaths import Deaths, bitmap_of
from nnclr_hub.store.ann.delta import ALIVE, Delta, positions
from nnclr_hub.store.ann.main_index import REFINED, MainIndex, threads
from nnclr_hub.store.spec import CollectionSpec

# below this share of the main part a filter is cheaper as a scan of its rows than as a walk past the others
SCAN_SHARE = 0.05
LARGEST_EFFORT = 4096
# up to this share of dead rows they are found and dropped; a few more are asked for in their place
DROP_SHARE = 0.05
SLACK = 4
SCAN_BYTES = 64 << 20
LATEST = ALIVE - 1

# row ids (n,) int64 to their vectors (n, D) float32 in the catalog, NaN for rows that are not there
Fetch = Callable[[np.ndarray], np.ndarray]


class ViewTooOld(Exception):
    """The index has forgotten rows that this view of the catalog still has."""


@dataclass
class Parts:
    """What a search works on.

    main: the part that does not change, or None when empty.
    rids: (N,) int64 ascending, of the rows of main.
    deaths: of rows of main.
    delta: what came since.
    floor: the change up to which the dead are forgotten.
    """

    main: MainIndex | None
    rids: np.ndarray
    deaths: Deaths
    delta: Delta
    floor: int = 0


@dataclass(frozen=True)
class State:
    """An index at one change, for writing it down.

    seq: the change.
    main, rids: as in `Parts`.
    dead: (n,) int64, rows of main that had died.
    delta_rids, delta_vectors: (m,) int64 and (m, D) float32, what lived of the delta.
    """

    seq: int
    main: MainIndex | None
    rids: np.ndarray
    dead: np.ndarray
    delta_rids: np.ndarray
    delta_vectors: np.ndarray


class AnnIndex:
    """Row ids by nearness; see the module.

    Args:
        spec: of the collection.
        budget: bytes that the main part may take.
    """

    def __init__(self, spec: CollectionSpec, budget: int) -> None:
        self.spec = spec
        self.budget = budget
        self.seq = 0  # the change that searches see
        self.mutation = threading.Lock()
        self._news = threading.Condition()
        self.parts = Parts(None, np.zeros(0, np.int64), Deaths(0), Delta(spec.dim, spec.metric))

    # ---- writing: one thread at a time

    def apply(self, seq: int, died: np.ndarray, came: np.ndarray, vectors: np.ndarray) -> None:
        """One change, whole: died and came (n,) int64 ascending row ids, vectors (n, D) float32 of those that came."""
        with self.mutation:
            if len(came):
                self.parts.delta.append(came, vectors)
            if len(died):
                self.parts.deaths.kill(positions(self.parts.rids, died), seq)
                self.parts.delta.kill(died, seq)
            self.seq = seq
        with self._news:
            self._news.notify_all()

    def restore(self, state: State) -> None:
        """Becomes what was written down."""
        deaths, delta = Deaths(len(state.rids)), Delta(self.spec.dim, self.spec.metric)
        deaths.kill(state.dead, state.seq)
        delta.append(state.delta_rids, state.delta_vectors)
        with self.mutation:
            self.parts = Parts(state.main, state.rids, deaths, delta, floor=state.seq)
            self.seq = state.seq

    def clear(self) -> None:
        """Lets go of everything; a search that comes too late hears that its view is too old, not that it is empty."""
        with self.mutation:
            self.parts = Parts(None, np.zeros(0, np.int64), Deaths(0), Delta(self.spec.dim, self.spec.metric), ALIVE)

    def forget(self) -> None:
        """Refuses views that are older than the last change, of which the index does not know all."""
        with self.mutation:
            self.parts.floor = self.seq

    # ---- reading

    def state(self) -> State:
        """The index as it is now; what it refers to does not change later."""
        with self.mutation:
            parts, seq = self.parts, self.seq
            rids, vectors, died = parts.delta.rows(0, parts.delta.count)
            living = parts.deaths.living(len(parts.rids))
        dead = np.setdiff1d(np.arange(len(parts.rids)), living, assume_unique=True)
        alive = died == ALIVE
        return State(seq, parts.main, parts.rids, dead, rids[alive], vectors[alive])

    def live_rids(self) -> np.ndarray:
        """Row ids (N,) int64 ascending of everything alive."""
        with self.mutation:
            parts = self.parts
            rids, _, died = parts.delta.rows(0, parts.delta.count)
            return np.concatenate([parts.rids[parts.deaths.living(len(parts.rids))], rids[died == ALIVE]])

    @property
    def kind(self) -> str:
        """The kind of index that answers now."""
        main = self.parts.main
        return main.kind if main else "flat"

    def wait_for(self, seq: int, seconds: float = 1.0) -> None:
        """Waits until change `seq` is in, which follows within moments of its commit."""
        if self.seq < seq:
            with self._news:
                self._news.wait_for(lambda: self.seq >= seq, seconds)

    def search(
        self,
        queries: np.ndarray,
        k: int,
        *,
        fetch: Fetch,
        among: np.ndarray | None = None,
        at: int = LATEST,
        exact: bool = False,
        effort: int | None = None,
        pass_dead: bool = False,
    ) -> Found:
        """The k best rows for each query, best first.

        Args:
            queries: (n, D) float32.
            k: at least 1.
            fetch: reads vectors of the catalog, where the index has only their compressed form.
            among: (m,) int64 ascending row ids; only these are candidates.
            at: the change that the caller's view is up to.
            exact: look at everything.
            effort: efSearch or nprobe; None: as it was judged.
            pass_dead: walk past dead rows, however few; for who got too many of them.

        Returns:
            scores (n, j) float32, higher is nearer, and row ids (n, j) int64; -inf and -1 where a query has no
            more, which is only if there are no more. Some rows may be dead, or newer than the view.

        Raises:
            ViewTooOld: rows that lived at `at` are forgotten.
        """
        parts = self.parts
        if at < parts.floor:
            raise ViewTooOld
        search = _Search(parts, queries, k, fetch, among, at, exact, effort, pass_dead)
        if len(queries) == 1:
            with threads(1):
                found = [search.main()]
        else:
            found = [search.main()]
        if parts.delta.count:
            found.append(parts.delta.scan(queries, k, among, at))
        if len(found) == 1:
            return found[0]
        # as many as the main part gave: of these some may be dead
        wide = max(k, found[0][0].shape[1])
        return ranked(
            np.concatenate([f[0] for f in found], axis=1), np.concatenate([f[1] for f in found], axis=1), wide
        )


@dataclass(frozen=True)
class _Search:
    """One search of a main part; the fields are the arguments of `AnnIndex.search`."""

    parts: Parts
    queries: np.ndarray
    k: int
    fetch: Fetch
    among: np.ndarray | None
    at: int
    exact: bool
    effort: int | None
    pass_dead: bool

    def main(self) -> Found:
        main, total = self.parts.main, len(self.parts.rids)
        if main is None:
            return np.zeros((len(self.queries), 0), np.float32), np.zeros((len(self.queries), 0), np.int64)
        if self.among is not None:
            rows = positions(self.parts.rids, self.among)
            if self.exact or len(rows) <= SCAN_SHARE * total:
                return self._scan(main, rows)
            return self._walk(main, bitmap_of(rows, total), len(rows))
        dead = self.parts.deaths.count
        # what has died since the view was taken is still alive in it
        if self.exact and not main.lossless:
            living = self.parts.deaths.living(total)
            return self._scan(main, np.union1d(living, self._late()))
        if not self.exact and not self.pass_dead and dead <= DROP_SHARE * total:
            # so few are dropped by who looks the rows up; walking past them would cost every search
            return self._walk(main, None, total, SLACK if dead else 0)
        found = self._walk(main, self.parts.deaths.bitmap if dead else None, total - dead)
        rows = self._late()
        if not len(rows):
            return found
        known = np.isin(found[1], self.parts.rids[rows])
        found[0][known], found[1][known] = -np.inf, -1
        more = self._scan(main, rows)
        return joined([found, more], self.k)

    def _late(self) -> np.ndarray:
        """Rows (n,) int64, ascending, that have died since the view was taken; read after the bitmap."""
        late = [rows for _, rows in self.parts.deaths.since(self.at)]
        return np.sort(np.concatenate(late)) if late else np.zeros(0, np.int64)

    def _walk(self, main: MainIndex, bitmap: np.ndarray | None, candidates: int, slack: int = 0) -> Found:
        """By the index's own way; by looking at everything if that finds too few."""
        k = (self.k if main.lossless else self.k * REFINED) + slack
        wanted, k = min(k, candidates), min(k, len(main))
        effort = self.effort or main.effort
        if candidates < len(main):  # of what a walk passes, only this share counts
            effort = min(LARGEST_EFFORT, int(effort * len(main) / max(1, candidates)))
        scores, rows = (
            main.search_all(self.queries, k, bitmap) if self.exact else main.search(self.queries, k, bitmap, effort)
        )
        if wanted and rows[:, wanted - 1].min() < 0:
            scores, rows = main.search_all(self.queries, k, bitmap)
        rids = self.parts.rids[rows]
        if rows.min() < 0:
            none = rows < 0
            scores[none], rids[none] = -np.inf, -1
        return (scores, rids) if main.lossless else self._refined(scores, rids)

    def _scan(self, main: MainIndex, rows: np.ndarray) -> Found:
        """By comparing with each of rows (m,)."""
        scores, rids = np.zeros((len(self.queries), 0), np.float32), np.zeros((len(self.queries), 0), np.int64)
        step = max(1, SCAN_BYTES // (4 * self.queries.shape[1]))
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            known = self.parts.rids[some]
            vectors = main.vectors(some) if main.lossless else self.fetch(known)
            more = compare(self.queries, vectors, known, self.k, main.metric)
            scores, rids = joined([(scores, rids), more], self.k)
        return scores, rids

    def _refined(self, scores: np.ndarray, rids: np.ndarray) -> Found:
        """Candidates by compressed vectors, ranked by their true ones."""
        wanted = np.unique(rids[rids >= 0])
        vectors = self.fetch(wanted)
        assert self.parts.main is not None
        for query, known, scored in zip(self.queries, rids, scores, strict=True):
            some = known >= 0
            true = vectors[np.searchsorted(wanted, known[some])]
            scored[some] = score(query, true, self.parts.main.metric)
        return ranked(scores, rids, self.k)
