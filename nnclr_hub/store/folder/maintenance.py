"""Maintenance of a collection's index: folds, snapshots and reloads, on request or on a background thread."""

from __future__ import annotations

import ctypes
import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np

from nnclr_hub.errors import StoreError
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder.catalog import closed_error, free_pages, give_back_pages, last_seq, trim_log
from nnclr_hub.store.folder.connections import Connections
from nnclr_hub.store.folder.recovery import rebuild
from nnclr_hub.store.folder.rows import fetch_vectors
from nnclr_hub.store.folder.writer import Writer
from nnclr_hub.store.index.build import Stopped
from nnclr_hub.store.index.fold import fold, is_due, kind_of_next, most_recent
from nnclr_hub.store.index.main_index import MainIndex, threads
from nnclr_hub.store.index.snapshot import remove_snapshot, write_snapshot
from nnclr_hub.store.index.state import States
from nnclr_hub.store.index.transform import SAMPLE, is_outdated
from nnclr_hub.store.index_kinds import COARSE, FLAT, IndexKind
from nnclr_hub.store.items import Progress
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.sqlite import LOW_WATER, free_bytes, reading, translated
from nnclr_hub.store.vector_transform import VectorTransform

log = logging.getLogger(__name__)
NICE = 10
POLL_SECONDS = 0.02
# of the pages, and pages, that must be free before they are given back
FREE_SHARE = 0.1
FREE_PAGES = 16
PROMISED_RECALL = 0.95  # an index that finds less is reported
SNAPSHOT_SHARE = 0.25  # of the rows: a larger collection is saved after more changes


@dataclass(frozen=True)
class _Saved:
    """What of a main part is on disk; without the part itself, which would stay in memory."""

    kind: IndexKind | None = None
    rows: int = 0
    transform: VectorTransform | None = None

    @classmethod
    def of(cls, main: MainIndex | None) -> _Saved:
        return cls() if main is None else cls(main.kind, 0 if main.kind is FLAT else len(main), main.transform)


