"""The index: a cache of the catalog, for any number of searching threads and one that writes.

It consists of a main part that never changes, a record of the deleted rows of it, and a delta of rows that were added
since. A search names the change that its view of the catalog is up to, and sees the rows as they were then: an item
that is being replaced is found as the old or as the new one, never as neither. Rows that are newer than the view are
returned too; the caller looks all row ids up in the catalog, where newer rows do not exist yet.

Callers pass vectors and queries as the catalog has them. The main part and the delta hold them after the transform of
the main part, if it has one.

Nothing moves under a reader: it works on a `Parts` object, which is replaced as a whole. `fold` builds new parts while
searches run, and forgets rows that were deleted before. A search whose view is older than that must be repeated with a
newer view.

Deleted rows stay in the graph, because HNSW cannot remove a node without losing the paths through it. A search either
drops them from the results (few are deleted) or passes faiss a bitmap of the live rows (many are).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nnclr_hub.store.ann.among import Among, Chosen
from nnclr_hub.store.ann.compare import Found, best, compare, merge, score
from nnclr_hub.store.ann.delta import LIVE, Deletions, Delta, positions
from nnclr_hub.store.ann.main_index import MainIndex, threads
from nnclr_hub.store.ann.transform import compared
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.index_kinds import FLAT, IndexKind
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import VectorTransform

# below this share of the main part, scanning the rows that pass a filter is cheaper than walking past the others
SCAN_SHARE = 0.05
MAX_EFFORT = 4096
# up to this share of deleted rows, they are dropped from the results, and SLACK more results are requested
DROP_SHARE = 0.05
SLACK = 4
# from this share of chosen rows on, a filter is applied to the neighbors: walking past the others would cost as much
DROP_FROM = 0.2
DROP_MARGIN = 1.5
SCAN_BYTES = 64 << 20
LATEST = LIVE - 1

# takes row ids (n,) int64, returns their vectors (n, D) float32 from the catalog, NaN for rows that do not exist
Fetch = Callable[[np.ndarray], np.ndarray]


class ViewTooOld(Exception):
    """Raised when the index has forgotten rows that the caller's view of the catalog still has."""


@dataclass
class Parts:
    """What a search works on.

    main: the part that does not change, or None when empty.
    rids: (N,) int64 ascending, row ids of main.
    deletions: of rows of main.
    delta: what was added since.
    floor: rows that were deleted up to this change are forgotten.
    untransformed: while a fold may fit another transform, what was added since it began, as the catalog has it.
    """

    main: MainIndex | None
    rids: np.ndarray
    deletions: Deletions
    delta: Delta
    floor: int = 0
    untransformed: Delta | None = None

    @property
    def transform(self) -> VectorTransform | None:
        """The transform of the vectors and queries, or None."""
        return None if self.main is None else self.main.transform


@dataclass(frozen=True)
class State:
    """An index at one change, for saving it.

    seq: the change.
    main, rids: as in `Parts`.
    deleted: (n,) int64, deleted rows of main.
    delta_rids, delta_vectors: (m,) int64 and (m, D) float32, the live rows of the delta, transformed.
    """

    seq: int
    main: MainIndex | None
    rids: np.ndarray
    deleted: np.ndarray
    delta_rids: np.ndarray
    delta_vectors: np.ndarray


