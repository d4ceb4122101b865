"""What makes damage visible: checksums of rows, totals of each commit, and a record of the last commit in another file.

    items.crc     CRC-32 over a row's number, id, metadata, vector and thumbnail
    commits       for each commit its last change, time, number of items, digest of all rows, and CRC-32 of its log
    UUID/commit   the last commit, in a separate file: SQLite drops the rest of a log after the first damaged frame

The digest is the sum of a hash of each row modulo 2^64, so a commit updates it without reading other rows. The record
is written after each commit without a separate sync. After a crash of the process it is exact. After a loss of power
it may be older than the catalog, never newer, because the catalog is synced first.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store.sqlite import HINT

_MASK = (1 << 64) - 1
_RECORD = struct.Struct("<8sqqq")
_MAGIC = b"nnclrhub"
_SLOT = 512  # bytes; two sectors, written in turn, so that one is always whole


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


class CommitRecord:
    """The record of the last commit outside of the SQLite file.

    Args:
        folder: of the collection's index files.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "commit"
        self._file: int | None = None
        self._slot = 0

    def read(self) -> tuple[int, int, int] | None:
        """Return change, number of items and digest of the newest commit that it records; None if it records none."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return None
        found = [_unpacked(data[start : start + _RECORD.size + 4]) for start in (0, _SLOT)]
        return max((one for one in found if one is not None), default=None)

    def write(self, commit: Commit) -> None:
        """Record a commit; a disk that is full or fails is ignored, because the catalog has it."""
        packed = _RECORD.pack(_MAGIC, commit.seq, commit.items, commit.digest)
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            os.pwrite(self._file, packed + struct.pack("<I", zlib.crc32(packed)), self._slot)
        except OSError:
            return
        self._slot = _SLOT - self._slot

    def reset(self, commit: Commit) -> None:
        """Replace the record, for a file that may lack what is recorded."""
        self.close()
        self._path.unlink(missing_ok=True)
        if self._path.parent.is_dir():
            self.write(commit)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _unpacked(data: bytes) -> tuple[int, int, int] | None:
    if len(data) != _RECORD.size + 4 or zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        return None
    magic, seq, items, digest = _RECORD.unpack(data[:-4])
    return (seq, items, digest) if magic == _MAGIC else None
