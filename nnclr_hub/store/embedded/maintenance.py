"""Maintenance of a collection's index: folds, snapshots and reloads, on request or on a background thread."""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np

from nnclr_hub.errors import StoreError
from nnclr_hub.store.ann.build import Stopped
from nnclr_hub.store.ann.fold import fold, is_due, live_count, most_delta
from nnclr_hub.store.ann.heap import trim
from nnclr_hub.store.ann.index import AnnIndex
from nnclr_hub.store.ann.main_index import threads
from nnclr_hub.store.ann.transform import SAMPLE, is_outdated
from nnclr_hub.store.base import Progress
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.embedded import snapshots
from nnclr_hub.store.embedded.catalog import closed_error, free_pages, give_back_pages, last_seq
from nnclr_hub.store.embedded.connections import Connections
from nnclr_hub.store.embedded.recovery import Saved, rebuild
from nnclr_hub.store.embedded.rows import fetch_vectors
from nnclr_hub.store.embedded.writer import Writer
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.index_kinds import FLAT
from nnclr_hub.store.sqlite import LOW_WATER, free_bytes, reading, translated

log = logging.getLogger(__name__)
NICE = 10
POLL_SECONDS = 0.02
# of the pages, and pages, that must be free before they are given back
FREE_SHARE = 0.1
FREE_PAGES = 16
PROMISED_RECALL = 0.95  # an index that finds less is reported
SNAPSHOT_SHARE = 0.25  # of the rows: a larger collection is saved after more changes
FLAT_CHANGES = 8  # times as many for a flat index while writes continue: the catalog is read as fast as its snapshot


