"""A search in one view of the catalog: index, filter and rows together.

The columns say which rows pass the filter, and the index searches only these: by comparing with each if they are few,
else by dropping or walking past the others. No item that passes is missed because too many neighbors did not.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nnclr_hub.store.ann.among import Among, RowIds
from nnclr_hub.store.ann.index import AnnIndex
from nnclr_hub.store.base import Match, SearchOptions
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.columns.columns import Columns, TooLarge
from nnclr_hub.store.columns.passing import Passing
from nnclr_hub.store.embedded.choice import ids_that_pass, read_rows, row_ids
from nnclr_hub.store.embedded.recent_rows import RecentRows
from nnclr_hub.store.embedded.rows import Matched, fetch_vectors, matched_rows, to_vector
from nnclr_hub.store.embedded.view import View
from nnclr_hub.store.facets import Counts, add_counts, count_values
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.where import EVERYTHING, Group, parse, value_of

MAX_RECENT = 1000  # rows of more results than that are not remembered
MAX_TIES = 1024  # rows beyond the k-th that are looked at because they may have its score


@dataclass(frozen=True)
class Search:
    """A search of several vectors.

    queries: (n, D) float32, as the collection compares them.
    k: matches per query.
    options: of the search; its filter is in `group`.
    group: the filter.
    without: row ids that are not looked at.
    """

    queries: np.ndarray
    k: int
    options: SearchOptions
    group: Group
    without: frozenset[int] = frozenset()

    @classmethod
    def of(cls, queries: np.ndarray, k: int, options: SearchOptions) -> Search:
        """Compile the filter.

        Raises:
            InvalidFilter: it is invalid.
        """
        return cls(queries, k, options, parse(options.where))


class Searcher:
    """Runs searches and filters.

    Args:
        index: of the collection.
        columns: of its metadata.
        recent: rows that searches returned.
    """

    def __init__(self, index: AnnIndex, columns: Columns, recent: RecentRows) -> None:
        self._index = index
        self._columns = columns
        self._recent = recent

    def run(self, view: View, search: Search) -> list[list[Match]]:
        """Return the matches of each query.

        Args:
            view: of the catalog.
            search: what to find.

        Raises:
            ViewTooOld: the view must be taken again.
        """
        answers, threshold = self._nearest(view, search), search.options.score_threshold
        if threshold is None:
            return answers
        return [[match for match in found if match.score >= threshold] for found in answers]

    def _nearest(self, view: View, search: Search) -> list[list[Match]]:
        """Return the matches of each query, whatever their scores."""
        among = self._among(view, search)
        wanted = search.k
        ties = 1  # shows whether the k-th has the same score as the next
        while True:
            # The first attempt lets the catalog drop deleted rows. If too few are left, deleted rows are the nearest
            # ones, and asking for more of them might never end: from then on the index skips them.
            scores, rids = self._candidates(view, search, wanted + ties, among, wanted > search.k)
            if scores.shape[1] > search.k and (scores[:, search.k - 1] > scores[:, search.k]).all():
                # no further row has the score of the k-th, so the others are needed only if some of these were deleted
                matches = self._matches(view, search, scores[:, : search.k], rids[:, : search.k])
                if all(len(found) == search.k for found in matches):
                    return [_in_order(found, search.k) for found in matches]
            matches = self._matches(view, search, scores, rids)
            if not _complete(matches, rids, search.k, wanted + ties):
                wanted *= 2
            elif ties < MAX_TIES and _tied(matches, rids, search.k, wanted + ties):
                ties *= 8
            else:
                return [_in_order(found, search.k) for found in matches]

    def passing(self, connection: sqlite3.Connection, at: int, group: Group) -> Passing | np.ndarray:
        """Return the rows that pass a filter, or their ids (n,) int64 ascending if that does not fit into memory.

        Raises:
            ViewTooOld: the transaction must be restarted.
        """
        try:
            return self._columns.passing(connection, at, group)
        except TooLarge:
            return ids_that_pass(connection, group)

    def counts(self, connection: sqlite3.Connection, at: int, group: Group, key: str) -> tuple[int, Counts]:
        """Return how many of the items that pass a filter have a key, and how often each of its values occurs.

        Raises:
            ViewTooOld: the transaction must be restarted.
        """
        counts: Counts = {}
        try:
            items = 0
            for column, rows in self._columns.parts(connection, at, group, key):
                check_cancelled()
                numbers = column.counts(rows)
                items += int(np.count_nonzero(rows) - numbers[0])
                some = [code for code in np.flatnonzero(numbers).tolist() if column.is_scalar(code)]
                add_counts(counts, [column.distinct[code] for code in some], numbers[some].tolist())
            return items, counts
        except TooLarge:
            counts.clear()
            rids = row_ids(self.passing(connection, at, group))
            found = (about for _, _, about in read_rows(connection, rids))
            return sum(count_values(counts, value_of(about, key)) for about in found), counts

    def _among(self, view: View, search: Search) -> Among | None:
        if search.group == EVERYTHING and not search.without:
            return None
        passing = self._columns.remembered(view.at, search.group)
        if passing is None:
            passing = self.passing(view.connection, view.at, search.group)
        if isinstance(passing, Passing) and not search.without:
            return passing
        return RowIds(np.setdiff1d(row_ids(passing), np.array(sorted(search.without), np.int64), assume_unique=True))

    def _candidates(
        self, view: View, search: Search, k: int, among: Among | None, skip_deleted: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._index.search(
            search.queries,
            k,
            fetch=lambda rids: fetch_vectors(view.connection, self._index.spec, rids),
            among=among,
            at=view.at,
            exact=search.options.exact,
            effort=search.options.effort,
            skip_deleted=skip_deleted,
        )

    def _matches(self, view: View, search: Search, scores: np.ndarray, rids: np.ndarray) -> list[list[Match]]:
        """Return rows as matches, without those that do not exist."""
        spec = self._index.spec if search.options.with_vector else None
        wanted = rids.tolist()
        rows = self._rows(view, {rid for row in wanted for rid in row if rid >= 0}, spec)
        return [
            [
                Match(row[0], score, row[1], None if row[3] is None else to_vector(row[0], row[3], spec))
                for score, rid in zip(score_row, rid_row, strict=True)
                if (row := rows.get(rid)) is not None
            ]
            for score_row, rid_row in zip(scores.tolist(), wanted, strict=True)
        ]

    def _rows(self, view: View, rids: set[int], spec: CollectionSpec | None) -> dict[int, Matched]:
        """Return the rows that exist; with their vectors if `spec` is given."""
        if spec or len(rids) > MAX_RECENT:
            return matched_rows(view.connection, list(rids), spec)
        found = self._recent.find(view.at, rids)
        if len(found) < len(rids):
            others = matched_rows(view.connection, list(rids - found.keys()), None)
            self._recent.add(view.at, others)
            found |= others
        return found


def _complete(matches: list[list[Match]], rids: np.ndarray, k: int, wanted: int) -> bool:
    """Return whether every query has its k matches, or the index has no more results."""
    return all(len(found) >= k or not more for found, more in zip(matches, _more(rids, wanted), strict=True))


def _tied(matches: list[list[Match]], rids: np.ndarray, k: int, wanted: int) -> bool:
    """Return whether a row that was not returned may have the score of the k-th match."""
    return any(
        more and len(found) >= k and found[-1].score == found[k - 1].score
        for found, more in zip(matches, _more(rids, wanted), strict=True)
    )


def _more(rids: np.ndarray, wanted: int) -> list[bool]:
    return (rids[:, wanted - 1] >= 0).tolist() if rids.shape[1] >= wanted else [False] * len(rids)


def _in_order(found: list[Match], k: int) -> list[Match]:
    """Return the k best matches; of equal scores, those with the smaller ids."""
    if all(a.score > b.score for a, b in pairwise(found)):
        return found[:k]
    return sorted(found, key=lambda match: (-match.score, match.id))[:k]
