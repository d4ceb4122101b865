"""What a store keeps beside its collections, by kind and name: jobs, probes, replies. JSON, and bytes if need be.

    store.records.put(Record("probe", "cats", {"classes": ["cat", "dog"]}, weights))
    store.records.get("probe", "cats").content["classes"]

They lie in a SQLite file of their own. The root catalog can be made anew from the collections at any time, and these
could not; nor does a store that has them become one that an earlier version cannot open.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nnclr_hub.errors import OpenedForReading, StoreCorrupt, StoreReadOnly
from nnclr_hub.store.durable import fsync_folder, make_folder
from nnclr_hub.store.lock import give_back, take_lock
from nnclr_hub.store.sqlite import check_room, connect, format_of, quick_check, translated

log = logging.getLogger(__name__)
RECORDS = "records.sqlite"
SCHEMA = 1
KEPT_ELSEWHERE = (
    "Jobs and probes are not kept here, for this was opened for reading or is one of several servers over one store: "
    "ask a server that was started over the store alone, without read-only."
)
WAY_ON = "save what can be read with `nnclr store repair`, without naming a collection"
_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (
    kind TEXT NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL, data BLOB, PRIMARY KEY (kind, name)) STRICT;
PRAGMA user_version = {SCHEMA};
COMMIT;
"""


@dataclass(frozen=True)
class Record:
    """Something to keep.

    kind, name: by which it is found.
    content: JSON.
    data: bytes that belong to it.
    """

    kind: str
    name: str
    content: Mapping[str, Any]
    data: bytes | None = None