class AnnIndex:
    """Row ids by nearness; see the module.

    Args:
        spec: of the collection.
        settings: of the store.
    """

    def __init__(self, spec: CollectionSpec, settings: StoreSettings) -> None:
        self.spec = spec
        self.settings = settings
        self.seq = 0  # the change that searches see
        self.added = self.deleted = 0  # rows since it was made; an item with another vector counts in both
        self.mutation = threading.Lock()
        self._changed = threading.Condition()
        self.parts = self.new_parts(None, np.zeros(0, np.int64), 0)

    def new_parts(self, main: MainIndex | None, rids: np.ndarray, floor: int) -> Parts:
        """Return parts without deleted rows and with an empty delta."""
        return Parts(main, rids, Deletions(len(rids)), self.new_delta(), floor)

    def new_delta(self) -> Delta:
        """Return an empty delta."""
        return Delta(self.spec.dim, self.spec.metric, self.settings.delta_chunk)

    # ---- writing: one thread at a time

    def apply(self, seq: int, deleted: np.ndarray, added: np.ndarray, vectors: np.ndarray) -> None:
        """Apply one change as a whole.

        Args:
            seq: its number.
            deleted, added: (n,) int64 ascending row ids.
            vectors: (n, D) float32 of the added rows.
        """
        with self.mutation:
            if len(added):
                self.parts.delta.append(added, compared(self.parts.transform, vectors))
                if self.parts.untransformed is not None:
                    self.parts.untransformed.append(added, vectors)
            if len(deleted):
                self.parts.deletions.delete(positions(self.parts.rids, deleted), seq)
                self.parts.delta.delete(deleted, seq)
            self.added += len(added)
            self.deleted += len(deleted)
            self.seq = seq
        with self._changed:
            self._changed.notify_all()

    def restore(self, state: State) -> None:
        """Take over a saved state."""
        parts = self.new_parts(state.main, state.rids, state.seq)
        parts.deletions.delete(state.deleted, state.seq)
        parts.delta.append(state.delta_rids, state.delta_vectors)
        self.load(parts, state.seq)

    def load(self, parts: Parts, seq: int) -> None:
        """Replace all rows by those of new parts, which are up to change `seq`."""
        with self.mutation:
            self.added += len(parts.rids) + parts.delta.count
            self.deleted += len(self.parts.rids) + self.parts.delta.count
            self.parts = parts
            self.seq = seq

    def clear(self) -> None:
        """Free all memory; a search that comes later gets ViewTooOld instead of an empty result."""
        with self.mutation:
            self.parts = self.new_parts(None, np.zeros(0, np.int64), LIVE)

    def refuse_older_views(self) -> None:
        """Refuse views older than the last change, for an index that does not know when rows were deleted."""
        with self.mutation:
            self.parts.floor = self.seq

    # ---- reading

    def state(self) -> State:
        """Return the index as it is now; the arrays do not change later."""
        with self.mutation:
            parts, seq = self.parts, self.seq
            rids, vectors, deletions = parts.delta.rows(0, parts.delta.count)
            live_main = parts.deletions.live(len(parts.rids))
        deleted = np.setdiff1d(np.arange(len(parts.rids)), live_main, assume_unique=True)
        live = deletions == LIVE
        return State(seq, parts.main, parts.rids, deleted, rids[live], vectors[live])

    def live_rids(self) -> np.ndarray:
        """Return the row ids (N,) int64 ascending of all live rows."""
        with self.mutation:
            parts = self.parts
            rids, deletions = parts.delta.tail(0)
            return np.concatenate([parts.rids[parts.deletions.live(len(parts.rids))], rids[deletions == LIVE]])

    def compared(self, vectors: np.ndarray) -> np.ndarray:
        """Return vectors (n, D) float32 as searches compare them now."""
        return compared(self.parts.transform, vectors)

    @property
    def basis(self) -> object:
        """As `Collection.basis` has it: the transform. Without one, this index."""
        transform = self.parts.transform
        return self if transform is None else transform

    @property
    def kind(self) -> IndexKind:
        """The kind of index that answers searches now."""
        main = self.parts.main
        return main.kind if main else FLAT

    @property
    def recall(self) -> float:
        """Share of the ten nearest that searches find, by the last measurement."""
        main = self.parts.main
        return 1.0 if main is None else main.recall

    @property
    def nbytes(self) -> int:
        """Approximate memory of the index in bytes."""
        parts = self.parts
        matrix = 0 if parts.transform is None or parts.transform.matrix is None else parts.transform.matrix.nbytes
        return len(parts.rids) * self.kind.bytes_per_vector(self.spec) + parts.delta.count * 4 * self.spec.dim + matrix

    def wait_for(self, seq: int, seconds: float = 1.0) -> None:
        """Wait until change `seq` is applied, which follows within moments of its commit."""
        if self.seq < seq:
            with self._changed:
                self._changed.wait_for(lambda: self.seq >= seq, seconds)

    def search(
        self,
        queries: np.ndarray,
        k: int,
        *,
        fetch: Fetch,
        among: Among | None = None,
        at: int = LATEST,
        exact: bool = False,
        effort: int | None = None,
        skip_deleted: bool = False,
    ) -> Found:
        """Return the k best rows for each query, best first.

        Args:
            queries: (n, D) float32.
            k: at least 1.
            fetch: reads vectors from the catalog, for an index that has only their compressed form.
            among: the rows to consider, all of which exist in the caller's view.
            at: the change that the caller's view is up to.
            exact: compare with everything.
            effort: efSearch or nprobe; None: the calibrated one.
            skip_deleted: always exclude deleted rows by the bitmap; for a search that got too many of them.

        Returns:
            scores (n, j) float32, higher is nearer, and row ids (n, j) int64; -inf and -1 where a query has no more
            results, which happens only if no more exist. Some rows may be deleted, or newer than the view.

        Raises:
            ViewTooOld: rows that were live at `at` are forgotten.
        """
        parts = self.parts
        if at < parts.floor:
            raise ViewTooOld
        transform = parts.transform
        queries = compared(transform, queries)
        stored = lambda rids: compared(transform, fetch(rids))  # noqa: E731
        search = _Search(parts, queries, k, stored, among, at, exact, effort, skip_deleted)
        if len(queries) == 1:
            with threads(1):
                found = [search.main()]
        else:
            found = [search.main()]
        if parts.delta.count:
            recent = None if among is None else among.after(int(parts.rids[-1]) if len(parts.rids) else -1)
            if recent is None or len(recent):
                found.append(parts.delta.scan(queries, k, recent, at))
        # not only k: some of the main part's results may be deleted
        return merge(found, max(k, found[0][0].shape[1]))


