"""A search in one view of the catalog: index, filter and rows together.

A filter is tried on the nearest neighbors first, which is all that a filter which many pass needs.
If too few of them pass, the rows that do are listed by the catalog, and the index is asked for the
nearest among these alone: by comparing with each if they are few, else by walking past the others.
Either way nothing that passes is overlooked because too many neighbors did not.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import numpy as np

from nnclr_hub.store.ann.index import AnnIndex
from nnclr_hub.store.base import Match, Where
from nnclr_hub.store.embedded.rows import fetch_vectors, to_matches
from nnclr_hub.store.where import EVERYTHING, Clause, to_sql

# neighbors that a filter is tried on, for each that is wanted, and at least
TRIED = 8
TRIED_LEAST = 128
TRIED_MOST = 4096
REMEMBERED = 4


@dataclass(frozen=True)
class Question:
    """What is asked.

    queries: (n, D) float32, as the collection compares them.
    k, exact, effort, with_vector: as in `base.Collection.search`.
    clause: the filter as SQL.
    key: the filter as text, for remembering what passes it; "" without one.
    """

    queries: np.ndarray
    k: int
    exact: bool
    effort: int | None
    with_vector: bool
    clause: Clause
    key: str

    @classmethod
    def of(
        cls, queries: np.ndarray, k: int, where: Where | None, exact: bool, effort: int | None, with_vector: bool
    ) -> Question:
        """Raises InvalidFilter if the filter is none."""
        clause = to_sql(where)
        return cls(queries, k, exact, effort, with_vector, clause, "" if clause == EVERYTHING else repr(clause))


class Searcher:
    """Answers questions, and remembers what passed the last filters.

    Args:
        index: of the collection.
    """

    def __init__(self, index: AnnIndex) -> None:
        self._index = index
        self._passing: dict[str, tuple[int, np.ndarray]] = {}

    def answer(self, connection: sqlite3.Connection, at: int, question: Question) -> list[list[Match]]:
        """The matches of each query.

        Args:
            connection: in a read transaction.
            at: the change that the transaction's view is up to.

        Raises:
            ViewTooOld: the transaction must be begun anew.
        """
        if not question.key:
            return self._nearest(connection, at, question, None)
        known = self._passing.get(question.key)
        if known is None or known[0] != at:
            found = self._filtered(connection, at, question)
            if found is not None:
                return found
            known = (at, _passing(connection, question.clause))
            if len(self._passing) >= REMEMBERED:
                self._passing.pop(next(iter(self._passing)), None)
            self._passing[question.key] = known
        return self._nearest(connection, at, question, known[1])

    def _nearest(
        self, connection: sqlite3.Connection, at: int, question: Question, among: np.ndarray | None
    ) -> list[list[Match]]:
        """The nearest, of `among` if given; rows that are newer than the view make room for older ones."""
        wanted = question.k
        while True:
            # what was missing the first time had been dropped; with many dead around, asking for more would not end
            scores, rids = self._search(connection, at, question, wanted, among, pass_dead=wanted > question.k)
            matches = self._matches(connection, question, scores, rids, EVERYTHING)
            if _complete(matches, rids, question.k, wanted):
                return matches
            wanted *= 2

    def _filtered(self, connection: sqlite3.Connection, at: int, question: Question) -> list[list[Match]] | None:
        """The filter tried on the nearest; None if too few of them pass."""
        tried = max(TRIED * question.k, TRIED_LEAST)
        for _ in range(2):
            if tried > TRIED_MOST:
                return None
            scores, rids = self._search(connection, at, question, tried, None)
            matches = self._matches(connection, question, scores, rids, question.clause)
            if _complete(matches, rids, question.k, tried):
                return matches
            fewest = min(map(len, matches))
            # so many would do, if the others are like these
            tried = 2 * tried * question.k // fewest if fewest else TRIED_MOST + 1
        return None

    def _search(
        self,
        connection: sqlite3.Connection,
        at: int,
        question: Question,
        k: int,
        among: np.ndarray | None,
        pass_dead: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._index.search(
            question.queries,
            k,
            fetch=lambda rids: fetch_vectors(connection, self._index.spec, rids),
            among=among,
            at=at,
            exact=question.exact,
            effort=question.effort,
            pass_dead=pass_dead,
        )

    def _matches(
        self, connection: sqlite3.Connection, question: Question, scores: np.ndarray, rids: np.ndarray, clause: Clause
    ) -> list[list[Match]]:
        return to_matches(
            connection, scores, rids, question.k, clause, self._index.spec if question.with_vector else None
        )


def _complete(matches: list[list[Match]], rids: np.ndarray, k: int, wanted: int) -> bool:
    """Whether every query has its k, or the index has no more to give."""
    if all(len(found) >= k for found in matches):
        return True
    more = rids[:, wanted - 1] >= 0 if rids.shape[1] >= wanted else np.zeros(len(rids), bool)
    return all(len(found) >= k or not there for found, there in zip(matches, more, strict=True))


def _passing(connection: sqlite3.Connection, clause: Clause) -> np.ndarray:
    """Row ids (n,) int64 ascending of what passes a filter."""
    rows = connection.execute(f"SELECT rid FROM items WHERE {clause[0]}", clause[1])
    return np.sort(np.fromiter((row[0] for row in rows), np.int64))
