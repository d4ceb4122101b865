"""The truth: SQLite files, and how they are opened.

STORE/catalog.sqlite             names of collections
STORE/collections/UUID.sqlite    a collection: tables of items, vectors and thumbnails, the log of changes, and the
                                 list of index snapshots
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

from nnclr_hub.errors import CollectionNotFound, InvalidFilter, StoreClosed, StoreCorrupt, StoreError
from nnclr_hub.store.embedded.integrity import insert_commit, last_commit, recounted, row_crc, seal, sequence
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.sqlite import check_space, format_of
from nnclr_hub.store.sqlite import connect as connect_to
from nnclr_hub.store.where import check_key

SCHEMA = 4
STEP_PAGES = 64  # that are given back at once: 1 MiB

_ALIASES = """
CREATE TABLE aliases (
    alias TEXT PRIMARY KEY, name TEXT NOT NULL REFERENCES collections ON DELETE CASCADE ON UPDATE CASCADE) STRICT;
"""
_ROOT_TABLES = f"""
CREATE TABLE collections (name TEXT PRIMARY KEY, uuid TEXT NOT NULL UNIQUE) STRICT;
{_ALIASES}
"""
_COMMITS = """
CREATE TABLE commits (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, items INTEGER NOT NULL, digest INTEGER NOT NULL, rid INTEGER NOT NULL,
    log INTEGER NOT NULL, crc INTEGER NOT NULL) STRICT;
"""
# op: + stored, - deleted, = metadata edited
_OPLOG = """
CREATE TABLE oplog (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT NOT NULL CHECK (op IN ('+', '-', '=')), rid INTEGER NOT NULL,
    id TEXT NOT NULL DEFAULT '') STRICT;
"""
# how to update a file of an earlier format. 1: add the table of aliases; drop index files, whose format has changed.
# 2: add checksums of rows and commits, and the ids of changes. 3: allow edits in the log; drop the indexes on keys
_ROOT_FROM = {1: _ALIASES, 2: "", 3: ""}
_COLLECTION_FROM = {
    1: "DELETE FROM snapshots;",
    2: f"""
    ALTER TABLE items ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE oplog ADD COLUMN id TEXT NOT NULL DEFAULT '';
    {_COMMITS}
    """,
    3: f"""
    ALTER TABLE oplog RENAME TO old_oplog;
    {_OPLOG}
    INSERT INTO oplog SELECT seq, op, rid, id FROM old_oplog;
    DELETE FROM sqlite_sequence WHERE name = 'oplog';
    UPDATE sqlite_sequence SET name = 'oplog' WHERE name = 'old_oplog';
    DROP TABLE old_oplog;
    """,
}

# rid: a new number for every upsert, never reused, so a stale index can never confuse two items
_COLLECTION_TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE items (
    rid INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL,
    crc INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE vectors (
    rid INTEGER PRIMARY KEY REFERENCES items ON DELETE CASCADE, vector BLOB NOT NULL, crc INTEGER NOT NULL) STRICT;
CREATE TABLE thumbnails (
    rid INTEGER PRIMARY KEY REFERENCES items ON DELETE CASCADE, jpeg BLOB NOT NULL) STRICT;
{_OPLOG}
{_COMMITS}
CREATE TABLE snapshots (
    generation INTEGER PRIMARY KEY, seq INTEGER NOT NULL, file TEXT NOT NULL, size INTEGER NOT NULL,
    blake2b TEXT NOT NULL, ntotal INTEGER NOT NULL) STRICT;
"""


def connect(path: Path, *, read_only: bool = False, create: bool = False) -> sqlite3.Connection:
    """Open the root catalog or a collection's file; see `store.sqlite.connect`."""
    return connect_to(path, SCHEMA, read_only=read_only, create=create)


def create_root(connection: sqlite3.Connection) -> None:
    """Create the root catalog's tables in a new file, or update those of an earlier version."""
    _create(connection, _ROOT_TABLES)
    _migrate(connection, _ROOT_FROM)


def create_collection(connection: sqlite3.Connection, spec: CollectionSpec, name: str | None = None) -> None:
    """Create a collection's tables, its specification, and a record of its name."""
    for key in spec.indexed:
        check_indexed(key)
    _create(connection, _COLLECTION_TABLES)
    connection.execute("INSERT INTO meta VALUES ('spec', ?)", [json.dumps(spec.to_json())])
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


def change_spec(connection: sqlite3.Connection, spec: CollectionSpec) -> None:
    """Replace the specification; outside of a transaction."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE meta SET value = ? WHERE key = 'spec'", [json.dumps(spec.to_json())])
    seal(connection)
    connection.execute("COMMIT")


def _create(connection: sqlite3.Connection, tables: str) -> None:
    if format_of(connection) == 0:
        connection.executescript(f"BEGIN IMMEDIATE; {tables} PRAGMA user_version = {SCHEMA}; COMMIT;")


def migrate_collection(connection: sqlite3.Connection, path: Path) -> None:
    """Update a collection's file of an earlier version; it is unchanged if that fails."""
    if format_of(connection) < SCHEMA:
        check_space(path, need=path.stat().st_size)
        _migrate(connection, _COLLECTION_FROM, _add_checksums if format_of(connection) < 3 else _seal_without_indexes)


def _migrate(
    connection: sqlite3.Connection,
    steps: dict[int, str],
    finish: Callable[[sqlite3.Connection], None] = lambda connection: None,
) -> None:
    version = format_of(connection)
    if not 0 < version < SCHEMA:
        return
    script = "".join(steps[number] for number in range(version, SCHEMA))
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {SCHEMA};")
        finish(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _add_checksums(connection: sqlite3.Connection) -> None:
    """Compute what format 2 lacks. Changes before that cannot be listed by id, so the first commit is the last one."""
    connection.create_function("row_crc", 5, lambda *row: row_crc(*row), deterministic=True)
    connection.execute(
        "UPDATE items SET crc = row_crc(rid, id, metadata, (SELECT crc FROM vectors WHERE vectors.rid = items.rid), "
        "(SELECT jpeg FROM thumbnails WHERE thumbnails.rid = items.rid))"
    )
    for table in ("items", "oplog"):
        known = connection.execute("SELECT 1 FROM sqlite_sequence WHERE name = ?", [table]).fetchone()
        if known is None:
            connection.execute("INSERT INTO sqlite_sequence VALUES (?, 0)", [table])
    insert_commit(connection, recounted(connection, last_commit(connection)))
    _seal_without_indexes(connection)


def _seal_without_indexes(connection: sqlite3.Connection) -> None:
    """Drop the indexes on metadata keys, which columns replace; they cost a third of the time of a write."""
    indexes = "SELECT name FROM sqlite_master WHERE tbl_name = 'items' AND type = 'index' AND sql IS NOT NULL"
    for (name,) in connection.execute(indexes).fetchall():
        connection.execute(f'DROP INDEX "{name}"')
    seal(connection)


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


def can_give_back(connection: sqlite3.Connection) -> bool:
    """Return whether the file gives pages back step by step; one of an earlier format must be rewritten for that."""
    return connection.execute("PRAGMA auto_vacuum").fetchone()[0] == 2


def rewrite(connection: sqlite3.Connection) -> None:
    """Rewrite the file without free pages, so that it can give pages back from now on. Needs its size twice."""
    connection.execute("PRAGMA auto_vacuum = 2")
    connection.execute("VACUUM")