@dataclass(frozen=True)
class _Search:
    """One search of a main part; the fields are the arguments of `AnnIndex.search`."""

    parts: Parts
    queries: np.ndarray
    k: int
    fetch: Fetch
    among: Among | None
    at: int
    exact: bool
    effort: int | None
    skip_deleted: bool

    def main(self) -> Found:
        main, total = self.parts.main, len(self.parts.rids)
        if main is None:
            return self._nothing()
        if self.among is not None:
            chosen = self.among.within(self.parts.rids)
            if self.exact or chosen.count <= SCAN_SHARE * total:
                return self._scan(main, chosen)
            return self._dropping(main, chosen) or self._walk(main, chosen.bitmap, chosen.count)
        deleted = self.parts.deletions.count
        if self.exact and not main.lossless:
            # rows that were deleted after the view was taken are still live in it
            live = self.parts.deletions.live(total)
            return self._scan(main, Chosen(total, rows=np.union1d(live, self._deleted_later())))
        if not self.exact and not self.skip_deleted and deleted <= DROP_SHARE * total:
            # the caller drops these few when it looks rows up; a bitmap would cost every search more
            return self._walk(main, None, total, SLACK if deleted else 0)
        found = self._walk(main, self.parts.deletions.bitmap if deleted else None, total - deleted)
        rows = self._deleted_later()
        if not len(rows):
            return found
        # the bitmap excludes these rows, or not, depending on when faiss read it: scan them separately
        known = np.isin(found[1], self.parts.rids[rows])
        found[0][known], found[1][known] = -np.inf, -1
        return merge([found, self._scan(main, Chosen(total, rows=rows))], self.k)

    def _nothing(self) -> Found:
        return np.zeros((len(self.queries), 0), np.float32), np.zeros((len(self.queries), 0), np.int64)

    def _dropping(self, main: MainIndex, chosen: Chosen) -> Found | None:
        """Search without a filter and drop the rows that are not chosen; return None if too few are left."""
        share = chosen.count / len(main)
        if share < DROP_FROM:
            return None
        k = min(len(main), int(main.kind.candidates(self.k) / share * DROP_MARGIN) + SLACK)
        scores, rows = main.search(self.queries, k, None, max(self.effort or main.effort, k), self.k)
        passed = chosen.flags[rows] & (rows >= 0)
        if passed.sum(axis=1).min() < min(self.k, chosen.count):
            return None
        rids = np.where(passed, self.parts.rids[rows], -1)
        scores[~passed] = -np.inf
        return best(scores, rids, self.k) if main.lossless else self._rescore(scores, rids)

    def _deleted_later(self) -> np.ndarray:
        """Return the rows (n,) int64 ascending that were deleted after the view was taken.

        The log must be read after the bitmap: see `Deletions`.
        """
        late = [rows for _, rows in self.parts.deletions.since(self.at)]
        return np.sort(np.concatenate(late)) if late else np.zeros(0, np.int64)

    def _walk(self, main: MainIndex, bitmap: np.ndarray | None, candidates: int, slack: int = 0) -> Found:
        """Search with the index, and exhaustively if that finds too few."""
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
        found = self._named(scores, rows)
        return found if main.lossless else self._rescore(*found)

    def _named(self, scores: np.ndarray, rows: np.ndarray) -> Found:
        """Return scores and row ids of faiss's results."""
        rids = self.parts.rids[rows]
        if rows.min() < 0:
            missing = rows < 0
            scores[missing], rids[missing] = -np.inf, -1
        return scores, rids

    def _scan(self, main: MainIndex, chosen: Chosen) -> Found:
        """Compare with each row chosen."""
        found: list[Found] = []
        step = max(1, SCAN_BYTES // (4 * self.queries.shape[1]))
        for start in range(0, chosen.count, step):
            check_cancelled()
            some = chosen if chosen.count <= step else Chosen(len(main), rows=chosen.rows[start : start + step])
            vectors = main.copies.find(some, self.queries.shape[1], lambda some=some: self._read(main, some))
            in_place = main.search_rows(self.queries, self.k, some) if vectors is None else None
            if in_place is not None:
                part = self._named(*in_place)
            else:
                vectors = self._read(main, some) if vectors is None else vectors
                part = compare(self.queries, vectors, self.parts.rids[some.rows], self.k, main.metric)
            found = [merge([*found, part], self.k)]
        return found[0] if found else self._nothing()

    def _read(self, main: MainIndex, chosen: Chosen) -> np.ndarray:
        return main.vectors(chosen.rows) if main.lossless else self.fetch(self.parts.rids[chosen.rows])

    def _rescore(self, scores: np.ndarray, rids: np.ndarray) -> Found:
        """Rank candidates from compressed vectors by their exact ones."""
        wanted = np.unique(rids[rids >= 0])
        vectors = self.fetch(wanted)
        assert self.parts.main is not None
        for query, known, scored in zip(self.queries, rids, scores, strict=True):
            some = known >= 0
            exact = vectors[np.searchsorted(wanted, known[some])]
            scored[some] = score(query, exact, self.parts.main.metric)
        return best(scores, rids, self.k)
