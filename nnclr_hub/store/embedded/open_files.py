"""Everything that an open collection has: its file, its index, the thread that writes and the one that maintains."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nnclr_hub.errors import DiskFull, OpenedForReading, StoreError
from nnclr_hub.store.ann.index import AnnIndex, ViewTooOld
from nnclr_hub.store.columns.columns import Columns, TooLarge
from nnclr_hub.store.commit_record import CommitRecord
from nnclr_hub.store.embedded import recovery, snapshots
from nnclr_hub.store.embedded.catalog import connect, last_seq, read_spec
from nnclr_hub.store.embedded.connections import Connections
from nnclr_hub.store.embedded.integrity import check_meta
from nnclr_hub.store.embedded.maintenance import IndexMaintenance, is_clean
from nnclr_hub.store.embedded.recent_rows import RecentRows
from nnclr_hub.store.embedded.rows import fetch_vectors
from nnclr_hub.store.embedded.search import Searcher
from nnclr_hub.store.embedded.view import View
from nnclr_hub.store.embedded.writer import Writer
from nnclr_hub.store.folder import Reserve
from nnclr_hub.store.percentiles import RandomVectors, random_items
from nnclr_hub.store.reports import Statistics
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.sqlite import check_log, check_size, free_bytes, quick_check, reading, translated

T = TypeVar("T")
MEMORY_SHARE = 4  # columns may use this part of the memory of the index
RECENT_BYTES, RECENT_SHARE = 16 << 20, 64  # of rows that searches returned; at most this part of that memory


class OpenFiles:
    """Opens a collection; see `EmbeddedCollection` for the arguments.

    writer: None if the collection is read-only.
    refusal: why it is read-only then.
    """

    def __init__(self, path: Path, lost: Path, settings: StoreSettings, reserve: Reserve, *, read_only: bool) -> None:
        self._path = path
        self._lost = lost
        self.refreshing = threading.RLock()
        self.record = CommitRecord(path.with_suffix("") / "commit")
        recorded = self.record.read()  # before the file, which another process may write
        self.refusal: StoreError = OpenedForReading()
        if not read_only:
            check_log(path)
        try:
            self._connection = connect(path, read_only=True) if read_only else reserve.run(lambda: connect(path))
        except DiskFull as error:  # it can be read at least, if it was closed cleanly
            read_only, self.refusal = True, error
            self._connection = connect(path, read_only=True)
        try:
            with translated(path):
                check_size(self._connection, path)
                self.spec = read_spec(self._connection)
                with reading(self._connection):
                    check_meta(self._connection, path, recorded)
                self.index = AnnIndex(self.spec, settings)
                if not read_only:
                    self._prepare_files()
                saved = recovery.recover(self._connection, self.index, path.with_suffix(""))
        except BaseException:
            self._connection.close()
            raise
        follow = self._follow if read_only else lambda connection: None
        self.connections = Connections(path, settings.memory, self.spec.precision, follow)
        self.columns = Columns(settings.memory // MEMORY_SHARE)
        self.recent = RecentRows(self.index.seq, min(RECENT_BYTES, settings.memory // RECENT_SHARE))
        self.searcher = Searcher(self.index, self.columns, self.recent)
        self.maintenance = IndexMaintenance(self.index, path, self.connections, saved, self._load_indexed)
        self.writer = None
        if not read_only:
            wake = self.maintenance.wake
            self.writer = Writer(self._connection, self.index, path, self.record, reserve, wake, self.recent.advance)
        self.maintenance.writer = self.writer
        self.maintenance.wake()

    def _prepare_files(self) -> None:
        folder = self._path.with_suffix("")
        folder.mkdir(exist_ok=True)
        if not is_clean(self._connection):
            quick_check(self._connection, self._path)
        snapshots.clear_leftovers(self._connection, folder, self._lost)

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
            self.index.clear()  # code that still holds the closed collection need not hold its vectors

    @property
    def failed(self) -> bool:
        """Whether the disk failed during a write."""
        return self.writer is not None and self.writer.failure is not None

    @property
    def state(self) -> str:
        """As `CollectionInfo.state` has it."""
        if isinstance(self.refusal, DiskFull):
            return f"read-only: {self.refusal}"
        return self.maintenance.state

    def statistics(self) -> Statistics:
        """See `Collection.statistics`."""
        index, writer = self.index, self.writer
        files = (self._path, Path(f"{self._path}-wal"))
        with translated(self._path):
            file_bytes = sum(map(_size, files))
            disk_free = free_bytes(self._path)
        return Statistics(
            items=len(index.live_rids()) if writer is None else writer.last.items,
            durable_seq=index.seq if writer is None else writer.durable_seq,
            indexed_seq=index.seq,
            index=index.kind.name,
            state="closed" if self.connections.closed else self.state,
            index_bytes=index.nbytes,
            file_bytes=file_bytes,
            disk_free=disk_free,
            commits=0 if writer is None else writer.commits,
            commit_seconds=0.0 if writer is None else writer.commit_seconds,
        )

    def in_view(self, read: Callable[[sqlite3.Connection, int], T]) -> T:
        """Run a read with a view of the catalog and the number of its last change; again, if the view was too old."""
        while True:
            try:
                with self.connections.reader() as connection:
                    return read(connection, last_seq(connection))
            except ViewTooOld:
                continue

    def search_in_view(self, read: Callable[[View], T]) -> T:
        """Run a read as `in_view` does, with a view that needs no transaction if everything is in memory."""
        at, writer = self.index.seq, self.writer
        # what this process has acknowledged is in the index, or else `recent` is ahead; others are only seen by reading
        if writer is not None and self.recent.seq == at:
            try:
                with View(at, self.connections) as view:
                    return read(view)
            except ViewTooOld:
                pass

        def current(connection: sqlite3.Connection, at: int) -> T:
            self.wait_for_index(at)
            return read(View(at, connection=connection))

        return self.in_view(current)

    def wait_for_index(self, seq: int) -> None:
        """Wait until searches see a change."""
        # an index that could not follow is reloaded by maintenance; until then searches go without the last changes
        if self.writer is None or self.writer.behind is None:
            self.index.wait_for(seq)

    def random_vectors(self) -> RandomVectors:
        """See `Collection.random_vectors`."""
        with self.connections.reader() as connection:
            changes = self.vector_changes()
            rids = self.index.live_rids()
            some = rids[random_items(len(rids), self.spec.dim)]
            return RandomVectors(self.index.compared(fetch_vectors(connection, self.spec, some)), len(rids), changes)

    def vector_changes(self) -> tuple[int, ...]:
        """See `Collection.vector_changes`."""
        return self.index.added, self.index.deleted

    def _follow(self, connection: sqlite3.Connection) -> None:
        """Update a read-only index to what another process has committed."""
        if last_seq(connection) != self.index.seq:
            with self.refreshing:
                if last_seq(connection) < self.index.seq:  # another thread has a newer view: take a new one
                    connection.execute("COMMIT")
                    connection.execute("BEGIN")
                if last_seq(connection) < self.index.seq:  # the file was replaced
                    self.columns.forget()
                if last_seq(connection) != self.index.seq:
                    recovery.follow(connection, self.index, self._path.with_suffix(""))
                    self.recent.restart(self.index.seq)
            self.maintenance.wake()

    def _load_indexed(self, idle: bool) -> bool:
        """Read the columns of the indexed keys, so that no filter has to wait for them."""
        keys = set(self.spec.indexed)
        # not for a process that opens the collection only for a moment
        if not idle or not self.columns.lacks(keys):
            return False
        try:
            with self.connections.reader() as connection:
                self.columns.load(connection, last_seq(connection), keys, stay=True, stop=self.maintenance.stopping)
        except ViewTooOld:
            return True  # again, with a newer view
        except TooLarge:
            return False
        return False


def _size(file: Path) -> int:
    """Return the bytes of a file; 0 if it does not exist, as the log of a file that another thread closes now."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
