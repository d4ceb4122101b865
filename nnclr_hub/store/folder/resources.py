"""The resources of an open collection: its file, its index, the writer thread and the maintenance thread.

When it is opened, the index is restored. The snapshot has the main part. The catalog has the rows: those of the main
part that still exist, and those that were added since. If they do not fit together, the index is built from the
catalog. A damaged or missing snapshot therefore costs time and nothing else.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from nnclr_hub.errors import DiskFull, OpenedForReading, StoreError
from nnclr_hub.store.cancellation import cancellable_queries
from nnclr_hub.store.disk import free_bytes
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder.filters import Facets, Filters
from nnclr_hub.store.folder.maintenance import Maintenance
from nnclr_hub.store.folder.rows import all_rids, fetch_vectors, last_seq
from nnclr_hub.store.folder.schema import check_meta, connect, read_spec
from nnclr_hub.store.folder.writer import Writer, closed_error
from nnclr_hub.store.index.fold import load
from nnclr_hub.store.index.snapshot import clear_leftovers, load_snapshot
from nnclr_hub.store.index.state import NO_ROWS, Main, State, States
from nnclr_hub.store.index_kinds import FLAT
from nnclr_hub.store.reports import Statistics
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.sqlite import (
    CommitRecord,
    bytes_of_database,
    check_process,
    check_size,
    quick_check,
    reading,
    translated,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
# page cache of the first connection, by precision; each further one gets a smaller share. It holds the items of a
# million rows, whose matches are spread over the whole file; f16 is chosen to save memory, and reads pages again
CACHE_BYTES = {"f32": 128 << 20, "f16": 3 << 20}
CACHE_SHARE = 16  # this part of the memory of the index, at most
MAX_IDLE = 8
MAX_FOLLOWED = 50_000  # changes; of more, not all vectors are read at once


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
        except DiskFull:  # it can be read at least, if it was closed cleanly
            read_only = True
            self.refusal = DiskFull(
                f"The disk of {path} was full when the file was opened; free some space, then open the store again."
            )
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
                    state, saved = self._recover(self._connection)
        except BaseException:
            self._connection.close()
            raise
        self.states = States(state)
        self.filters, self.facets = Filters(), Facets()
        self.writer: Writer | None = None
        self.connections = Connections(path, settings.memory, self.spec.precision)
        self.maintenance = Maintenance(self.states, settings, path, self.connections.reader, self._rebuild, saved)
        if not read_only:
            wake = self.maintenance.wake
            self.writer = self.maintenance.writer = Writer(self._connection, self.states, path, self.record, wake)
        self.maintenance.wake()

    def close(self, *, keep: bool) -> None:
        """Save the index if enough has changed, and close everything; see `EmbeddedCollection.close`."""
        try:
            self.maintenance.close(keep=keep)
        finally:
            self.connections.close(keep=keep)
            if self.writer is not None:
                self.writer.close(keep=keep)
            self._connection.close()  # last, so that SQLite merges its log into the file
            self.record.close()
            # code that still holds the closed collection need not hold its vectors
            self.states.replace(lambda _: State.of(-1, Main.empty(self.spec)))
            self.filters, self.facets = Filters(), Facets()

    @property
    def state(self) -> str:
        """As `CollectionInfo.state` has it."""
        return f"read-only: {self.refusal}" if isinstance(self.refusal, DiskFull) else self.maintenance.state

    def statistics(self) -> Statistics:
        """See `Collection.statistics`."""
        index, writer = self.states.latest, self.writer
        return Statistics(
            items=len(index.alive) if writer is None else writer.last.items,
            durable_seq=index.seq if writer is None else writer.last.seq,
            indexed_seq=index.seq,
            index=index.main.kind.name,
            state="closed" if self.connections.closed else self.state,
            index_bytes=index.nbytes,
            file_bytes=bytes_of_database(self._path),
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
                self._catch_up(connection, last)
        self.maintenance.wake()

    def _catch_up(self, connection: sqlite3.Connection, last: int) -> None:
        """Bring states to the view of a read transaction: by the log, or from the catalog if the log was trimmed.

        A file that was salvaged from a damaged one may restart its numbers; then, too, everything is read again.
        """
        before = self.states.latest.seq
        if 0 <= last - before <= MAX_FOLLOWED:  # after more, the snapshot of the process that writes is newer
            changes = connection.execute("SELECT op, rid FROM oplog WHERE seq > ? ORDER BY seq", [before]).fetchall()
            if len(changes) == last - before:
                deleted = np.unique(np.array([rid for op, rid in changes if op == "-"], np.int64))
                added = np.unique(np.array([rid for op, rid in changes if op == "+"], np.int64))
                added = np.setdiff1d(added, deleted, assume_unique=True)  # others are in no table
                vectors = np.nan_to_num(fetch_vectors(connection, self.spec, added))
                self.states.advance(last, deleted, added, vectors, since=before)
                return
        state, _ = self._recover(connection)
        self.states.replace(lambda latest: state if last < before or latest.seq < state.seq else None)

    # ---- the index at the start

    def _recover(self, connection: sqlite3.Connection) -> tuple[State, Main | None]:
        """Return the state of the catalog that a read transaction sees, and the main part that is on disk."""
        saved = load_snapshot(connection, self.spec, self._folder)
        if saved is None:
            return self._rebuild(connection), None
        reached("recover.loaded")
        if saved.kind is FLAT:
            state = self._rebuild(connection, saved)
            saved = state.main
        else:
            state = self._with_snapshot(connection, saved)
        if state is None:
            log.warning("the index in %s does not agree with the catalog; building it again", self._folder)
            state, saved = self._rebuild(connection, saved), None
        reached("recover.replayed")
        return state, saved

    def _rebuild(self, connection: sqlite3.Connection, saved: Main | None = None) -> State:
        """Return a state that is built from the catalog in the caller's transaction, with a saved transform."""
        known = None if saved is None else (saved.transform, saved.fitted_rows)
        fetch = partial(fetch_vectors, connection, self.spec)
        return State.of(last_seq(connection), load(self.spec, self._settings, all_rids(connection), fetch, known))

    def _with_snapshot(self, connection: sqlite3.Connection, saved: Main) -> State | None:
        """Return a state with a saved main part; None if the catalog has rows that it should have and lacks."""
        truth = all_rids(connection)
        later = int(np.searchsorted(truth, saved.rids[-1], "right"))
        alive = np.isin(saved.rids, truth[:later], assume_unique=True)
        if np.count_nonzero(alive) != later:
            return None
        state = State.of(last_seq(connection), saved, alive)
        for start in range(later, len(truth), self._settings.batch):
            rids = truth[start : start + self._settings.batch]
            vectors = np.nan_to_num(fetch_vectors(connection, self.spec, rids))
            state = state.after(state.seq, NO_ROWS, rids, vectors)
        return state


