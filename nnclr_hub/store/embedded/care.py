"""The care of a collection's index: folds, snapshots, loading it anew; when due by itself, or when asked for."""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

import faiss
import numpy as np

from nnclr_hub.errors import StoreError
from nnclr_hub.store.ann.fold import due, fold
from nnclr_hub.store.ann.index import AnnIndex
from nnclr_hub.store.ann.kinds import Stopped
from nnclr_hub.store.ann.main_index import threads
from nnclr_hub.store.base import Progress
from nnclr_hub.store.embedded import snapshots
from nnclr_hub.store.embedded.catalog import closed_error, last_seq, reading, translated
from nnclr_hub.store.embedded.connections import Connections
from nnclr_hub.store.embedded.maintenance import Maintenance
from nnclr_hub.store.embedded.recovery import Written, rebuild
from nnclr_hub.store.embedded.rows import fetch_vectors
from nnclr_hub.store.embedded.writer import Writer

log = logging.getLogger(__name__)
# changes since the last snapshot from which a new one is worth its while: on closing, and between
SNAPSHOT_ON_CLOSE = 1000
SNAPSHOT_AFTER = 20_000
SNAPSHOT_SHARE = 0.25  # of the rows


class Care:
    """Looks after one index.

    Args:
        index: which.
        path: of the collection's file; its snapshots lie in the folder of the same stem.
        connections: for reading the catalog.
        written: what is on disk of it.
    """

    def __init__(self, index: AnnIndex, path: Path, connections: Connections, written: Written) -> None:
        self._index = index
        self._path = path
        self._folder = path.with_suffix("")
        self._connections = connections
        self._written = written
        self._folding = threading.Lock()
        self._writing_down = threading.Lock()
        self._dropped = False
        self._maintenance = Maintenance(f"care of {path.name}", self._reload, self._fold, self._snapshot)
        self.writer: Writer | None = None  # None for who only reads

    def wake(self) -> None:
        """Has it look whether something is due."""
        self._maintenance.wake()

    @property
    def state(self) -> str:
        """As `CollectionInfo.state` has it."""
        if self.writer is not None and self.writer.failure:
            return f"read-only: {self.writer.failure}"
        behind = self.writer.behind if self.writer is not None else None
        reason = behind or self._maintenance.failure
        return f"degraded: {reason}" if reason else "ready"

    # ---- when asked for

    def compact(self, progress: Progress) -> None:
        """Builds the index anew without what was deleted."""
        try:
            with self._folding:
                fold(self._index, self._fetch, anew=True, stop=self._maintenance.stopping, progress=progress)
        except Stopped as error:
            raise closed_error(self._path, self._dropped) from error

    def snapshot(self, due_at: int | None = None) -> None:
        """Writes the index down as it is now.

        Args:
            due_at: only if so much is unwritten.

        Raises:
            DiskFull, StoreError: it could not be; the snapshots before it stay.
        """
        assert self.writer is not None
        self.writer.refuse_failed()
        with self._writing_down, translated(self._path):
            if due_at is not None and self._unwritten() < due_at:  # somebody has just written one
                return
            state = self._index.state()
            generation = self.writer.exclusively(snapshots.next_generation)
            try:
                snapshots.write_snapshot(state, self._folder, generation, self.writer.exclusively)
            except StoreError as error:
                if self._dropped:  # and its folder with it
                    raise closed_error(self._path, True) from error
                raise
            self._written = Written(state.seq, len(state.rids))

    def rebuild(self) -> None:
        """Loads the index anew from the catalog; it grows into its kind afterwards."""
        assert self.writer is not None
        with self._folding:
            self.writer.reload(self._rebuilt)
        self.wake()

    def close(self, *, keep: bool, dropped: bool = False) -> None:
        """Ends its thread, and leaves the index on disk if that is worth its while, with the mark that all is well."""
        self._dropped = dropped
        self._maintenance.close()
        if keep and self.writer is not None and self.writer.failure is None and self.writer.behind is None:
            try:
                if self._unwritten() >= SNAPSHOT_ON_CLOSE:
                    self.snapshot()
            except StoreError as error:  # the next start replays the log instead
                log.warning("no snapshot of the index was left: %s", error)
            with translated(self._path):
                self.writer.exclusively(_mark_clean)

    # ---- when due

    def _reload(self, idle: bool) -> bool:
        if self.writer is None or self.writer.behind is None:
            return False
        self.rebuild()
        return True

    def _fold(self, idle: bool) -> bool:
        if not due(self._index, idle):
            return False
        # searches and writes are what the machine is for
        with self._folding, threads(max(1, faiss.omp_get_max_threads() // 2)):
            fold(self._index, self._fetch, stop=self._maintenance.stopping)
        return True

    def _snapshot(self, idle: bool) -> bool:
        due_at = max(SNAPSHOT_AFTER, int(SNAPSHOT_SHARE * len(self._index.parts.rids)))
        if self.writer is None or self._unwritten() < due_at:
            return False
        self.snapshot(due_at)
        return True

    def _unwritten(self) -> int:
        """How much work the next start would have to do again: changes to replay, or rows to fold."""
        folded = abs(len(self._index.parts.rids) - self._written.rows)
        return max(self._index.seq - self._written.seq, folded)

    def _fetch(self, rids: np.ndarray) -> np.ndarray:
        with self._connections.reader() as connection:
            return fetch_vectors(connection, self._index.spec, rids)

    def _rebuilt(self, connection: sqlite3.Connection) -> None:
        with reading(connection):
            rebuild(connection, self._index)


def _mark_clean(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('clean', ?)", [str(last_seq(connection))])


def take_clean_mark(connection: sqlite3.Connection) -> bool:
    """Whether the last writer closed the file; until this one does, it counts as not closed."""
    return connection.execute("DELETE FROM meta WHERE key = 'clean'").rowcount == 1
