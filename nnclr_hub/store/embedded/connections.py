"""Connections for reading: as many as there are threads that read at once, used again and again."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nnclr_hub.store.embedded.catalog import closed_error, connect, reading, translated

# pages that the first connection keeps, and each further one fewer: enough for the items of a million rows, whose
# matches lie anywhere
CACHE_KIB = 128 << 10
IDLE_MOST = 8


class Connections:
    """Read-only connections to one file.

    Args:
        path: of the file.
        begun: called with a connection whose read transaction has just begun.
    """

    def __init__(self, path: Path, begun: Callable[[sqlite3.Connection], None] = lambda connection: None) -> None:
        self._path = path
        self._begun = begun
        self._idle: deque[sqlite3.Connection] = deque()  # taken from the end, where the pages are the warmest
        self._open = 0
        self.closed = self._dropped = False

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A connection in a read transaction: everything in the block sees the same state.

        Raises:
            StoreReadOnly, CollectionNotFound: the collection is closed, or was dropped.
            StoreError: what SQLite says, as a sentence.
        """
        if self.closed:
            raise closed_error(self._path, self._dropped)
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = connect(self._path, read_only=True)
            self._open += 1
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB // self._open}")
        try:
            with translated(self._path), reading(connection):
                self._begun(connection)
                yield connection
        finally:
            if self.closed or len(self._idle) >= IDLE_MOST:
                self._open -= 1
                connection.close()
            else:
                self._idle.append(connection)

    def close(self, *, dropped: bool = False) -> None:
        """Closes those that are idle; the others when they are given back."""
        self._dropped = dropped
        self.closed = True
        while self._idle:
            self._idle.pop().close()
