"""Records of a store, by kind and name: jobs, probes, inspections. Each is JSON, with optional bytes.

    store.records.put(Record("probe", "cats", {"classes": ["cat", "dog"]}, weights))
    store.records.get("probe", "cats").content["classes"]

They have a separate SQLite file, because the root catalog can be rebuilt from the collections, and records cannot.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnclr_hub.errors import OpenedForReading, StoreClosed, StoreCorrupt
from nnclr_hub.store.disk import check_space, give_back, take_lock
from nnclr_hub.store.sqlite import Database, check_process, connect, replacement, with_hint

log = logging.getLogger(__name__)
RECORDS = "records.sqlite"
SCHEMA = 1
KEPT_ELSEWHERE = (
    "This process keeps no jobs and probes, because it opened the store read-only or shares it with other servers. "
    "Use a server that has the store alone, without --read-only."
)
HINT = "save what is readable with `nnclr store repair`, without naming a collection"
_TABLES = """
CREATE TABLE records (
    kind TEXT NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL, data BLOB, PRIMARY KEY (kind, name)) STRICT;
"""
_PUT = "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)"


@dataclass(frozen=True)
class Record:
    """JSON, and bytes that belong to it, which kind and name identify."""

    kind: str
    name: str
    content: Mapping[str, Any]
    data: bytes | None = None


class Records:
    """The records of a store. Each change is durable when it returns, and atomic. Safe to call from many threads.

    Args:
        path: path of the file, which is opened, and created, on first use.
        read_only: for a store that another process writes; without a file there are no records.
        locked: lock the file's folder on first use; False if the store has locked it already.
    """

    def __init__(self, path: Path, *, read_only: bool, locked: bool = False) -> None:
        self.read_only = read_only  # the store's collections may be writable nevertheless
        self._path, self._locked = path, locked
        self._opening = threading.RLock()
        self._folder_lock: int | None = None
        self._database: Database | None = None
        self._closed = False
        self._pid = os.getpid()

    def put(self, *records: Record) -> None:
        """Store records, replacing those with the same kind and name; all or none."""
        rows = [(one.kind, one.name, json.dumps(one.content), one.data) for one in records]
        with self.transaction() as connection:
            check_space(self._path, sum(len(row[2]) + len(row[3] or b"") for row in rows))
            connection.executemany(_PUT, rows)

    def get(self, kind: str, name: str) -> Record | None:
        """Return a record with its bytes; None if it does not exist."""
        return next(iter(self._select("data", "name = ?", [kind, name])), None)

    def delete(self, kind: str, *names: str) -> int:
        """Delete records; return how many existed."""
        with self.transaction() as connection:
            each = (connection.execute("DELETE FROM records WHERE kind = ? AND name = ?", [kind, one]) for one in names)
            return sum(cursor.rowcount for cursor in each)

    def list(
        self, kind: str, *, after: str | None = None, limit: int | None = None, descending: bool = False
    ) -> list[Record]:
        """Return records of a kind in the order of their names, without their bytes; at most `limit` after a name."""
        sign, order = ("<", "DESC") if descending else (">", "ASC")
        further, names = ("true", []) if after is None else (f"name {sign} ?", [after])
        condition = f"{further} ORDER BY name {order} LIMIT ?"
        return self._select("NULL", condition, [kind, *names, -1 if limit is None else limit])

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction; an exception rolls it back."""
        if self.read_only:
            raise OpenedForReading(KEPT_ELSEWHERE)
        with self._opened().changing() as connection:
            yield connection

    def close(self) -> None:
        """Close the file."""
        with self._opening:
            self._closed = True
            if self._database is not None:
                self._database.close()
            if self._folder_lock is not None:
                give_back(self._folder_lock)
                self._folder_lock = None

    def _select(self, data: str, condition: str, parameters: list[Any]) -> list[Record]:
        with self._opened().using() as connection:
            if connection is None:
                return []
            statement = f"SELECT kind, name, content, {data} FROM records WHERE kind = ? AND {condition}"
            rows = connection.execute(statement, parameters).fetchall()
            return [Record(kind, name, json.loads(content), data) for kind, name, content, data in rows]

    def _opened(self) -> Database:
        check_process(self._pid)
        with self._opening:
            if self._closed:
                raise StoreClosed("The store is closed; open it again.")
            if self._locked and not self.read_only and self._folder_lock is None:
                self._folder_lock = take_lock(self._path.parent)
            # without a file there is nothing to keep open: another process may create it
            if self._database is None or self._database.connection is None:
                self._database = Database(self._path, SCHEMA, _TABLES, HINT, read_only=self.read_only)
            return self._database


def repair_records(path: Path) -> int | None:
    """Move the readable rows of a damaged file into a new one; the damaged one is kept in lost+found.

    Return the number of records saved; None if the file is intact or does not exist.
    """
    if not path.is_file():
        return None
    lock = take_lock(path.parent)
    try:
        with closing(Database(path, SCHEMA, _TABLES, HINT, read_only=False)):
            return None
    except StoreCorrupt as error:
        log.warning("%s", error)
        with replacement(path, SCHEMA, _TABLES, HINT, path.parent / "lost+found") as new, new.changing() as to:
            return sum(to.execute(_PUT, row).rowcount for row in _readable_rows(path))
    finally:
        give_back(lock)


def _readable_rows(path: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that can be read, each by its own statement."""
    try:
        with with_hint(path, HINT), closing(connect(path, SCHEMA, read_only=True)) as old:
            last = old.execute("SELECT max(rowid) FROM records").fetchone()[0] or 0
            for row in range(1, last + 1):
                try:
                    yield from old.execute("SELECT * FROM records WHERE rowid = ?", [row]).fetchall()
                except sqlite3.DatabaseError as error:
                    log.warning("row %d of the records cannot be read (%s)", row, error)
    except StoreCorrupt as error:
        log.warning("the records are only partly readable (%s)", error)
