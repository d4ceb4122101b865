"""A small SQLite file of a store: the names of its collections, or its records.

    with database.changing() as connection:
        connection.execute(...)             # durable when the block ends

Each change counts as one commit, in the file and in a record next to it, so that a lost one is noticed at the next
start (see `store.commit_record`).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from nnclr_hub.errors import DiskFull, StoreClosed, StoreCorrupt
from nnclr_hub.store.commit_record import CommitRecord
from nnclr_hub.store.disk import check_process, fsync_folder, make_folder
from nnclr_hub.store.sqlite import connect, format_of, quick_check, remove_files, replace_damaged, with_hint

_COMMITS = "CREATE TABLE commits (n INTEGER NOT NULL) STRICT; INSERT INTO commits VALUES (0);"


class Database:
    """Opens a file, and creates it unless it is read-only. Safe to call from many threads.

    Args:
        path: of the file.
        format: its version.
        tables: SQL that creates them.
        hint: what to do if the file is damaged.
        read_only: for a store that another process writes; `connection` is None while the file does not exist.

    Raises:
        StoreCorrupt: the file is damaged, or lacks acknowledged changes.
        StoreTooNew: it has another format.
        DiskFull: it cannot be created.
    """

    def __init__(self, path: Path, format: int, tables: str, hint: str, *, read_only: bool) -> None:
        self.path = path
        self._format, self._hint = format, hint
        self._lock = threading.RLock()
        self._record = CommitRecord(path.with_name(f"{path.name}.commit"))
        self._changing = self._closed = False
        self._pid = os.getpid()
        recorded = self._record.read()  # before the file, which another process may write
        with with_hint(path, hint):
            self.connection = None if read_only and not path.is_file() else self._opened(read_only)
            try:
                if self.connection is not None and not self._read_only:
                    quick_check(self.connection, path)  # a page that cannot be read would look like missing rows
                    if format_of(self.connection) == 0:
                        version = f"PRAGMA user_version = {format};"
                        self.connection.executescript(f"BEGIN IMMEDIATE; {_COMMITS} {tables} {version} COMMIT;")
                        fsync_folder(path.parent)
                missing = 0 if recorded is None else recorded[0] - self._count()
                if missing > 0:
                    reason = f"it lacks {missing} acknowledged changes, because its log is damaged or missing"
                    raise StoreCorrupt(reason) from ValueError(reason)
            except BaseException:
                self.close()
                raise

    def _opened(self, read_only: bool) -> sqlite3.Connection:
        self._read_only = read_only
        if not read_only:
            make_folder(self.path.parent)
        try:
            return connect(self.path, self._format, read_only=read_only, create=not read_only)
        except DiskFull:
            if read_only or not self.path.is_file() or self.path.stat().st_size == 0:  # nothing can be read
                raise
            self._read_only = True
            return connect(self.path, self._format, read_only=True)

    @contextmanager
    def using(self) -> Iterator[sqlite3.Connection | None]:
        """Provide the connection for reading; None while the file does not exist."""
        check_process(self._pid)
        with self._lock:
            if self._closed:
                raise StoreClosed(f"The store {self.path.parent} is closed; open it again.")
            with with_hint(self.path, self._hint):
                yield self.connection

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction, or as a part of the one that surrounds it; an exception undoes it."""
        with self.using() as connection:
            assert connection is not None
            if self._changing:
                yield connection
                return
            connection.execute("BEGIN IMMEDIATE")
            self._changing = True
            try:
                yield connection
                number = connection.execute("UPDATE commits SET n = n + 1 RETURNING n").fetchone()[0]
                connection.execute("COMMIT")
                self._record.write(number)
            except BaseException:
                if connection.in_transaction:  # a full disk rolls it back
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._changing = False

    def _count(self) -> int:
        if self.connection is None or format_of(self.connection) == 0:  # a file that a crash left empty
            return 0
        return self.connection.execute("SELECT n FROM commits").fetchone()[0]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._closed = True
            if self.connection is not None:
                self.connection.close()
            self._record.close()


@contextmanager
def replacement(path: Path, format: int, tables: str, hint: str, lost: Path) -> Iterator[Database]:
    """Provide a new file that takes the place of a damaged one after the block; that is kept in the folder `lost`."""
    new = path.with_name(f"{path.name}.new")
    for file in (new, new.with_name(f"{new.name}.commit")):  # of an interrupted attempt
        remove_files(file)
    with closing(Database(new, format, tables, hint, read_only=False)) as database:
        yield database
    for of in (path, new):  # the new file may lack commits of the old one
        CommitRecord(of.with_name(f"{of.name}.commit")).remove()
    replace_damaged(path, new, lost)
