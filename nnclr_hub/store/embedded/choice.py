"""Which rows a request is about: by ids, by a filter, page by page, or in the transaction that changes them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.columns.passing import Passing
from nnclr_hub.store.embedded.rows import parse_metadata
from nnclr_hub.store.where import Group, passes

BATCH = 1000
FEW = 20_000  # rows whose ids are sorted; of more, a page is looked for in the order of all ids

Row = tuple[int, str, str]  # row id, id, JSON of the metadata


def row_ids(passing: Passing | np.ndarray) -> np.ndarray:
    """Return row ids (n,) int64 ascending."""
    return passing.rids if isinstance(passing, Passing) else passing


def read_rows(
    connection: sqlite3.Connection, rids: np.ndarray | None = None
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield row id, id and metadata of the rows (n,) int64 that exist, or of all."""
    for rows in _batches(connection, "rid", None if rids is None else rids.tolist()):
        for (rid, id, _), about in zip(rows, parsed_rows(rows), strict=True):
            yield rid, id, about


def parsed_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the metadata of rows."""
    return parse_metadata([(id, text) for _, id, text in rows])


def ids_that_pass(connection: sqlite3.Connection, group: Group) -> np.ndarray:
    """Return the row ids (n,) int64 ascending that pass a filter, by reading all metadata."""
    return np.sort(np.array([rid for rid, id, about in read_rows(connection) if passes(group, id, about)], np.int64))


def first_ids(connection: sqlite3.Connection, rids: np.ndarray, after: str, limit: int) -> list[int]:
    """Return those of rows (n,) int64 ascending with the smallest ids behind `after`."""
    if len(rids) <= FEW:
        found = [row[:2] for rows in _batches(connection, "rid", rids.tolist()) for row in rows if row[1] > after]
        return [rid for rid, _ in sorted(found, key=lambda row: row[1])[:limit]]
    page: list[int] = []
    cursor = connection.execute("SELECT rid FROM items WHERE id > ? ORDER BY id", [after])
    while len(page) < limit and (rows := cursor.fetchmany(BATCH)):
        check_cancelled()
        some = np.array(rows, np.int64)[:, 0]
        place = np.minimum(np.searchsorted(rids, some), len(rids) - 1)
        page += some[rids[place] == some].tolist()
    return page[:limit]


def rows_by_id(connection: sqlite3.Connection, ids: Sequence[str]) -> list[Row]:
    """Return the rows of the items with these ids that exist."""
    return [row for rows in _batches(connection, "id", ids) for row in rows]


def rows_that_pass(connection: sqlite3.Connection, group: Group, found: np.ndarray, at: int) -> list[Row]:
    """Return the rows that pass a filter now.

    Args:
        connection: in a transaction.
        group: the filter.
        found: the row ids (n,) int64 that passed it at change `at`.
        at: a change before.
    """
    log = connection.execute("SELECT seq, rid FROM oplog WHERE seq > ?", [at]).fetchall()
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'oplog'").fetchone()[0]
    trimmed = len(log) < last - at
    wanted = None if trimmed else np.union1d(found, np.array([rid for _, rid in log], np.int64)).tolist()
    kept = []
    for rows in _batches(connection, "rid", wanted):
        metadata = parsed_rows(rows)
        kept += [row for row, about in zip(rows, metadata, strict=True) if passes(group, row[1], about)]
    return kept


def _batches(connection: sqlite3.Connection, column: str, values: Sequence[Any] | None) -> Iterator[list[Row]]:
    """Yield the rows with some values in a column, or all rows."""
    parts = [None] if values is None else [values[i : i + BATCH] for i in range(0, len(values), BATCH)]
    for part in parts:
        chosen = "" if part is None else f"WHERE {column} IN ({','.join('?' * len(part))})"
        cursor = connection.execute(f"SELECT rid, id, metadata FROM items {chosen}", part or [])
        while rows := cursor.fetchmany(BATCH):
            check_cancelled()
            yield rows
