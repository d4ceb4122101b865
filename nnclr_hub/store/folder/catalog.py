"""The truth: SQLite files, and how they are opened.

STORE/catalog.sqlite             names of collections
STORE/collections/UUID.sqlite    a collection: tables of items, vectors and thumbnails, the log of changes, and the
                                 snapshot of the index; each indexed key is an index on an expression
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from nnclr_hub.errors import CollectionNotFound, InvalidFilter, StoreClosed, StoreCorrupt, StoreError
from nnclr_hub.store.folder.filter_sql import add_functions, value_sql
from nnclr_hub.store.folder.integrity import seal, sequence
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.sqlite import connect as connect_to
from nnclr_hub.store.where import check_key

SCHEMA = 5
STEP_PAGES = 64  # that are given back at once: 1 MiB

ROOT_TABLES = """
CREATE TABLE collections (name TEXT PRIMARY KEY, uuid TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE aliases (
    alias TEXT PRIMARY KEY, name TEXT NOT NULL REFERENCES collections ON DELETE CASCADE ON UPDATE CASCADE) STRICT;
"""

# rid: a new number for every upsert, never reused, so a stale index can never confuse two items
# oplog.op: + stored, - deleted, = metadata edited
_COLLECTION_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE items (
    rid INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL,
    crc INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE vectors (
    rid INTEGER PRIMARY KEY REFERENCES items ON DELETE CASCADE, vector BLOB NOT NULL, crc INTEGER NOT NULL) STRICT;
CREATE TABLE thumbnails (
    rid INTEGER PRIMARY KEY REFERENCES items ON DELETE CASCADE, jpeg BLOB NOT NULL) STRICT;
CREATE TABLE oplog (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT NOT NULL CHECK (op IN ('+', '-', '=')), rid INTEGER NOT NULL,
    id TEXT NOT NULL DEFAULT '') STRICT;
CREATE TABLE commits (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, items INTEGER NOT NULL, rid INTEGER NOT NULL, crc INTEGER NOT NULL)
    STRICT;
CREATE TABLE snapshot (file TEXT NOT NULL, blake2b TEXT NOT NULL) STRICT;
"""


def connect(path: Path, *, read_only: bool = False, create: bool = False) -> sqlite3.Connection:
    """Open the root catalog or a collection's file; see `store.sqlite.connect`."""
    connection = connect_to(path, SCHEMA, read_only=read_only, create=create)
    add_functions(connection)
    return connection


def create_collection(connection: sqlite3.Connection, spec: CollectionSpec, name: str | None = None) -> None:
    """Create a collection's tables, its specification, and a record of its name."""
    for key in spec.indexed:
        check_indexed(key)
    connection.executescript(f"BEGIN IMMEDIATE; {_COLLECTION_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
    _create_indexes(connection, spec)
    connection.execute("INSERT INTO meta VALUES ('spec', ?)", [json.dumps(asdict(spec))])
    if name is not None:
        connection.execute("INSERT INTO meta VALUES ('name', ?)", [name])
    connection.execute("INSERT INTO sqlite_sequence VALUES ('items', 0), ('oplog', 0)")
    seal(connection)


def check_indexed(key: str) -> str:
    """Return a key that can be indexed.

    Raises:
        InvalidFilter: it cannot be filtered by.
    """
    try:
        return check_key(key)
    except InvalidFilter as error:
        raise InvalidFilter(f"indexed: {error}") from error


def change_indexed(connection: sqlite3.Connection, spec: CollectionSpec) -> None:
    """Replace the specification by one with other indexed keys; outside of a transaction."""
    connection.execute("BEGIN IMMEDIATE")
    kept = [f'key "{key}"' for key in spec.indexed]
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name GLOB 'key \"*'").fetchall():
        if name not in kept:
            connection.execute(f"DROP INDEX {_quoted(name)}")
    _create_indexes(connection, spec)
    connection.execute("UPDATE meta SET value = ? WHERE key = 'spec'", [json.dumps(asdict(spec))])
    seal(connection)
    connection.execute("COMMIT")


def _create_indexes(connection: sqlite3.Connection, spec: CollectionSpec) -> None:
    for key in spec.indexed:
        name = _quoted(f'key "{key}"')
        connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON items ({value_sql(key)})")


@contextmanager
def without_indexes(connection: sqlite3.Connection) -> Iterator[None]:
    """Drop the indexes on metadata for the block, in a transaction."""
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE name GLOB 'key \"*'").fetchall()
    for name, _ in found:
        connection.execute(f"DROP INDEX {_quoted(name)}")
    yield
    for _, sql in found:
        connection.execute(sql)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def read_spec(connection: sqlite3.Connection) -> CollectionSpec:
    """Return the specification that a collection was created with.

    Raises:
        StoreCorrupt: it is missing or invalid.
    """
    exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone()
    row = connection.execute("SELECT value FROM meta WHERE key = 'spec'").fetchone() if exists else None
    try:
        return CollectionSpec(**json.loads(row[0] if row else ""))
    except (TypeError, ValueError) as error:  # not JSON, or other fields
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        raise StoreCorrupt(
            f"{path} has lost its specification; import the collection from an export, or index its images again."
        ) from error


def closed_error(dropped: bool) -> StoreError:
    """Return the error for a call on a closed collection."""
    if dropped:
        return CollectionNotFound("The collection was dropped while it was in use.")
    return StoreClosed("The collection is closed, because its store is; open the store again.")


def last_seq(connection: sqlite3.Connection) -> int:
    """Return the number of the last change; trimming the log does not reset it."""
    return sequence(connection, "oplog")


def free_pages(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return how many pages of the file are free, and how many it has."""
    free, pages = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
    return free, pages


def give_back_pages(connection: sqlite3.Connection) -> None:
    """Give some free pages back to the disk; each call takes a few milliseconds."""
    connection.execute(f"PRAGMA incremental_vacuum({STEP_PAGES})").fetchall()
    # it waits for nobody: pages that a reader needs are merged by a later call
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def trim_log(connection: sqlite3.Connection, kept: int) -> None:
    """Delete all but about the last `kept` changes, so that the log starts right after a commit."""
    row = connection.execute("SELECT max(seq) FROM commits WHERE seq <= ?", [last_seq(connection) - kept]).fetchone()
    if row[0] is not None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM commits WHERE seq < ?", row)
        connection.execute("DELETE FROM oplog WHERE seq <= ?", row)
        connection.execute("COMMIT")
