"""One thread that writes, with group commit.

An fsync takes much longer than writing a few rows, so requests that arrive during one commit share the next one. If one
of them fails, all are rolled back and repeated, each in its own savepoint, so that only those that fail are undone. The
order keeps the promise to the caller:

    BEGIN IMMEDIATE -> rows and log -> COMMIT (durable) -> index (searchable) -> answer

If the process dies after COMMIT, the next start reads the rows into the index. If the index cannot take a change, the
answer is still "stored", because that is true; maintenance builds the index again.
"""

from __future__ import annotations

import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from nnclr_hub.errors import DiskFull, NNCLRHubError, StoreError, StoreReadOnly
from nnclr_hub.store.commit_record import CommitRecord
from nnclr_hub.store.disk import check_process
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder.catalog import closed_error, last_seq
from nnclr_hub.store.folder.integrity import Commit, insert_commit, last_commit, sequence
from nnclr_hub.store.folder.rows import Changes
from nnclr_hub.store.index.state import NO_ROWS, States
from nnclr_hub.store.sqlite import check_space, translated

log = logging.getLogger(__name__)
T = TypeVar("T")
# requests per transaction at most, which bounds how long the first of them waits
GROUP = 256
# after these errors the whole transaction is lost, not one request
FATAL = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_NOMEM,
)


Apply = Callable[[sqlite3.Connection, Changes], T]


@dataclass
class _Request(Generic[T]):
    apply: Apply[T]
    answer: Future[T]
    alone: bool = False
    frees: bool = False
    changes: Changes = field(default_factory=Changes)
    result: Any = None


