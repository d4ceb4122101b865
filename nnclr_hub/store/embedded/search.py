"""A search in one view of the catalog: index, filter and rows together.

A filter is tried on the nearest neighbors first, which is enough for a filter that many items pass. If too few pass,
the catalog lists the rows that do, and the index searches only these: by comparing with each if they are few, else by
walking past the others. Either way, no item that passes is missed because too many neighbors did not.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import numpy as np

from nnclr_hub.store.ann.index import AnnIndex
from nnclr_hub.store.base import Match, SearchOptions
from nnclr_hub.store.embedded.rows import fetch_vectors, to_matches
from nnclr_hub.store.where import EVERYTHING, Clause, to_sql

TRIAL_FACTOR = 8  # neighbors that a filter is tried on, per match
REMEMBERED = 4


@dataclass(frozen=True)
class Search:
    """A search of several vectors.

    queries: (n, D) float32, as the collection compares them.
    k: matches per query.
    options: of the search; its filter is in `clause`.
    clause: the filter as SQL.
    """

    queries: np.ndarray
    k: int
    options: SearchOptions
    clause: Clause

    @classmethod
    def of(cls, queries: np.ndarray, k: int, options: SearchOptions) -> Search:
        """Compile the filter.

        Raises:
            InvalidFilter: it is invalid.
        """
        return cls(queries, k, options, to_sql(options.where))


class Searcher:
    """Runs searches, and remembers the rows that passed the last filters.

    Args:
        index: of the collection.
    """

    def __init__(self, index: AnnIndex) -> None:
        self._index = index
        self._passing: dict[str, tuple[int, np.ndarray]] = {}

    def run(self, connection: sqlite3.Connection, at: int, search: Search) -> list[list[Match]]:
        """Return the matches of each query.

        Args:
            connection: in a read transaction.
            at: the change that the transaction's view is up to.
            search: what to find.

        Raises:
            ViewTooOld: the transaction must be restarted.
        """
        if search.clause == EVERYTHING:
            return self._nearest(connection, at, search, None)
        key = repr(search.clause)
        known = self._passing.get(key)
        if known is None or known[0] != at:
            found = self._try_filter(connection, at, search)
            if found is not None:
                return found
            known = (at, _passing(connection, search.clause))
            if len(self._passing) >= REMEMBERED:
                self._passing.pop(next(iter(self._passing)), None)
            self._passing[key] = known
        return self._nearest(connection, at, search, known[1])

    def _nearest(
        self, connection: sqlite3.Connection, at: int, search: Search, among: np.ndarray | None
    ) -> list[list[Match]]:
        """Search all rows, or those of `among`."""
        wanted = search.k
        while True:
            # The first attempt lets the catalog drop deleted rows. If too few are left, deleted rows are the nearest
            # ones, and asking for more of them might never end: from then on the index skips them.
            scores, rids = self._candidates(connection, at, search, wanted, among, skip_deleted=wanted > search.k)
            matches = self._matches(connection, search, scores, rids, EVERYTHING)
            if _complete(matches, rids, search.k, wanted):
                return matches
            wanted *= 2

    def _try_filter(self, connection: sqlite3.Connection, at: int, search: Search) -> list[list[Match]] | None:
        """Apply the filter to the nearest neighbors; return None if too few of them pass."""
        settings = self._index.settings
        tried = max(TRIAL_FACTOR * search.k, settings.min_trial)
        for _ in range(2):
            if tried > settings.max_trial:
                return None
            scores, rids = self._candidates(connection, at, search, tried, None)
            matches = self._matches(connection, search, scores, rids, search.clause)
            if _complete(matches, rids, search.k, tried):
                return matches
            fewest = min(map(len, matches))
            # this many would be enough if the others pass as often
            tried = 2 * tried * search.k // fewest if fewest else settings.max_trial + 1
        return None

    def _candidates(
        self,
        connection: sqlite3.Connection,
        at: int,
        search: Search,
        k: int,
        among: np.ndarray | None,
        skip_deleted: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._index.search(
            search.queries,
            k,
            fetch=lambda rids: fetch_vectors(connection, self._index.spec, rids),
            among=among,
            at=at,
            exact=search.options.exact,
            effort=search.options.effort,
            skip_deleted=skip_deleted,
        )

    def _matches(
        self, connection: sqlite3.Connection, search: Search, scores: np.ndarray, rids: np.ndarray, clause: Clause
    ) -> list[list[Match]]:
        spec = self._index.spec if search.options.with_vector else None
        return to_matches(connection, scores, rids, search.k, clause, spec)


def _complete(matches: list[list[Match]], rids: np.ndarray, k: int, wanted: int) -> bool:
    """Return whether every query has its k matches, or the index has no more results."""
    if all(len(found) >= k for found in matches):
        return True
    more = rids[:, wanted - 1] >= 0 if rids.shape[1] >= wanted else np.zeros(len(rids), bool)
    return all(len(found) >= k or not left for found, left in zip(matches, more, strict=True))


def _passing(connection: sqlite3.Connection, clause: Clause) -> np.ndarray:
    """Return the row ids (n,) int64 ascending that pass a filter."""
    rows = connection.execute(f"SELECT rid FROM items WHERE {clause[0]}", clause[1])
    return np.sort(np.fromiter((row[0] for row in rows), np.int64))