class Records:
    """Every change is durable when it returns, and done as a whole or not at all. Safe to call from many threads.

    The file is opened, and made, on the first use.

    Args:
        path: of the file.
        read_only: for a store that another process writes; without a file there are no records.
        locked: take the lock of the file's folder on the first use; False where the store holds one already.

    Raises (on use):
        StoreCorrupt: the file is damaged.
        OpenedForReading: a change of what was opened for reading.
        StoreReadOnly: the store is closed.
        StoreLocked: another process has the folder.
        DiskFull: nothing was written.
    """

    def __init__(self, path: Path, *, read_only: bool, locked: bool = False) -> None:
        self._path = path
        self._read_only = read_only
        self._locked = locked
        self._lock = threading.RLock()
        self._folder_lock: BinaryIO | None = None
        self._connection: sqlite3.Connection | None = None
        self._changing = False
        self._closed = False

    def put(self, *records: Record) -> None:
        """Keeps records, in place of those of the same kind and name; all or none."""
        rows = [(one.kind, one.name, json.dumps(one.content), one.data) for one in records]
        need = sum(len(row[2]) + len(row[3] or b"") for row in rows)
        with self.together() as connection:
            check_room(self._path, need)
            connection.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", rows)

    def get(self, kind: str, name: str) -> Record | None:
        """The record with its bytes; None if there is none."""
        statement = "SELECT kind, name, content, data FROM records WHERE kind = ? AND name = ?"
        return next(iter(self._found(statement, [kind, name])), None)

    def delete(self, kind: str, *names: str) -> int:
        """Deletes; returns how many there were."""
        with self.together() as connection:
            each = (connection.execute("DELETE FROM records WHERE kind = ? AND name = ?", [kind, one]) for one in names)
            return sum(cursor.rowcount for cursor in each)

    def list(
        self, kind: str, *, after: str | None = None, limit: int | None = None, descending: bool = False
    ) -> list[Record]:
        """Records of a kind in the order of their names, without their bytes.

        Args:
            after: only those that come after this name.
            limit: at most so many; None: all.
            descending: the last name first.
        """
        sign, order = ("<", "DESC") if descending else (">", "ASC")
        further = "" if after is None else f"AND name {sign} ?"
        statement = (
            f"SELECT kind, name, content, NULL FROM records WHERE kind = ? {further} ORDER BY name {order} LIMIT ?"
        )
        return self._found(statement, [kind, *([] if after is None else [after]), -1 if limit is None else limit])

    @property
    def read_only(self) -> bool:
        """Whether another process keeps them; the store's collections may be open for writing all the same."""
        return self._read_only

    @contextmanager
    def together(self) -> Iterator[sqlite3.Connection]:
        """What is looked at and changed in the block is one transaction; an exception undoes it."""
        if self._read_only:
            raise OpenedForReading(KEPT_ELSEWHERE)
        with self._using() as connection:
            assert connection is not None
            if self._changing:
                yield connection
                return
            connection.execute("BEGIN IMMEDIATE")
            self._changing = True
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._changing = False

    def close(self) -> None:
        """Lets go of the file."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._folder_lock is not None:
                give_back(self._folder_lock)
                self._folder_lock = None

    # ---- inside

    def _found(self, statement: str, parameters: list[Any]) -> list[Record]:
        with self._using() as connection:
            if connection is None:
                return []
            rows = connection.execute(statement, parameters).fetchall()
            return [Record(kind, name, json.loads(content), data) for kind, name, content, data in rows]

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection | None]:
        """The connection; None if there is no file yet, and none may be made."""
        with self._lock:
            if self._closed:
                raise StoreReadOnly("The store is closed: open it again.")
            with damage_named(self._path):
                if self._connection is None:
                    self._connection = self._opened()
                yield self._connection

    def _opened(self) -> sqlite3.Connection | None:
        if self._read_only:
            return connect(self._path, SCHEMA, read_only=True) if self._path.is_file() else None
        if self._locked and self._folder_lock is None:
            self._folder_lock = take_lock(self._path.parent)
        return _connected(self._path)


def mend_records(path: Path) -> int | None:
    """Puts what can still be read of a damaged file into a new one; the damaged one is kept in lost+found.

    Returns:
        How many records were saved; None if the file is well, or there is none.

    Raises:
        StoreLocked: the store is open for writing.
    """
    if not path.is_file():
        return None
    lock = take_lock(path.parent)
    try:
        return _mended(path)
    finally:
        give_back(lock)


def _mended(path: Path) -> int | None:
    try:
        with damage_named(path):
            _connected(path).close()
    except StoreCorrupt as error:
        log.warning("%s", error)
    else:
        return None
    new, lost = path.with_suffix(".new"), path.parent / "lost+found"
    for suffix in ("", "-wal", "-shm"):  # of an attempt that was cut short
        Path(f"{new}{suffix}").unlink(missing_ok=True)
    with closing(_connected(new)) as to:
        saved = _rescue(path, to)
    make_folder(lost)
    number = sum(1 for _ in lost.glob(f"{path.stem}-damaged*{path.suffix}"))
    there = [suffix for suffix in ("", "-wal", "-shm") if Path(f"{path}{suffix}").exists()]
    for suffix in there:
        shutil.copy2(f"{path}{suffix}", lost / f"{path.stem}-damaged{number}{path.suffix}{suffix}")
    fsync_folder(lost)
    for suffix in there[1:]:  # the old file's log is none of the new one's
        Path(f"{path}{suffix}").unlink()
    os.replace(new, path)
    fsync_folder(path.parent)
    return saved


def _rescue(path: Path, to: sqlite3.Connection) -> int:
    """Copies row by row; a row that cannot be read is skipped, and the end of what can be found is the end."""
    saved = row = 0
    try:
        with damage_named(path), closing(connect(path, SCHEMA, read_only=True)) as old:
            last = old.execute("SELECT max(rowid) FROM records").fetchone()[0] or 0
            while row < last:
                row += 1
                try:
                    found = old.execute("SELECT * FROM records WHERE rowid = ?", [row]).fetchone()
                except sqlite3.DatabaseError as error:
                    log.warning("row %d of the records cannot be read (%s)", row, error)
                    continue
                if found is not None:
                    saved += to.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", found).rowcount
    except StoreCorrupt as error:
        log.warning("the records cannot be read whole (%s)", error)
    return saved


def _connected(path: Path) -> sqlite3.Connection:
    """A connection to a file that is checked, or made."""
    make_folder(path.parent)
    connection = connect(path, SCHEMA, create=True)
    try:
        quick_check(connection, path)
        if format_of(connection) == 0:
            connection.executescript(_TABLES)
            fsync_folder(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """SQLite's errors as ours; of damage to this file another way leads on than of damage to a collection's."""
    try:
        with translated(path):
            yield
    except StoreCorrupt as error:
        raise StoreCorrupt(f"{path} is damaged ({error.__cause__ or 'it fails its check'}): {WAY_ON}.") from error