class Writer:
    """The only writer of a collection's file.

    Args:
        connection: used by this thread alone.
        states: of the index; a new one is published after each commit.
        path: of the file, for messages.
        record: of the last commit.
        on_commit: called after each commit and the update of the index, successful or not.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        states: States,
        path: Path,
        record: CommitRecord,
        on_commit: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._states = states
        self._path = path
        self._on_commit = on_commit
        self._requests: queue.SimpleQueue[_Request[Any] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._pid = os.getpid()
        self._closed = self._dropped = False
        self.failure: str | None = None  # why the collection is read-only
        self.full: str | None = None  # why the last write was refused, until there is space
        self.behind: str | None = None  # why the index lacks the last changes, until it is reloaded
        self._record = record
        self.last = last_commit(connection)
        self.touched = False  # whether the file may have changed since it was opened
        self.commits = 0
        self.commit_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name=f"writer of {path.name}", daemon=True)
        self._thread.start()

    def submit(self, apply: Apply[T], *, frees: bool = False) -> T:
        """Run `apply` in the next transaction; return its result when that is durable and searchable.

        Args:
            apply: the change.
            frees: it only deletes, so it is possible on a disk that is nearly full.

        Raises:
            StoreReadOnly: an earlier write failed on the disk, or the store is closed.
            CollectionNotFound: the collection was dropped.
            DiskFull, StoreError: the commit failed.

            Errors of `apply` itself are raised as they are.
        """
        return self._enqueue(_Request(apply, Future(), frees=frees))

    def exclusively(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the writer's thread outside of any transaction, while no other write runs."""
        return self._enqueue(_Request(lambda connection, _: work(connection), Future(), alone=True))

    def reload(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run work that brings the index up to date, like `exclusively`."""

        def run(connection: sqlite3.Connection) -> None:
            work(connection)
            self.behind = None

        self.exclusively(run)

    def _enqueue(self, request: _Request[T]) -> T:
        check_process(self._pid)
        with self._closing:
            if self._closed:
                raise closed_error(self._dropped)
            self._requests.put(request)
        return request.answer.result()

    def close(self, *, dropped: bool = False) -> None:
        """Finish what was submitted, then end the thread."""
        with self._closing:
            if not self._closed:
                self._dropped = dropped
                self._closed = True
                self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        running = True
        while running:
            group = [self._requests.get()]
            while len(group) < GROUP and not self._requests.empty():
                group.append(self._requests.get())
            running = None not in group
            requests = [request for request in group if request is not None]
            try:
                self._run_group(requests)
            except BaseException as error:  # a fault of ours; callers would wait forever if the thread ended
                log.exception("the writer of %s failed", self._path)
                self.failure = f"a write failed ({type(error).__name__}); see the log, and open the store again"
                self._fail(requests, StoreReadOnly(self.failure))

    def _run_group(self, requests: list[_Request[Any]]) -> None:
        waiting = [request for request in requests if not request.alone]
        if waiting:
            self._commit(waiting)
        for request in requests:
            if request.alone:
                self._run_alone(request)

    def _run_alone(self, request: _Request[Any]) -> None:
        try:
            with translated(self._path):
                self._remove_clean_flag()
                request.answer.set_result(request.apply(self._connection, request.changes))
        except Exception as error:  # noqa: BLE001 - handed to the caller; the thread must continue
            self._undo()
            self._remember(error)
            request.answer.set_exception(error)

    def _commit(self, group: list[_Request[Any]]) -> None:
        """Commit one transaction for all; every request is answered, whatever happens."""
        try:
            self.refuse_failed()
            if not (group := self._with_space(group)):
                return
            done = self._transact(group)
        except NNCLRHubError as error:
            self._remember(error)
            self._fail(group, error)
        except Exception as error:
            log.exception("a write to %s failed", self._path)
            self._fail(group, StoreError(f"Writing {self._path} failed ({type(error).__name__}); nothing was written."))
        else:
            self._publish(done)

    def _with_space(self, group: list[_Request[Any]]) -> list[_Request[Any]]:
        """Return the requests that the free space allows; the others are answered with DiskFull."""
        try:
            check_space(self._path)
            self.full = None
        except DiskFull as error:
            self._remember(error)
            self._fail([request for request in group if not request.frees], error)
            return [request for request in group if request.frees]
        return group

    def _transact(self, group: list[_Request[Any]]) -> list[_Request[Any]]:
        execute = self._connection.execute
        started = time.perf_counter()
        with translated(self._path):
            execute("BEGIN IMMEDIATE")
            try:
                reached("write.begun")
                done = group if self._run_all(group) else [request for request in group if self._try(request)]
                commit = self._commit_of(done)
                reached("write.applied")
                execute("COMMIT")
            except BaseException:
                self._undo()
                self.touched = False  # the flag is back
                raise
        reached("write.committed")
        self._record.write(commit.seq, commit.items)
        self.last = commit
        self.commits += 1
        self.commit_seconds = time.perf_counter() - started
        return done

    def _commit_of(self, done: list[_Request[Any]]) -> Commit:
        """Record what the transaction changes, if anything."""
        seq = last_seq(self._connection)
        if seq == self.last.seq:
            return self.last
        self._remove_clean_flag()
        items = self.last.items + sum(request.changes.difference for request in done)
        # a clock that is set back must not make times decrease
        commit = Commit(seq, max(time.time(), self.last.at), items, sequence(self._connection, "items"))
        insert_commit(self._connection, commit)
        return commit

    def _remove_clean_flag(self) -> None:
        """Make the next start check the file, unless this process closes it."""
        if not self.touched:
            self._connection.execute("DELETE FROM meta WHERE key = 'clean'")
            self.touched = True

    @property
    def durable_seq(self) -> int:
        """Number of the last change on disk."""
        return self.last.seq

    def _run_all(self, group: list[_Request[Any]]) -> bool:
        """Run requests; if one fails, undo all and return False.

        For a savepoint, SQLite would write each page that changes to a temporary file, too.
        """
        try:
            for request in group:
                self._run_one(request)
        except Exception as error:
            if self._is_fatal(error):
                raise
            self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN IMMEDIATE")
            return False
        return True

    def _run_one(self, request: _Request[Any]) -> None:
        request.changes = Changes()  # it may run a second time
        request.result = request.apply(self._connection, request.changes)

    def _is_fatal(self, error: Exception) -> bool:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        return code in FATAL or not self._connection.in_transaction

    def _try(self, request: _Request[Any]) -> bool:
        """Run one request in a savepoint, so that its error affects no other."""
        self._connection.execute("SAVEPOINT one")
        try:
            self._run_one(request)
        except Exception as error:
            if self._is_fatal(error):
                raise
            self._connection.execute("ROLLBACK TO one")
            if isinstance(error, sqlite3.Error):  # as for a row whose metadata is damaged
                error = _translation(self._path, error)
            elif not isinstance(error, NNCLRHubError):
                log.exception("a request to %s failed", self._path)
                error = StoreError(f"A write to {self._path} failed ({error}); nothing of it was stored.")
            request.answer.set_exception(error)
            return False
        finally:
            if self._connection.in_transaction:  # a full disk rolls the whole transaction back
                self._connection.execute("RELEASE one")
        return True

    def _undo(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _remember(self, error: Exception) -> None:
        """Refuse all later writes after a failed fsync: nobody knows what is on the disk then."""
        if isinstance(error, StoreReadOnly):
            self.failure = self.failure or str(error)
        elif isinstance(error, DiskFull):
            self.full = str(error)

    def refuse_failed(self) -> None:
        """Raise StoreReadOnly if an earlier write failed on the disk."""
        if self.failure is not None:
            raise StoreReadOnly(self.failure)

    def _publish(self, done: list[_Request[Any]]) -> None:
        """Update the index after the commit, then answer; the answers confirm durability even if the index fails."""
        if self.behind is None and self.durable_seq != self._states.latest.seq:
            try:
                reached("write.indexing")
                self._states.advance(self.durable_seq, *_combined(done))
                reached("write.indexed")
            except Exception as error:
                log.exception("the index of %s could not be updated", self._path)
                self.behind = f"the index could not apply a change ({type(error).__name__})"
        for request in done:
            request.answer.set_result(request.result)
        self._on_commit()

    @staticmethod
    def _fail(group: list[_Request[Any]], error: BaseException) -> None:
        for request in group:
            if not request.answer.done():
                request.answer.set_exception(error)


def _translation(path: Path, error: sqlite3.Error) -> Exception:
    try:
        with translated(path):
            raise error
    except StoreError as made:
        return made


def _combined(done: list[_Request[Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the changes of all requests: rids deleted, rids added, vectors of the added ones."""
    deleted = np.array(sorted(rid for request in done for rid in request.changes.deleted), np.int64)
    added = [rids for request in done for rids in request.changes.added]
    vectors = [some for request in done for some in request.changes.vectors]
    if len(added) <= 1:
        return deleted, added[0] if added else NO_ROWS, vectors[0] if vectors else np.zeros((0, 0), np.float32)
    return deleted, np.concatenate(added), np.concatenate(vectors)
