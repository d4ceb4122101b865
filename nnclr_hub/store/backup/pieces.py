"""The content of pieces: SQLite files with rows or changes, and packed row ids."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import numpy as np

ROW_TABLES = ("items", "vectors", "thumbnails")


def rows_piece(connection: sqlite3.Connection, first: int, last: int) -> tuple[np.ndarray, bytes]:
    """Return the ids (n,) int64 of the live rows first ... last, and a piece with them."""
    rids = connection.execute("SELECT rid FROM items WHERE rid BETWEEN ? AND ? ORDER BY rid", [first, last])
    found = np.fromiter((rid for (rid,) in rids), np.int64)
    queries = {table: f"SELECT * FROM main.{table} WHERE rid BETWEEN ? AND ?" for table in ROW_TABLES}
    return found, _extract(connection, queries, [first, last])


def log_piece(connection: sqlite3.Connection, after: int, to: int) -> bytes:
    """Return a piece with the changes and commits after `after` up to `to`."""
    queries = {table: f"SELECT * FROM main.{table} WHERE seq > ? AND seq <= ?" for table in ("oplog", "commits")}
    return _extract(connection, queries, [after, to])


def _extract(connection: sqlite3.Connection, tables: dict[str, str], parameters: Sequence[int]) -> bytes:
    """Return an SQLite file with the results of queries as its tables."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as piece:
        for table, query in tables.items():
            cursor = connection.execute(query, parameters)
            names = [column[0] for column in cursor.description]
            key = "INTEGER PRIMARY KEY"
            piece.execute(f"CREATE TABLE {table} ({names[0]} {key}, {', '.join(names[1:])})")
            piece.execute("BEGIN")
            piece.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(names))})", cursor)
            piece.execute("COMMIT")
        return piece.serialize()


@contextmanager
def opened_piece(data: bytes) -> Iterator[sqlite3.Connection]:
    """Provide a piece with rows or changes as a database in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(data)
        yield connection


def packed(rids: np.ndarray) -> bytes:
    """Return ascending row ids (n,) int64 as compressed bytes."""
    return zlib.compress(np.diff(rids, prepend=0).astype("<i8").tobytes(), 1)


def unpacked(data: bytes) -> np.ndarray:
    """Return row ids (n,) int64 from the bytes that `packed` made."""
    return np.cumsum(np.frombuffer(zlib.decompress(data), "<i8"))
