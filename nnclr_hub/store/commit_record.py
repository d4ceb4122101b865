"""A record of the last commit of an SQLite file, in another file.

SQLite drops the rest of its log after the first damaged frame, so damage at the end of a log would lose commits
silently. The record is written after each commit without a separate sync. After a crash of the process it is exact.
After a loss of power it may be older than the SQLite file, never newer, because that is synced first.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import zlib
from pathlib import Path

from nnclr_hub.errors import StoreCorrupt

_RECORD = struct.Struct("<8sqq")
_MAGIC = b"nnclrhu2"
_SLOT = 512  # bytes; two sectors, written in turn, so that one is always whole


class CommitRecord:
    """The record of the last commit of an SQLite file.

    Args:
        path: of the record.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._slot = 0

    def read(self) -> tuple[int, int] | None:
        """Return change and number of items of the newest commit that it records; None if it records none."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return None
        found = [_unpacked(data[start : start + _RECORD.size + 4]) for start in (0, _SLOT)]
        return max((one for one in found if one is not None), default=None)

    def write(self, seq: int, items: int = 0) -> None:
        """Record a commit; a disk that is full or fails is ignored, because the SQLite file has it."""
        packed = _RECORD.pack(_MAGIC, seq, items)
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            os.pwrite(self._file, packed + struct.pack("<I", zlib.crc32(packed)), self._slot)
        except OSError:
            return
        self._slot = _SLOT - self._slot

    def remove(self) -> None:
        """Delete the record, for a file that may lack what is recorded."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class CountedCommits:
    """The number of commits of a small SQLite file, in the file itself and in a record next to it.

    Args:
        path: of the SQLite file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._record = CommitRecord(path.with_name(f"{path.name}.commit"))
        self._recorded: tuple[int, int] | None = None

    def begin(self) -> None:
        """Read the record. This comes before the SQLite file is opened, because another process may write it."""
        self._recorded = self._record.read()

    def check(self, connection: sqlite3.Connection | None) -> None:
        """Check that the file has all commits that are recorded.

        Args:
            connection: to the file; None if it does not exist.

        Raises:
            StoreCorrupt: it lacks some.
        """
        missing = 0 if self._recorded is None else self._recorded[0] - _count(connection)
        if missing > 0:
            reason = f"it lacks {missing} acknowledged changes, because its log is damaged or missing"
            raise StoreCorrupt(f"{self._path} is damaged: {reason}.") from ValueError(reason)

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Let the file count its commits."""
        if not _has_count(connection):
            connection.executescript(
                "BEGIN; CREATE TABLE commits (n INTEGER NOT NULL) STRICT; INSERT INTO commits VALUES (0); COMMIT;"
            )

    def count(self, connection: sqlite3.Connection) -> int:
        """Count a commit in its transaction, and return its number, which `record` needs after the commit."""
        return connection.execute("UPDATE commits SET n = n + 1 RETURNING n").fetchone()[0]

    def record(self, number: int) -> None:
        """Record a commit."""
        self._record.write(number)

    def remove(self) -> None:
        """Delete the record, because the file is replaced by one that may lack commits."""
        self._record.remove()

    def close(self) -> None:
        """Close the record."""
        self._record.close()


def _has_count(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'commits'").fetchone() is not None


def _count(connection: sqlite3.Connection | None) -> int:
    if connection is None or not _has_count(connection):
        return 0
    return connection.execute("SELECT n FROM commits").fetchone()[0]


def _unpacked(data: bytes) -> tuple[int, int] | None:
    if len(data) != _RECORD.size + 4 or zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        return None
    magic, seq, items = _RECORD.unpack(data[:-4])
    return (seq, items) if magic == _MAGIC else None