class Connections:
    """Read-only connections to one file; `memory` is that of the index, which bounds the caches, too."""

    def __init__(self, path: Path, memory: int, precision: str) -> None:
        self._path = path
        self._cache_kib = min(CACHE_BYTES[precision], memory // CACHE_SHARE) >> 10
        self._idle: deque[sqlite3.Connection] = deque()  # used from the end, where the caches are the warmest
        self._used = 0
        self._counting = threading.Lock()
        self._pid = os.getpid()
        self.closed = False
        self._keep = True

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Provide a connection in a read transaction: everything in the block sees the same state."""
        check_process(self._pid)
        if self.closed:
            raise closed_error(keep=self._keep)
        with self._counting:
            self._used += 1
        connection = None
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = connect(self._path, read_only=True)
                connection.execute(f"PRAGMA cache_size = -{self._cache_kib // (self._used + len(self._idle))}")
            with translated(self._path), cancellable_queries(connection), reading(connection):
                yield connection
        finally:
            if connection is not None:
                if self.closed or len(self._idle) >= MAX_IDLE:
                    connection.close()
                else:
                    self._idle.append(connection)
            with self._counting:
                self._used -= 1

    def close(self, *, keep: bool) -> None:
        """Close idle connections now, and the others when they are returned."""
        self._keep = keep
        self.closed = True
        with suppress(IndexError):  # another thread may take the last one
            while True:
                self._idle.pop().close()
