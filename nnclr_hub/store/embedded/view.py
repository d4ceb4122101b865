"""A view of the catalog that begins a transaction only if something is needed that is not in memory."""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager
from types import TracebackType

from nnclr_hub.store.ann.index import ViewTooOld
from nnclr_hub.store.embedded.catalog import last_seq
from nnclr_hub.store.embedded.connections import Connections


class View:
    """The catalog as it was after a change.

    Args:
        at: the change.
        connections: for a transaction that is begun when it is needed.
        connection: in a read transaction that sees this change.
    """

    def __init__(
        self, at: int, connections: Connections | None = None, connection: sqlite3.Connection | None = None
    ) -> None:
        self.at = at
        self._connections = connections
        self._connection = connection
        self._reader: AbstractContextManager[sqlite3.Connection] | None = None

    @property
    def connection(self) -> sqlite3.Connection:
        """A connection in a read transaction.

        Raises:
            ViewTooOld: the catalog has changed since.
        """
        if self._connection is None:
            assert self._connections is not None
            reader = self._connections.reader()
            self._connection = reader.__enter__()
            self._reader = reader
            if last_seq(self._connection) != self.at:
                raise ViewTooOld
        return self._connection

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None if self._reader is None else self._reader.__exit__(kind, error, trace)
