"""Maintenance of a collection's index: folds, snapshots and reloads, on request or on a background thread."""

from __future__ import annotations

import ctypes
import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import faiss

from nnclr_hub.errors import StoreError
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.disk import LOW_WATER, free_bytes
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder.log import trim_log
from nnclr_hub.store.folder.rows import fetch_vectors, last_seq
from nnclr_hub.store.folder.schema import connect
from nnclr_hub.store.folder.writer import Writer, closed_error
from nnclr_hub.store.index.fold import FITTED, Stopped, fold, is_due, is_outdated, kind_of_next, most_recent
from nnclr_hub.store.index.snapshot import remove_snapshot, write_snapshot
from nnclr_hub.store.index.state import Fetch, Main, State, States, threads
from nnclr_hub.store.index_kinds import COARSE, FLAT, HNSW
from nnclr_hub.store.items import Progress
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.sqlite import translated

log = logging.getLogger(__name__)
NICE = 10
M_MMAP_THRESHOLD = -3  # from glibc's malloc.h
POLL_SECONDS = 0.02
# of the pages, and pages, that must be free before they are given back
FREE_SHARE = 0.1
FREE_PAGES = 16
STEP_PAGES = 64  # that are given back at once: 1 MiB, in a few milliseconds
PROMISED_RECALL = 0.95  # an index that finds less is reported
SNAPSHOT_SHARE = 0.25  # share of the rows that change first: a larger collection is saved after more changes


