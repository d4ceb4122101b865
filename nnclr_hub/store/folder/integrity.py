"""What makes damage visible: checksums of rows, totals of each commit, and a record of the last commit in another file.

items.crc     CRC-32 over a row's number, id, metadata, vector and thumbnail
commits       for each commit its last change, time, number of items and highest row id
UUID/commit   the last commit, in a separate file; see `store.commit_record`
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from dataclasses import dataclass
from pathlib import Path

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store.sqlite import HINT


@dataclass(frozen=True)
class Commit:
    """The state of a collection after a commit.

    seq: number of its last change.
    at: time in seconds since 1970; never decreases.
    items: number of items.
    rid: the highest row id that was ever given out.
    """

    seq: int
    at: float
    items: int
    rid: int

    @property
    def row(self) -> tuple[int, float, int, int, int]:
        """The row of the table `commits`, whose last column is the checksum of the others."""
        columns = (self.seq, self.at, self.items, self.rid)
        return *columns, zlib.crc32(repr(columns).encode())


def row_crc(rid: int, id: str, metadata: str, vector_crc: int, jpeg: bytes | None) -> int:
    """Return the checksum of a row; the vector is covered by its own checksum. It runs for every row that is stored."""
    thumbnail = -1 if jpeg is None else zlib.crc32(jpeg)
    return zlib.crc32(f"{rid} {id} {vector_crc} {thumbnail} {metadata}".encode())


# ------------------------------------------------------------------------------ commits


def last_commit(connection: sqlite3.Connection) -> Commit:
    """Return the last commit; a new collection has commit 0."""
    row = connection.execute("SELECT seq, at, items, rid FROM commits ORDER BY seq DESC LIMIT 1").fetchone()
    return Commit(*row) if row else Commit(0, 0.0, 0, 0)


def insert_commit(connection: sqlite3.Connection, commit: Commit) -> None:
    """Record a commit, in its transaction."""
    connection.execute("INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?, ?)", commit.row)


def sequence(connection: sqlite3.Connection, table: str) -> int:
    """Return the highest number that AUTOINCREMENT has given out in a table."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", [table]).fetchone()
    return row[0] if row else 0


# ------------------------------------------------------------------------------ checks


def seal(connection: sqlite3.Connection) -> None:
    """Record the checksum of the specification, the name and the tables, after a change of one of them."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('crc', ?)", [_meta_crc(connection)])


def _meta_crc(connection: sqlite3.Connection) -> str:
    meta = connection.execute("SELECT key, value FROM meta WHERE key IN ('spec', 'name') ORDER BY key").fetchall()
    tables = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    return str(zlib.crc32(json.dumps([meta, tables]).encode()))


def check_meta(connection: sqlite3.Connection, path: Path, recorded: tuple[int, int] | None) -> None:
    """Check the specification, the last commit and the counters against their checksums.

    Args:
        connection: in a read transaction.
        path: of the file.
        recorded: what `CommitRecord.read` returned before the transaction began.

    Raises:
        StoreCorrupt: something differs, or changes that were acknowledged are missing.
    """
    sealed = connection.execute("SELECT value FROM meta WHERE key = 'crc'").fetchone()
    if sealed is None or sealed[0] != _meta_crc(connection):
        raise StoreCorrupt(f"{path} is damaged (its specification or a table's definition changed); {HINT}.")
    commit = last_commit(connection)
    row = connection.execute("SELECT * FROM commits WHERE seq = ?", [commit.seq]).fetchone()
    if row is not None and row != commit.row:
        raise StoreCorrupt(f"{path} is damaged (its last commit fails its checksum); {HINT}.")
    if recorded is not None and recorded[0] > commit.seq:
        raise StoreCorrupt(
            f"{path} lacks {recorded[0] - commit.seq} acknowledged changes, because its log is damaged or missing. "
            "Restore a backup with `nnclr store restore`, or keep what is readable with "
            "`nnclr store repair COLLECTION`."
        )
    if (sequence(connection, "oplog"), sequence(connection, "items")) != (commit.seq, commit.rid) or (
        recorded is not None and recorded[0] == commit.seq and recorded[1] != commit.items
    ):
        raise StoreCorrupt(f"{path} is damaged (its counters disagree with its last commit); {HINT}.")


def check_totals(connection: sqlite3.Connection, path: Path) -> None:
    """Compare the number of rows and of logged changes with those of the commits.

    Raises:
        StoreCorrupt: rows or changes are missing, or should not exist.
    """
    last = last_commit(connection)
    rows = connection.execute("SELECT count(*) FROM items NOT INDEXED").fetchone()[0]
    if rows != last.items:
        raise StoreCorrupt(f"{path} is damaged ({rows} rows, but {last.items} were committed); {HINT}.")
    if any(row != Commit(*row[:-1]).row for row in connection.execute("SELECT * FROM commits")):
        raise StoreCorrupt(f"{path} is damaged (a commit fails its checksum); {HINT}.")
    first, count = connection.execute("SELECT coalesce(min(seq), 0), count(*) FROM oplog").fetchone()
    if count and count != last.seq - first + 1:
        raise StoreCorrupt(f"{path} is damaged (the log of changes lacks some); {HINT}.")