class IndexMaintenance:
    """Maintains one index.

    Args:
        index: to maintain.
        path: of the collection's file; its snapshots are in the folder with the same stem.
        connections: for reading the catalog.
        saved: how much of the index is on disk.
        load_columns: a task that reads the indexed keys of the metadata.
    """

    def __init__(
        self, index: AnnIndex, path: Path, connections: Connections, saved: Saved, load_columns: Callable[[bool], bool]
    ) -> None:
        self._index = index
        self._path = path
        self._folder = path.with_suffix("")
        self._connections = connections
        self._saved = saved
        self._folding = threading.Lock()
        self._saving = threading.Lock()
        self._dropped = False
        self._looked = 0.0  # when free pages were last counted
        tasks = (self._reload, self._fold, self._snapshot, self._give_back, load_columns)
        settings = index.settings
        self._pause = settings.idle_seconds
        self._thread = BackgroundThread(
            f"maintenance of {path.name}", tasks, settings.idle_seconds, settings.pause_seconds
        )
        self.writer: Writer | None = None  # None: the store is open read-only

    def wake(self) -> None:
        """Check soon whether something is due."""
        self._thread.wake()

    def stopping(self) -> bool:
        """Return whether long work should stop."""
        return self._thread.stopping()

    @property
    def busy(self) -> bool:
        """Whether it builds or saves the index now."""
        return self._folding.locked() or self._saving.locked()

    @property
    def state(self) -> str:
        """As `CollectionInfo.state` has it."""
        if self.writer is not None and self.writer.failure:
            return f"read-only: {self.writer.failure}"
        behind = self.writer.behind or self.writer.full if self.writer is not None else None
        reason = behind or self._thread.failure
        if reason is None and self.writer is not None and (free := free_bytes(self._path)) < LOW_WATER:
            reason = f"the disk has {free >> 20} MiB free, so writes are refused; items can be deleted"
        recall = self._index.recall
        if reason is None and recall < PROMISED_RECALL:
            reason = (
                f"searches find about {recall:.2f} of the nearest items; open the store with more memory, choose "
                "another kind of index, or search exactly"
            )
        return f"degraded: {reason}" if reason else "ready"

    def wait_for_fold(self) -> None:
        """Wait while the rows that are not in the index yet need too much memory: writes are faster than a build."""
        most = most_delta(self._index)
        while self._index.parts.delta.count > most and not self._thread.failure and not self._thread.stopping():
            check_cancelled()  # nothing is written yet
            self.wake()
            time.sleep(POLL_SECONDS)

    # ---- on request

    def compact(self, progress: Progress) -> None:
        """Rebuild the index without deleted rows."""
        try:
            with self._folding:
                fold(
                    self._index,
                    self._fetch,
                    newest=self._newest,
                    rebuild=True,
                    stop=self._thread.stopping,
                    progress=progress,
                )
        except Stopped as error:
            raise closed_error(self._dropped) from error
        trim()

    def snapshot(self, due_at: int | None = None) -> None:
        """Save the index as it is now.

        Args:
            due_at: only if at least this many changes are unsaved.

        Raises:
            DiskFull, StoreError: it could not be saved; earlier snapshots stay.
        """
        assert self.writer is not None
        self.writer.refuse_failed()
        with self._saving, translated(self._path):
            if due_at is not None and self._unsaved() < due_at:  # another thread has just saved it
                return
            state = self._index.state()
            generation = self.writer.exclusively(snapshots.next_generation)
            try:
                kept = self._index.settings.kept_changes
                snapshots.write_snapshot(state, self._folder, generation, self.writer.exclusively, kept)
            except StoreError as error:
                if self._dropped:  # and its folder with it
                    raise closed_error(True) from error
                raise
            self._saved = Saved.of(state)

    def rebuild(self) -> None:
        """Reload the index from the catalog; later folds build its final kind."""
        assert self.writer is not None
        with self._folding:
            self.writer.reload(self._load)
        self.wake()

    def close(self, *, keep: bool, dropped: bool = False) -> None:
        """End the thread. With `keep`, save the index if enough has changed, and record that all is well."""
        self._dropped = dropped
        self._thread.close()
        if keep and self.writer is not None and self.writer.failure is None and self.writer.behind is None:
            try:
                self._fit_at_last()
                if self._unsaved() >= self._index.settings.snapshot_on_close:
                    self.snapshot()
            except StoreError as error:  # the next start replays the log instead
                log.warning("no snapshot of the index was saved: %s", error)
            if self.writer.touched:
                self._set_clean_flag()

    def _fit_at_last(self) -> None:
        """Fit the transform again if it is outdated, so that a command that ends leaves what a server would have."""
        live = live_count(self._index)
        if live <= SAMPLE and is_outdated(self._index.spec, self._index.settings, self._index.parts.main, live, True):
            with self._folding:
                fold(self._index, self._fetch, newest=self._newest, settled=True)

    def _set_clean_flag(self) -> None:
        """Record that all is well, so that the next start need not check the file."""
        assert self.writer is not None
        try:
            with translated(self._path):
                self.writer.exclusively(_insert_clean_flag)
        except StoreError as error:
            log.warning("the next start will check %s (%s)", self._path, error)

    # ---- when due

    def _reload(self, idle: bool) -> bool:
        if self.writer is None or self.writer.behind is None:
            return False
        self.rebuild()
        return True

    def _fold(self, idle: bool) -> bool:
        if not is_due(self._index, idle):
            return False
        # half of the threads: searches and writes come first
        with self._folding, threads(max(1, faiss.omp_get_max_threads() // 2)):
            fold(self._index, self._fetch, newest=self._newest, settled=idle, stop=self._thread.stopping)
        trim()
        return True

    def _snapshot(self, idle: bool) -> bool:
        due_at = max(self._index.settings.snapshot_after, int(SNAPSHOT_SHARE * len(self._index.parts.rids)))
        if self._index.kind is FLAT and not idle:
            due_at *= FLAT_CHANGES
        if self.writer is None or self._unsaved() < due_at:
            return False
        self.snapshot(due_at)
        return True

    def _give_back(self, idle: bool) -> bool:
        """Give pages of deleted rows back to the disk, a few at a time, so that writes run in between."""
        if self.writer is None or self.writer.failure or time.monotonic() - self._looked < self._pause:
            return False
        with self._connections.reader() as connection:
            free, pages = free_pages(connection)
            if free < max(FREE_PAGES, FREE_SHARE * pages):
                self._looked = time.monotonic()
                return False
        self.give_back_all(self._thread.stopping)
        return True

    def give_back_all(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Give all free pages back."""
        assert self.writer is not None
        left = sys.maxsize
        while not stop():
            with self._connections.reader() as connection:
                free, _ = free_pages(connection)
            if not 0 < free < left:  # readers may keep the rest for now
                return
            left = free
            self.writer.exclusively(give_back_pages)
            reached("vacuum.step")

    def _unsaved(self) -> int:
        """Return how much work the next start would have to repeat: changes to replay, or rows to fold.

        A new transform is always saved, so that the next start and other processes return the same scores.
        """
        parts = self._index.parts
        if parts.transform is not self._saved.transform:
            return sys.maxsize
        return max(self._index.seq - self._saved.seq, abs(len(parts.rids) - self._saved.rows))

    def _fetch(self, rids: np.ndarray) -> np.ndarray:
        with self._connections.reader() as connection:
            return fetch_vectors(connection, self._index.spec, rids)

    def _newest(self) -> int:
        with self._connections.reader() as connection:
            return last_seq(connection)

    def _load(self, connection: sqlite3.Connection) -> None:
        with reading(connection):
            rebuild(connection, self._index)


class BackgroundThread:
    """Runs what is due whenever it is woken.

    Args:
        name: of the thread.
        tasks: each does its work if that is due, and returns whether it did. They are called again until none is due.
            The argument is True if nothing has woken the thread for a while.
        idle_seconds: length of that while.
        pause_seconds: time between a failure and the next attempt, so that a full disk is not retried at once.
    """

    def __init__(
        self, name: str, tasks: tuple[Callable[[bool], bool], ...], idle_seconds: float, pause_seconds: float
    ) -> None:
        self._tasks = tasks
        self._idle_seconds = idle_seconds
        self._pause_seconds = pause_seconds
        self._wake, self._closing = threading.Event(), threading.Event()
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Check soon whether something is due."""
        if not self._wake.is_set():
            self._wake.set()

    def stopping(self) -> bool:
        """Return whether long work should stop."""
        return self._closing.is_set()

    def close(self) -> None:
        """Stop the current work and end the thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # where a thread, and those that it starts, can have a lower priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        idle = True
        while True:
            # after a failure it tries again without being woken
            idle = not self._wake.wait(None if idle and self.failure is None else self._idle_seconds)
            self._wake.clear()
            if self.stopping():
                return
            try:
                while not self.stopping() and sum(task(idle) for task in self._tasks):
                    pass
                self.failure = None
            except Stopped:
                return
            except Exception as error:
                # Searches and writes continue without maintenance, and `state` shows it. The thread must not end.
                log.exception("maintenance failed")
                self.failure = str(error) or type(error).__name__
            # one look is enough for many commits that follow one another
            self._closing.wait(POLL_SECONDS if self.failure is None else self._pause_seconds)


def _insert_clean_flag(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('clean', ?)", [str(last_seq(connection))])


def is_clean(connection: sqlite3.Connection) -> bool:
    """Return whether the last writer closed the file."""
    return connection.execute("SELECT 1 FROM meta WHERE key = 'clean'").fetchone() is not None