class IndexMaintenance:
    """Maintains one index.

    Args:
        states: of the index.
        settings: of the store.
        path: of the collection's file; its snapshot is in the folder with the same stem.
        connections: for reading the catalog.
        saved: the main part that is on disk, if any.
    """

    def __init__(
        self, states: States, settings: StoreSettings, path: Path, connections: Connections, saved: MainIndex | None
    ) -> None:
        self._states = states
        self._settings = settings
        self._path = path
        self._folder = path.with_suffix("")
        self._connections = connections
        self._saved = _Saved.of(saved)
        self._folding = threading.Lock()
        self._saving = threading.Lock()
        self._dropped = False
        self._looked = 0.0  # when free pages were last counted
        self._built: tuple[int, int, str] | None = None  # rows done and in all, kind, while it is built
        self._pause = settings.idle_seconds
        tasks = (self._reload, self._fold, self._snapshot, self._trim, self._give_back)
        self._thread = BackgroundThread(
            f"maintenance of {path.name}", tasks, settings.idle_seconds, settings.pause_seconds
        )
        self.writer: Writer | None = None  # None: the store is open read-only

    def wake(self) -> None:
        """Check soon whether something is due."""
        self._thread.wake()

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
        main = self._states.latest.main
        recall = 1.0 if main is None else main.recall
        if reason is None and recall < PROMISED_RECALL:
            reason = (
                f"searches find about {recall:.2f} of the nearest items; open the store with more memory, choose "
                "another kind of index, or search exactly"
            )
        if reason is None and self._built is not None:
            return "building the {2} index, {0:,} of {1:,} items".format(*self._built)
        return f"degraded: {reason}" if reason else "ready"

    def wait_for_fold(self) -> None:
        """Wait while the rows that are not in the index yet need too much memory: writes are faster than a build."""
        most = most_recent(self._states.latest, self._settings)
        while self._states.latest.count > most and not self._thread.failure and not self._thread.stopping():
            check_cancelled()  # nothing is written yet
            self.wake()
            time.sleep(POLL_SECONDS)

    # ---- on request

    def compact(self, progress: Progress) -> None:
        """Rebuild the index without deleted rows."""
        try:
            with self._folding:
                fold(
                    self._states,
                    self._settings,
                    self._fetch,
                    rebuild=True,
                    stop=self._thread.stopping,
                    progress=progress,
                )
        except Stopped as error:
            raise closed_error(self._dropped) from error
        trim()

    def snapshot(self, *, due: bool = False) -> None:
        """Save the main part of the index as it is now.

        Args:
            due: only if enough of it is unsaved.

        Raises:
            DiskFull, StoreError: it could not be saved; the earlier snapshot stays.
        """
        assert self.writer is not None
        self.writer.refuse_failed()
        with self._saving, translated(self._path):
            state = self._states.latest
            main = state.main
            if due and not self._is_unsaved():  # another thread has just saved it
                return
            if main is None or main.kind is COARSE or (main.kind is FLAT and main.transform is None):
                if self._saved.transform is not None:  # the next start must not return to it
                    remove_snapshot(self._folder, self.writer.exclusively)
                    self._saved = _Saved()
                return  # the catalog is read as fast
            try:
                write_snapshot(main, state.rids, self._folder, self.writer.exclusively)
            except StoreError as error:
                if self._dropped:  # and its folder with it
                    raise closed_error(True) from error
                raise
            self._saved = _Saved.of(main)

    def rebuild(self) -> None:
        """Build the index from the catalog; later folds build its final kind."""
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
                if self._unsaved() >= self._settings.snapshot_on_close:
                    self.snapshot()
            except StoreError as error:  # the next start replays the log instead
                log.warning("no snapshot of the index was saved: %s", error)
            if self.writer.touched:
                self._set_clean_flag()

    def _fit_at_last(self) -> None:
        """Fit the transform again if it is outdated, so that a command that ends leaves what a server would have."""
        state = self._states.latest
        live = state.live_count
        if live <= SAMPLE and is_outdated(state.spec, self._settings, state.main, live, True):
            with self._folding:
                fold(self._states, self._settings, self._fetch)

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
        state = self._states.latest
        if not is_due(state, self._settings, idle):
            return False
        kind = kind_of_next(state, self._settings, idle=idle)

        def show(done: int, total: int) -> None:
            self._built = (done, total, kind.name) if kind is not state.kind else None

        # half of the threads: searches and writes come first
        with self._folding, threads(max(1, faiss.omp_get_max_threads() // 2)):
            try:
                fold(
                    self._states,
                    self._settings,
                    self._fetch,
                    idle=idle,
                    stop=self._thread.stopping,
                    progress=show,
                )
            finally:
                self._built = None
        trim()
        return True

    def _snapshot(self, idle: bool) -> bool:
        if self.writer is None or not self._is_unsaved():
            return False
        self.snapshot(due=True)
        return True

    def _is_unsaved(self) -> bool:
        rows = len(self._states.latest.rids)
        return self._unsaved() >= max(self._settings.snapshot_after, int(SNAPSHOT_SHARE * rows))

    def _trim(self, idle: bool) -> bool:
        """Shorten the log of changes when it is a quarter too long."""
        if self.writer is None or self.writer.failure:
            return False
        with self._connections.reader() as connection:
            first = connection.execute("SELECT min(seq) FROM oplog").fetchone()[0]
        kept = self._settings.kept_changes
        if first is None or self.writer.durable_seq - first < kept + kept // 4:
            return False
        self.writer.exclusively(lambda connection: trim_log(connection, kept))
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
        """Return how many rows of the main part the next start would have to build again.

        A new transform is always saved, so that the next start and other processes return the same scores.
        """
        main, saved = self._states.latest.main, self._saved
        if (None if main is None else main.transform) is not saved.transform:
            return sys.maxsize if main is None or main.kind is not COARSE else 0
        if main is None or main.kind is COARSE:
            return 0
        if main.kind is FLAT:
            return 0
        return len(main) if saved.kind is not main.kind else abs(len(main) - saved.rows)

    def _fetch(self, rids: np.ndarray) -> np.ndarray:
        with self._connections.reader() as connection:
            return fetch_vectors(connection, self._states.latest.spec, rids)

    def _load(self, connection: sqlite3.Connection) -> None:
        with reading(connection):
            state = rebuild(connection, self._states.latest.spec, self._settings)
        self._states.replace(lambda _: state)


def trim() -> None:
    """Give freed memory back to the system: lists of an inverted file grow by copies, and glibc keeps the old ones."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if release is not None:  # musl has none
        release(0)


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
                    idle = idle and not self._wake.is_set()
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