class Maintenance:
    """Maintains one index, on a thread that runs what is due whenever `wake` is set.

    Args:
        states: states of the index.
        path: of the collection's file; its snapshot is in the folder with the same stem.
        reader: provides a connection in a read transaction.
        load: returns a state that is built from the catalog, which a connection sees.
        saved: the main part that is on disk, if any.
    """

    writer: Writer | None = None  # None: the store is open read-only

    def __init__(
        self,
        states: States,
        settings: StoreSettings,
        path: Path,
        reader: Callable[[], AbstractContextManager[sqlite3.Connection]],
        load: Callable[[sqlite3.Connection], State],
        saved: Main | None,
    ) -> None:
        self._states, self._settings, self._path, self._reader, self._load = states, settings, path, reader, load
        self._saved = _content(saved)
        self._folding, self._saving = threading.Lock(), threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self.wake = self._wake.set
        self._keep = True
        self._looked = 0.0  # when free pages were last counted
        self._building: str | None = None  # what is built now, and how far
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"maintenance of {path.name}", daemon=True)
        self._thread.start()

    @property
    def state(self) -> str:
        """As `CollectionInfo.state` has it."""
        main = self._states.latest.main
        reason, recall = self.failure, main.recall
        if self.writer is not None:
            if self.writer.failure:
                return f"read-only: {self.writer.failure}"
            reason = self.writer.behind or self.writer.full or reason
            if reason is None and (free := free_bytes(self._path)) < LOW_WATER:
                reason = f"the disk has {free >> 20} MiB free, so writes are refused; items can be deleted"
        if reason is None and recall < PROMISED_RECALL:
            reason = (
                f"searches find about {recall:.2f} of the nearest items; open the store with more memory, choose "
                "another kind of index, or search exactly"
            )
        if reason:
            return f"degraded: {reason}"
        # a coarse main part is temporary: the graph follows when nothing is written
        waiting = f"building the {HNSW.name} index, 0 of {len(main):,} items" if main.kind is COARSE else None
        return self._building or waiting or "ready"

    def wait_for_fold(self) -> None:
        """Wait while the rows that are not in the index yet need too much memory: writes are faster than a build."""
        most = most_recent(self._states.latest, self._settings)
        while len(self._states.latest.recent_rids) > most and not self.failure and not self._closing.is_set():
            check_cancelled()  # nothing is written yet
            self.wake()
            time.sleep(POLL_SECONDS)

    # ---- on request

    def compact(self, progress: Progress) -> None:
        """Rebuild the index without deleted rows, and give free pages back to the disk."""
        assert self.writer is not None
        try:
            with self._folding:
                self._fold(rebuild=True, progress=progress)
        except Stopped as error:
            raise closed_error(keep=self._keep) from error
        self.writer.submit(lambda connection, _: trim_log(connection, self._settings.kept_changes), frees=True)
        self._give_back(1)
        self._checkpoint(truncate=True)

    def snapshot(self, *, due: bool = False) -> None:
        """Save the main part of the index as it is now; with `due`, only if enough of it is unsaved.

        If that fails, DiskFull or StoreError is raised, and the earlier snapshot stays.
        """
        assert self.writer is not None
        writer, folder = self.writer, self._path.with_suffix("")
        writer.refuse_failed()
        change = lambda work: writer.submit(lambda connection, _: work(connection), frees=True)  # noqa: E731
        with self._saving, translated(self._path):
            main = self._states.latest.main
            if due and not self._snapshot_due():  # another thread has just saved it
                return
            try:
                if main.kind is not COARSE and (main.kind is not FLAT or main.transform is not None):
                    write_snapshot(main, folder, change)
                    self._saved = _content(main)
                elif self._saved[2] is not None:  # the next start must not return to it
                    remove_snapshot(folder, change)
                    self._saved = _content(None)
            except StoreError as error:
                if not self._keep:  # its folder may be deleted
                    raise closed_error(keep=False) from error
                raise

    def rebuild(self) -> None:
        """Build the index from the catalog; later folds build its final kind."""
        assert self.writer is not None
        writer, states = self.writer, self._states

        def load(connection: sqlite3.Connection, _: Any) -> None:
            state = self._load(connection)
            states.replace(lambda latest: state)
            writer.behind = None

        with self._folding:
            writer.submit(load, frees=True, alone=True)
        self.wake()

    def close(self, *, keep: bool) -> None:
        """End the thread. With `keep`, save the index if enough has changed, and record that all is well."""
        self._keep = keep
        self._closing.set()
        self.wake()
        self._thread.join()
        writer = self.writer
        if not keep or writer is None or writer.failure is not None or writer.behind is not None:
            return
        try:
            state = self._states.latest
            live = len(state.alive)
            # a command that ends leaves what a server would have
            if live <= FITTED and is_outdated(state.main, self._settings, live, True):
                with self._fetching() as fetch:
                    fold(self._states, self._settings, fetch)
            if self._unsaved() >= self._settings.snapshot_on_close:
                self.snapshot()
        except StoreError as error:  # the next start builds the index again
            log.warning("no snapshot of the index was saved: %s", error)
        if writer.touched:
            try:  # so that the next start need not check the file
                writer.submit(_set_clean_flag, frees=True)
            except StoreError as error:
                log.warning("the next start will check %s (%s)", self._path, error)

    # ---- when due

    def _run(self) -> None:
        if sys.platform == "linux":  # where a thread, and those that it starts, can have a lower priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        idle = True
        while not self._closing.is_set():
            # after a failure it tries again without being woken
            idle = not self._wake.wait(None if idle and self.failure is None else self._settings.idle_seconds)
            self._wake.clear()
            try:
                while not self._closing.is_set() and self._do_what_is_due(idle):
                    idle = idle and not self._wake.is_set()
                self.failure = None
            except Stopped:
                return
            except Exception as error:
                # Searches and writes continue without maintenance, and `state` shows it. The thread must not end.
                is_known = isinstance(error, StoreError)  # such as a full disk
                log.error("maintenance of %s failed: %s", self._path, error, exc_info=not is_known)
                self.failure = str(error) or type(error).__name__
            # one look is enough for many commits that follow one another
            self._closing.wait(POLL_SECONDS if self.failure is None else self._settings.pause_seconds)

    def _do_what_is_due(self, idle: bool) -> bool:
        """Return whether anything was due; a full disk must be no reason to do it again at once."""
        writer, settings, done = self.writer, self._settings, False
        if writer is not None and writer.behind is not None:
            self.rebuild()
            done = True
        if is_due(self._states.latest, settings, idle):
            # half of the threads: searches and writes come first
            with self._folding, threads(max(1, faiss.omp_get_max_threads() // 2)):
                self._fold(idle=idle)
            done = True
        if writer is None or writer.failure:
            return done
        if self._snapshot_due():
            self.snapshot(due=True)
            done = True
        with self._reader() as connection:
            first = connection.execute("SELECT min(seq) FROM oplog").fetchone()[0]
        if first is not None and writer.last.seq - first >= settings.kept_changes + settings.kept_changes // 4:
            writer.submit(lambda connection, _: trim_log(connection, settings.kept_changes), frees=True)
            done = True
        if time.monotonic() - self._looked >= settings.idle_seconds:
            self._give_back(FREE_PAGES, FREE_SHARE)
            self._looked = time.monotonic()
        return done

    def _fold(self, *, rebuild: bool = False, idle: bool = True, progress: Progress = lambda done, total: None) -> None:
        kind, before = kind_of_next(self._states.latest, self._settings, idle=idle), self._states.latest.main.kind
        if not kind.lossless and kind is not COARSE:  # memory is short; elsewhere this would make searches slower
            # Map blocks of 1 MiB and more, so that they go back to the system when they are freed. glibc raises its
            # limit to the largest block that was freed, up to 32 MiB. Batches of vectors then leave holes in the heap,
            # which cost a third of the memory of a large index.
            _call_libc("mallopt", M_MMAP_THRESHOLD, 1 << 20)

        def show(done: int, total: int) -> None:
            if kind is not before:
                self._building = f"building the {kind.name} index, {done:,} of {total:,} items"
            progress(done, total)

        stop = self._closing.is_set
        try:
            show(0, len(self._states.latest.alive))
            with self._fetching() as fetch:
                fold(self._states, self._settings, fetch, rebuild=rebuild, idle=idle, stop=stop, progress=show)
        finally:
            self._building = None
        _call_libc("malloc_trim", 0)  # lists of an inverted file grow by copies, and glibc keeps the old ones

    def _give_back(self, most: int, share: float = 0.0) -> None:
        """Give pages of deleted rows back to the disk, a few at a time, so that writes run in between."""
        assert self.writer is not None
        left = sys.maxsize
        while not self._closing.is_set():
            with self._reader() as connection:
                names = ("freelist_count", "page_count")
                free, pages = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
            # readers may keep the rest for now
            if free >= left or free < (max(most, share * pages) if left == sys.maxsize else 1):
                break
            left = free
            vacuum = f"PRAGMA incremental_vacuum({STEP_PAGES})"
            self.writer.submit(lambda connection, _: connection.execute(vacuum).fetchall(), frees=True)  # noqa: B023
            reached("vacuum.step")
        if left < sys.maxsize:  # only a checkpoint shortens the file
            self._checkpoint()

    def _checkpoint(self, *, truncate: bool = False) -> None:
        """Copy the log into the file, next to reads and writes; with `truncate`, empty it if nobody reads from it.

        To empty it, SQLite takes the lock of writers, and would keep it while it waits for readers.
        """
        with closing(connect(self._path)) as connection, translated(self._path):
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            if truncate:
                connection.execute("PRAGMA busy_timeout = 0")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _snapshot_due(self) -> bool:
        rows = len(self._states.latest.alive.flags)
        return self._unsaved() >= max(self._settings.snapshot_after, int(SNAPSHOT_SHARE * rows))

    def _unsaved(self) -> int:
        """Return how many rows of the main part the next start would have to build again.

        A new transform is always saved, so that the next start and other processes return the same scores.
        """
        main = self._states.latest.main
        kind, rows, transform = self._saved
        if main.transform is not transform:
            return 0 if main.kind is COARSE else sys.maxsize
        if main.kind in (COARSE, FLAT):
            return 0
        return abs(len(main) - rows) if kind is main.kind else len(main)

    @contextmanager
    def _fetching(self) -> Iterator[Fetch]:
        """Provide a function that reads vectors, by a connection with a small cache: those of searches have items."""
        with closing(connect(self._path, read_only=True)) as connection, translated(self._path):
            yield partial(fetch_vectors, connection, self._states.latest.main.spec)


def _content(main: Main | None) -> tuple[Any, int, Any]:
    """Return what of a main part is on disk, without the part itself, which would stay in memory."""
    return (None, 0, None) if main is None else (main.kind, 0 if main.kind is FLAT else len(main), main.transform)


def _call_libc(name: str, *arguments: int) -> None:
    if sys.platform == "linux" and (function := getattr(ctypes.CDLL(None), name, None)):  # musl lacks them
        function(*arguments)


def _set_clean_flag(connection: sqlite3.Connection, _: Any) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('clean', ?)", [str(last_seq(connection))])
