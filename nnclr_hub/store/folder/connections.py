"""Connections for reading: as many as there are threads that read at the same time, reused."""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nnclr_hub.store.cancellation import cancellable_queries
from nnclr_hub.store.disk import check_process, translated
from nnclr_hub.store.folder.schema import connect
from nnclr_hub.store.folder.writer import closed_error
from nnclr_hub.store.sqlite import reading

# page cache of the first connection, by precision; each further one gets a smaller share. It holds the items of a
# million rows, whose matches are spread over the whole file; f16 is chosen to save memory, and reads pages again
CACHE_BYTES = {"f32": 128 << 20, "f16": 3 << 20}
CACHE_SHARE = 16  # of the memory of the index, at most
MAX_IDLE = 8


class Connections:
    """Read-only connections to one file.

    Args:
        path: of the file.
        memory: of the index, which bounds the caches too.
        precision: of the collection.
    """

    def __init__(self, path: Path, memory: int, precision: str) -> None:
        self._path = path
        self._cache_kib = min(CACHE_BYTES[precision], memory // CACHE_SHARE) >> 10
        self._idle: deque[sqlite3.Connection] = deque()  # used from the end, where the caches are the warmest
        self._open = 0
        self._pid = os.getpid()
        self.closed = self._dropped = False

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Provide a connection in a read transaction: everything in the block sees the same state."""
        check_process(self._pid)
        if self.closed:
            raise closed_error(self._dropped)
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = connect(self._path, read_only=True)
            self._open += 1
            connection.execute(f"PRAGMA cache_size = -{self._cache_kib // self._open}")
        try:
            with translated(self._path), cancellable_queries(connection), reading(connection):
                yield connection
        finally:
            if self.closed or len(self._idle) >= MAX_IDLE:
                self._open -= 1
                connection.close()
            else:
                self._idle.append(connection)

    def close(self, *, dropped: bool = False) -> None:
        """Close idle connections now, and the others when they are returned."""
        self._dropped = dropped
        self.closed = True
        while self._idle:
            self._idle.pop().close()
