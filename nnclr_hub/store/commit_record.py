"""A record of the last commit of an SQLite file, in another file.

SQLite drops the rest of its log after the first damaged frame, so damage at the end of a log would lose commits
silently. The record is written after each commit without a separate sync. After a crash of the process it is exact.
After a loss of power it may be older than the SQLite file, never newer, because that is synced first.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

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


def _unpacked(data: bytes) -> tuple[int, int] | None:
    if len(data) != _RECORD.size + 4 or zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        return None
    magic, seq, items = _RECORD.unpack(data[:-4])
    return (seq, items) if magic == _MAGIC else None
