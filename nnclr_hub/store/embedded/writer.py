"""One thread that writes, with group commit.

Requests that arrive while the last commit is on its way to the disk share the next one. Each runs in
a savepoint of its own, so that one that fails takes no other with it. The order is the promise:

    BEGIN IMMEDIATE -> rows and log -> COMMIT (durable) -> index (searchable) -> answer
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from nnclr_hub.errors import NNCLRHubError, StoreError, StoreReadOnly
from nnclr_hub.store.ann.index import AnnIndex
from nnclr_hub.store.embedded.catalog import check_room, closed_error, last_seq, translated
from nnclr_hub.store.embedded.rows import Changes
from nnclr_hub.store.failpoints import reached

log = logging.getLogger(__name__)
T = TypeVar("T")
# requests that one transaction takes at most, which bounds how long the first of them waits
GROUP = 256
# after these the whole transaction is lost, not one request of it
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
    changes: Changes = field(default_factory=Changes)
    result: Any = None


class Writer:
    """The only writer of a collection's file.

    Args:
        connection: its own, used by its thread alone.
        index: updated after each commit.
        path: of the file, for messages.
        committed: called after each commit that the index has taken up, or could not.
    """

    def __init__(
        self, connection: sqlite3.Connection, index: AnnIndex, path: Path, committed: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._index = index
        self._path = path
        self._committed = committed
        self._requests: queue.SimpleQueue[_Request[Any] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = self._dropped = False
        self.durable_seq = last_seq(connection)
        self.failure: str | None = None  # why the collection is read-only now
        self.behind: str | None = None  # why the index does not follow, until it is loaded anew
        self.commits = 0
        self._thread = threading.Thread(target=self._run, name=f"writer of {path.name}", daemon=True)
        self._thread.start()

    def submit(self, apply: Apply[T]) -> T:
        """Runs `apply` in the next transaction and returns its result when that is durable and searchable.

        Raises:
            StoreReadOnly: an earlier write failed on the disk, or the store is closed.
            CollectionNotFound: the collection was dropped.
            whatever `apply` raises; DiskFull, StoreError from the commit.
        """
        return self._ask(_Request(apply, Future()))

    def exclusively(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` on the writer's thread outside of any transaction, with no write beside it."""
        return self._ask(_Request(lambda connection, _: work(connection), Future(), alone=True))

    def reload(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """`exclusively`, for work that brings the index up to date again."""

        def run(connection: sqlite3.Connection) -> None:
            work(connection)
            self.behind = None

        self.exclusively(run)

    def _ask(self, request: _Request[T]) -> T:
        with self._closing:
            if self._closed:
                raise closed_error(self._path, self._dropped)
            self._requests.put(request)
        return request.answer.result()

    def close(self, *, dropped: bool = False) -> None:
        """Finishes what was submitted, then ends the thread."""
        with self._closing:
            if not self._closed:
                self._dropped = dropped
                self._closed = True
                self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        open_for_business = True
        while open_for_business:
            group = [self._requests.get()]
            while len(group) < GROUP and not self._requests.empty():
                group.append(self._requests.get())
            open_for_business = None not in group
            waiting = [request for request in group if request is not None and not request.alone]
            if waiting:
                self._commit(waiting)
            for request in group:
                if request is not None and request.alone:
                    self._alone(request)

    def _alone(self, request: _Request[Any]) -> None:
        try:
            with translated(self._path):
                request.answer.set_result(request.apply(self._connection, request.changes))
        except Exception as error:  # noqa: BLE001 - handed to the caller; the thread must go on
            self._undo()
            self._remember(error)
            request.answer.set_exception(error)

    def _commit(self, group: list[_Request[Any]]) -> None:
        """One transaction for all; every request is answered, whatever happens."""
        try:
            self.refuse_failed()
            check_room(self._path)
            with translated(self._path):
                done = self._transact(group)
        except NNCLRHubError as error:
            self._remember(error)
            self._fail(group, error)
        except Exception as error:
            log.exception("a write to %s failed", self._path)
            self._fail(
                group, StoreError(f"The write to {self._path} failed ({type(error).__name__}); nothing was written.")
            )
        else:
            self._publish(done)

    def _transact(self, group: list[_Request[Any]]) -> list[_Request[Any]]:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            reached("write.begun")
            done = [request for request in group if self._try(request)]
            reached("write.applied")
            execute("COMMIT")
        except BaseException:
            self._undo()
            raise
        reached("write.committed")
        self.commits += 1
        self.durable_seq = last_seq(self._connection)
        return done

    def _try(self, request: _Request[Any]) -> bool:
        """Runs one request in a savepoint; its own mistakes are its own alone."""
        self._connection.execute("SAVEPOINT one")
        try:
            request.result = request.apply(self._connection, request.changes)
        except Exception as error:
            code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
            if code in FATAL or not self._connection.in_transaction:
                raise
            self._connection.execute("ROLLBACK TO one")
            if not isinstance(error, NNCLRHubError):
                log.exception("a request to %s failed", self._path)
                error = StoreError(f"A request to {self._path} failed ({error}); nothing of it was written.")
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
        """After a failed fsync nobody knows what is on the disk."""
        if isinstance(error, StoreReadOnly):
            self.failure = self.failure or str(error)

    def refuse_failed(self) -> None:
        """Raises StoreReadOnly if an earlier write failed on the disk."""
        if self.failure is not None:
            raise StoreReadOnly(self.failure)

    def _publish(self, done: list[_Request[Any]]) -> None:
        """After the commit: into the index, then the answers, which say "durable" whatever becomes of the index."""
        if self.behind is None:
            try:
                self._index.apply(self.durable_seq, *_together(done, self._index.spec.dim))
                reached("write.indexed")
            except Exception as error:
                log.exception("the index of %s could not follow", self._path)
                self.behind = f"the index could not take up a change ({type(error).__name__})"
        for request in done:
            request.answer.set_result(request.result)
        self._committed()

    @staticmethod
    def _fail(group: list[_Request[Any]], error: BaseException) -> None:
        for request in group:
            if not request.answer.done():
                request.answer.set_exception(error)


def _together(done: list[_Request[Any]], dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The changes of all requests: rids that died, rids that came, vectors of those."""
    died = np.array(sorted(rid for request in done for rid in request.changes.died), np.int64)
    came = [np.zeros(0, np.int64), *(rids for request in done for rids in request.changes.came)]
    vectors = [np.zeros((0, dim), np.float32), *(some for request in done for some in request.changes.vectors)]
    return died, np.concatenate(came), np.concatenate(vectors)
