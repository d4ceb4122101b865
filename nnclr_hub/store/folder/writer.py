"""One thread that writes, with group commit.

An fsync takes much longer than writing a few rows, so requests that arrive during one commit share the next one. If one
of them fails, all are undone, and each half is repeated in a transaction, so that only those that fail are lost.
The order keeps the promise to the caller:

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
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nnclr_hub.errors import CollectionNotFound, DiskFull, NNCLRHubError, StoreClosed, StoreError, StoreReadOnly
from nnclr_hub.store.disk import check_space
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder.rows import Changes, last_seq
from nnclr_hub.store.folder.schema import Commit, insert_commit, last_commit
from nnclr_hub.store.index.state import NO_ROWS, States
from nnclr_hub.store.sqlite import CommitRecord, check_process, sequence, translated

log = logging.getLogger(__name__)
T = TypeVar("T")
Apply = Callable[[sqlite3.Connection, Changes], T]
# requests per transaction at most, which bounds how long the first of them waits
GROUP = 256


@dataclass
class _Request:
    """A change. `frees`: it is possible on a full disk; `alone`: it gets its own transaction."""

    apply: Apply[Any]
    frees: bool
    alone: bool
    answer: Future[Any] = field(default_factory=Future)
    result: Any = None


class Writer:
    """The only writer of a collection's file. `on_commit` is called after each commit and the update of the index."""

    def __init__(
        self,
        connection: sqlite3.Connection,  # used by this thread alone
        states: States,
        path: Path,
        record: CommitRecord,
        on_commit: Callable[[], None],
    ) -> None:
        self._connection, self._states, self._path = connection, states, path
        self._record, self._on_commit = record, on_commit
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._pid = os.getpid()
        self._closed: StoreError | None = None
        self.failure: str | None = None  # why the collection is read-only
        self.full: str | None = None  # why the last write was refused, until there is space
        self.behind: str | None = None  # why the index lacks the last changes, until it is built again
        self.last = last_commit(connection)
        self.touched = False  # whether the file may have changed since it was opened
        self.commits = 0
        self.commit_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name=f"writer of {path.name}", daemon=True)
        self._thread.start()

    def submit(self, apply: Apply[T], *, frees: bool = False, alone: bool = False) -> T:
        """Run `apply` in the next transaction; return its result when that is durable and searchable.

        Errors of `apply` are raised as they are, DiskFull or StoreError if the commit fails, and StoreReadOnly if an
        earlier write failed on the disk. `frees`: it is possible on a disk that is nearly full, because it only
        deletes. `alone`: nothing else is written in the same transaction, and `apply` is called once.
        """
        check_process(self._pid)
        request = _Request(apply, frees, alone)
        with self._closing:
            if self._closed is not None:
                raise self._closed
            self._requests.put(request)
        return request.answer.result()

    def close(self, *, keep: bool) -> None:
        """Finish what was submitted, then end the thread."""
        with self._closing:
            if self._closed is None:
                self._closed = closed_error(keep=keep)
                self._requests.put(None)
        self._thread.join()

    def refuse_failed(self) -> None:
        """Raise StoreReadOnly if an earlier write failed on the disk."""
        if self.failure is not None:
            raise StoreReadOnly(self.failure)

    def _run(self) -> None:
        running = True
        while running:
            waiting = [self._requests.get()]
            while len(waiting) < GROUP and not self._requests.empty():
                waiting.append(self._requests.get())
            running = None not in waiting
            for alone, group in groupby(filter(None, waiting), lambda request: request.alone):
                for requests in ([request] for request in group) if alone else [list(group)]:
                    self._commit_safely(requests)

    def _commit_safely(self, group: list[_Request]) -> None:
        try:
            self._commit(group)
        except BaseException as error:  # a fault of ours; callers would wait forever if the thread ended
            log.exception("the writer of %s failed", self._path)
            self.failure = f"a write failed ({type(error).__name__}); see the log, and open the store again"
            for request in group:
                if not request.answer.done():
                    request.answer.set_exception(StoreReadOnly(self.failure))

    def _commit(self, group: list[_Request]) -> None:
        """Commit one transaction for all; every request is answered, whatever happens."""
        started = time.perf_counter()
        changes = Changes()
        try:
            self.refuse_failed()
            if not (group := self._with_space(group)):
                return
            with translated(self._path):
                commit = self._transact(group, changes)
        except Exception as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if len(group) > 1 and not isinstance(error, DiskFull | StoreReadOnly):
                self._commit(group[: len(group) // 2])
                self._commit(group[len(group) // 2 :])
                return
            if isinstance(error, StoreReadOnly):  # a failed fsync: nobody knows what is on the disk then
                self.failure = self.failure or str(error)
            elif isinstance(error, DiskFull):
                self.full = str(error)
            elif not isinstance(error, NNCLRHubError):
                log.exception("a write to %s failed", self._path)
                error = StoreError(f"A write to {self._path} failed ({error!r}); nothing of it was stored.")
            for request in group:
                request.answer.set_exception(error)
            return
        if commit is not self.last:
            self._record.write(commit.seq, commit.items)
            self.last = commit
            self.commits += 1
            self.commit_seconds = time.perf_counter() - started
            self._publish(changes)
            self._on_commit()
        for request in group:
            request.answer.set_result(request.result)

    def _with_space(self, group: list[_Request]) -> list[_Request]:
        """Return the requests that the free space allows; the others are answered with DiskFull."""
        try:
            check_space(self._path)
            self.full = None
        except DiskFull as error:
            self.full = str(error)
            for request in group:
                if not request.frees:
                    request.answer.set_exception(error)
            return [request for request in group if request.frees]
        return group

    def _transact(self, group: list[_Request], changes: Changes) -> Commit:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        reached("write.begun")
        if not self.touched:  # the next start checks the file, unless this process closes it
            execute("DELETE FROM meta WHERE key = 'clean'")
        for request in group:
            request.result = request.apply(self._connection, changes)
        commit, seq = self.last, last_seq(self._connection)
        if seq != commit.seq:
            # a clock that is set back must not make times decrease
            at, items = max(time.time(), commit.at), commit.items + changes.difference
            commit = Commit(seq, at, items, sequence(self._connection, "items"))
            insert_commit(self._connection, commit)
        reached("write.applied")
        execute("COMMIT")
        self.touched = True
        reached("write.committed")
        return commit

    def _publish(self, changes: Changes) -> None:
        """Update the index after the commit; the answers confirm durability even if that fails."""
        if self.behind is not None or self.last.seq == self._states.latest.seq:
            return
        deleted = np.array(sorted(changes.deleted), np.int64)
        try:
            reached("write.indexing")
            vectors = np.concatenate(changes.vectors) if changes.vectors else np.zeros((0, 0), np.float32)
            self._states.advance(self.last.seq, deleted, np.concatenate([NO_ROWS, *changes.added]), vectors)
            reached("write.indexed")
        except Exception as error:
            log.exception("the index of %s could not be updated", self._path)
            self.behind = f"the index could not apply a change ({type(error).__name__})"


def closed_error(*, keep: bool) -> StoreError:
    """Return the error for a call on a closed collection; without `keep`, it was dropped or replaced."""
    if keep:
        return StoreClosed("The collection is closed, because its store is; open the store again.")
    return CollectionNotFound("The collection was dropped or repaired while it was in use; open it again by name.")
