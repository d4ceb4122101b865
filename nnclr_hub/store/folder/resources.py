"""Everything that an open collection has: its file, its index, the thread that writes and the one that maintains."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nnclr_hub.errors import DiskFull, OpenedForReading, StoreError
from nnclr_hub.store.disk import free_bytes, size_of_file, translated
from nnclr_hub.store.folder.connections import Connections
from nnclr_hub.store.folder.filters import Filters
from nnclr_hub.store.folder.maintenance import Maintenance
from nnclr_hub.store.folder.recovery import follow, recover
from nnclr_hub.store.folder.schema import check_meta, connect, last_seq, read_spec
from nnclr_hub.store.folder.writer import Writer
from nnclr_hub.store.index.main import Main
from nnclr_hub.store.index.snapshot import clear_leftovers
from nnclr_hub.store.index.state import State, States
from nnclr_hub.store.reports import Statistics
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.sqlite import CommitRecord, check_size, quick_check, reading

T = TypeVar("T")


class Resources:
    """Opens a collection; see `EmbeddedCollection` for the arguments.

    writer: None if the collection is read-only.
    refusal: why it is read-only then.
    """

    def __init__(self, path: Path, lost: Path, settings: StoreSettings, *, read_only: bool) -> None:
        self._path, self._settings = path, settings
        self._folder = path.with_suffix("")
        self._following = threading.Lock()
        self.record = CommitRecord(self._folder / "commit")
        recorded = self.record.read()  # before the file, which another process may write
        self.refusal: StoreError = OpenedForReading()
        try:
            self._connection = connect(path, read_only=read_only)
        except DiskFull as error:  # it can be read at least, if it was closed cleanly
            read_only, self.refusal = True, error
            self._connection = connect(path, read_only=True)
        try:
            with translated(path):
                check_size(self._connection, path)
                self.spec = read_spec(self._connection)
                with reading(self._connection):
                    check_meta(self._connection, path, recorded)
                if not read_only:
                    self._folder.mkdir(exist_ok=True)
                    # the last writer did not close the file
                    if self._connection.execute("SELECT 1 FROM meta WHERE key = 'clean'").fetchone() is None:
                        quick_check(self._connection, path)
                    clear_leftovers(self._connection, self._folder, lost)
                with reading(self._connection):
                    state, saved = recover(self._connection, self.spec, settings, self._folder)
        except BaseException:
            self._connection.close()
            raise
        self.states = States(state)
        self.filters = Filters()
        self.writer: Writer | None = None
        self.connections = Connections(path, settings.memory, self.spec.precision)
        self.maintenance = Maintenance(self.states, settings, path, self.connections, saved)
        if not read_only:
            self.writer = Writer(self._connection, self.states, path, self.record, self.maintenance.wake)
        self.maintenance.writer = self.writer
        self.maintenance.wake()

    def close(self, *, keep: bool, dropped: bool) -> None:
        """Save the index if enough has changed, and close everything; see `EmbeddedCollection.close`."""
        try:
            self.maintenance.close(keep=keep, dropped=dropped)
        finally:
            self.connections.close(dropped=dropped)
            if self.writer is not None:
                self.writer.close(dropped=dropped)
            self._connection.close()  # last, so that SQLite merges its log into the file
            self.record.close()
            # code that still holds the closed collection need not hold its vectors
            self.states.replace(lambda _: State.of(-1, Main.empty(self.spec)))
            self.filters = Filters()

    @property
    def state(self) -> str:
        """As `CollectionInfo.state` has it."""
        return f"read-only: {self.refusal}" if isinstance(self.refusal, DiskFull) else self.maintenance.state

    def statistics(self) -> Statistics:
        """See `Collection.statistics`."""
        index, writer = self.states.latest, self.writer
        with translated(self._path):
            file_bytes = sum(map(size_of_file, (self._path, Path(f"{self._path}-wal"))))
        return Statistics(
            items=len(index.alive) if writer is None else writer.last.items,
            durable_seq=index.seq if writer is None else writer.last.seq,
            indexed_seq=index.seq,
            index=index.main.kind.name,
            state="closed" if self.connections.closed else self.state,
            index_bytes=index.nbytes,
            file_bytes=file_bytes,
            disk_free=free_bytes(self._path),
            commits=0 if writer is None else writer.commits,
            commit_seconds=0.0 if writer is None else writer.commit_seconds,
        )

    def read(self, work: Callable[[sqlite3.Connection, State], T]) -> T:
        """Run a read in a transaction with the index state of its commit; again if that state is forgotten."""
        while True:
            with self.connections.reader() as connection:
                self._follow(connection)
                state = self.states.at(last_seq(connection))
                if state is not None:
                    return work(connection, state)

    def _follow(self, connection: sqlite3.Connection) -> None:
        """Bring the index to what another process has committed, or to what it could not take from the writer."""
        last, writer = last_seq(connection), self.writer
        if last == self.states.latest.seq or (writer is not None and writer.behind is None):
            return
        with self._following:
            if last < self.states.latest.seq:  # another thread has a newer view: take a new one
                connection.execute("COMMIT")
                connection.execute("BEGIN")
                last = last_seq(connection)
            if last > self.states.latest.seq or (last < self.states.latest.seq and writer is None):
                follow(connection, self.states, self.spec, self._settings, self._folder)
        self.maintenance.wake()
