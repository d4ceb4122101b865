"""What makes damage visible: checksums of rows, totals of each commit, and a record of the last commit in another file.

    items.crc     CRC-32 over a row's number, id, metadata, vector and thumbnail
    commits       for each commit its last change, time, number of items, digest of all rows, and CRC-32 of its log
    UUID/commit   the last commit, in a separate file; see `store.commit_record`

The digest is the sum of a hash of each row modulo 2^64, so a commit updates it without reading other rows.
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store.sqlite import HINT

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Commit:
    """The state of a collection after a commit.

    seq: number of its last change.
    at: time in seconds since 1970; never decreases.
    items: number of items.
    digest: of all rows, signed 64 bits.
    rid: the highest row id that was ever given out.
    log: CRC-32 of the log of the commit.
    """

    seq: int
    at: float
    items: int
    digest: int
    rid: int
    log: int

    @property
    def row(self) -> tuple[int, float, int, int, int, int, int]:
        """The row of the table `commits`, whose last column is the checksum of the others."""
        columns = (self.seq, self.at, self.items, self.digest, self.rid, self.log)
        return *columns, zlib.crc32(repr(columns).encode())


def row_crc(rid: int, id: str, metadata: str, vector_crc: int, jpeg: bytes | None) -> int:
    """Return the checksum of a row; the vector is covered by its own checksum. It runs for every row that is stored."""
    thumbnail = -1 if jpeg is None else zlib.crc32(jpeg)
    return zlib.crc32(f"{rid} {id} {vector_crc} {thumbnail} {metadata}".encode())


def digest_of(rids: Sequence[int] | np.ndarray, crcs: Sequence[int] | np.ndarray) -> int:
    """Return the sum of the hashes of rows (n,), 0 ... 2^64 - 1."""
    mixed = np.asarray(rids, np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(crcs, np.uint64)
    # the finalizer of splitmix64: without it, sums of different sets of rows would often be equal
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))


def add_digests(*digests: int) -> int:
    """Return the sum as a signed 64-bit number, which SQLite can store."""
    total = sum(digests) & _MASK
    return total - (1 << 64) if total >> 63 else total


def log_text(op: str, rids: Iterable[int], ids: Iterable[str]) -> bytes:
    """Return the log of some changes as its checksum covers it."""
    return "".join([f"{op}{rid} {id}\n" for rid, id in zip(rids, ids, strict=True)]).encode()


# ------------------------------------------------------------------------------ commits


def last_commit(connection: sqlite3.Connection) -> Commit:
    """Return the last commit; a new collection has commit 0."""
    row = connection.execute(
        "SELECT seq, at, items, digest, rid, log FROM commits ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    return Commit(*row) if row else Commit(0, 0.0, 0, 0, 0, 0)


def insert_commit(connection: sqlite3.Connection, commit: Commit) -> None:
    """Record a commit, in its transaction."""
    connection.execute("INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?)", commit.row)


def recounted(connection: sqlite3.Connection, before: Commit) -> Commit:
    """Return a commit with the count and digest of all rows, as they are now."""
    rows = np.array(connection.execute("SELECT rid, crc FROM items").fetchall(), np.int64).reshape(-1, 2)
    digest = add_digests(digest_of(rows[:, 0].astype(np.uint64), rows[:, 1].astype(np.uint64)))
    at = max(time.time(), before.at)
    return Commit(sequence(connection, "oplog"), at, len(rows), digest, sequence(connection, "items"), before.log)


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


def check_meta(connection: sqlite3.Connection, path: Path, recorded: tuple[int, int, int] | None) -> None:
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
        recorded is not None and recorded[0] == commit.seq and recorded != (commit.seq, commit.items, commit.digest)
    ):
        raise StoreCorrupt(f"{path} is damaged (its counters disagree with its last commit); {HINT}.")


def check_totals(connection: sqlite3.Connection, path: Path) -> None:
    """Compare the rows with the digest of the last commit, and the log of changes with its checksums.

    Raises:
        StoreCorrupt: rows or changes are missing, or should not exist.
    """
    last = last_commit(connection)
    counted = recounted(connection, last)
    if (counted.items, counted.digest) != (last.items, last.digest):
        raise StoreCorrupt(f"{path} is damaged ({counted.items} rows, but {last.items} were committed); {HINT}.")
    before: int | None = None
    for row in connection.execute("SELECT seq, at, items, digest, rid, log, crc FROM commits ORDER BY seq").fetchall():
        commit = Commit(*row[:-1])
        sound = commit.row == row
        if sound and before is not None:  # the log of the first commit may have been trimmed
            log = connection.execute(
                "SELECT op, rid, id FROM oplog WHERE seq > ? AND seq <= ? ORDER BY seq", [before, commit.seq]
            )
            changes = log.fetchall()
            text = b"".join(log_text(op, [rid], [id]) for op, rid, id in changes)
            sound = len(changes) == commit.seq - before and zlib.crc32(text) == commit.log
        if not sound:
            raise StoreCorrupt(f"{path} is damaged (the log of commit {commit.seq} fails its checksum); {HINT}.")
        before = commit.seq
