"""Cancellation of reads that take long: a search, a filter, a scan.

    with cancellable(check):            # check() raises if nobody waits for the result any more
        collection.search(vector, k=10)

Writes are never cancelled halfway: they run in the writer's thread, which has no check.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# operations of SQLite's virtual machine between two checks: about a millisecond, or 0.2 s if each reads 64 KiB of JSON
OPERATIONS = 10_000
_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def cancellable(check: Callable[[], None]) -> Iterator[None]:
    """Let reads inside the block be cancelled: `check` raises to do so. Threads that copy the context inherit it."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_cancelled() -> None:
    """Raise what the check of the surrounding `cancellable` raises, if there is one."""
    check = _check.get()
    if check is not None:
        check()


@contextmanager
def cancellable_queries(connection: sqlite3.Connection) -> Iterator[None]:
    """Check also while SQLite runs a query of this connection."""
    check = _check.get()
    if check is None:
        yield
        return
    raised: list[Exception] = []

    def interrupt() -> bool:
        try:
            check()
        except Exception as error:  # noqa: BLE001 - raised again below; SQLite would only print it
            raised.append(error)
        return bool(raised)

    connection.set_progress_handler(interrupt, OPERATIONS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if raised:
            raise raised[0] from error
        raise
    finally:
        connection.set_progress_handler(None, 0)
