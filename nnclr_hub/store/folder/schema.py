"""The SQLite file of a collection: its tables, its specification, and what makes damage visible.

STORE/collections/UUID.sqlite   tables of items, vectors and thumbnails, the log of changes, and the row of the index
                                snapshot; each indexed key is an index on an expression
UUID/commit                     the last commit, in another file; see `store.sqlite.CommitRecord`
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from nnclr_hub.errors import InvalidFilter, StoreCorrupt
from nnclr_hub.plural import counted
from nnclr_hub.store.folder.filter_sql import add_functions, value_sql
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.sqlite import HINT, sequence
from nnclr_hub.store.sqlite import connect as connect_to
from nnclr_hub.store.where import check_key

SCHEMA = 6

# rid: a new number for every upsert, never reused, so a stale index can never confuse two items
# oplog.op: + stored, - deleted, = metadata edited
# items.crc: over a row's number, id, metadata, vector and thumbnail
# commits: the last change of each, its time, the number of items, and the highest row id that was ever given out
_TABLES = """
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
    """Open a collection's file or the root catalog; see `store.sqlite.connect`."""
    connection = connect_to(path, SCHEMA, read_only=read_only, create=create)
    add_functions(connection)
    return connection


def create_collection(connection: sqlite3.Connection, spec: CollectionSpec, name: str | None) -> None:
    """Create a collection's tables, its specification, and a record of its name."""
    check_indexed(spec)
    connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
    connection.execute("INSERT INTO sqlite_sequence VALUES ('items', 0), ('oplog', 0)")
    if name is not None:
        write_meta(connection, "name", name)
    change_indexed(connection, spec)


# ------------------------------------------------------------------------------ the specification


def check_indexed(spec: CollectionSpec) -> None:
    """Raise InvalidFilter if a key cannot be indexed."""
    for key in spec.indexed:
        try:
            check_key(key)
        except InvalidFilter as error:
            raise InvalidFilter(f"indexed: {error}") from error


def change_indexed(connection: sqlite3.Connection, spec: CollectionSpec) -> None:
    """Write a specification, and index its keys and no others."""
    wanted = {f'key "{key}"': value_sql(key) for key in spec.indexed}
    existing = _indexes(connection)
    for name in existing.keys() - wanted:
        connection.execute(f"DROP INDEX {_quoted(name)}")
    for name in [name for name in wanted if name not in existing]:
        connection.execute(f"CREATE INDEX {_quoted(name)} ON items ({wanted[name]})")
    write_meta(connection, "spec", json.dumps(asdict(spec)))


@contextmanager
def without_indexes(connection: sqlite3.Connection) -> Iterator[None]:
    """Drop the indexes on metadata for the block, in a transaction."""
    existing = _indexes(connection)
    for name in existing:
        connection.execute(f"DROP INDEX {_quoted(name)}")
    yield
    for sql in existing.values():
        connection.execute(sql)


def _indexes(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE name GLOB 'key \"*'").fetchall())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def read_spec(connection: sqlite3.Connection) -> CollectionSpec:
    """Return the specification; raise StoreCorrupt if it is missing or invalid."""
    exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone()
    row = connection.execute("SELECT value FROM meta WHERE key = 'spec'").fetchone() if exists else None
    try:
        return CollectionSpec(**json.loads(row[0] if row else ""))
    except (TypeError, ValueError) as error:  # not JSON, or other fields
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        raise StoreCorrupt(
            f"{path} has lost its specification; import the collection from an export, or index its images again."
        ) from error


def write_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    """Write the name or the specification, and the checksum of both and of the tables' definitions."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, value])
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('crc', ?)", [_meta_crc(connection)])


def _meta_crc(connection: sqlite3.Connection) -> str:
    meta = connection.execute("SELECT key, value FROM meta WHERE key IN ('spec', 'name') ORDER BY key").fetchall()
    tables = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    return str(zlib.crc32(json.dumps([meta, tables]).encode()))


# ------------------------------------------------------------------------------ commits and checksums


@dataclass(frozen=True)
class Commit:
    """The state of a collection after a commit."""

    seq: int  # number of its last change
    at: float  # time in seconds since 1970; never decreases
    items: int  # number of items
    rid: int  # the highest row id that was ever given out

    @property
    def row(self) -> tuple[int, float, int, int, int]:
        """The row of the table `commits`, whose last column is the checksum of the others."""
        columns = (self.seq, self.at, self.items, self.rid)
        return *columns, zlib.crc32(repr(columns).encode())


def last_commit(connection: sqlite3.Connection) -> Commit:
    """Return the last commit; a new collection has commit 0."""
    row = connection.execute("SELECT seq, at, items, rid FROM commits ORDER BY seq DESC LIMIT 1").fetchone()
    return Commit(*row) if row else Commit(0, 0.0, 0, 0)


def insert_commit(connection: sqlite3.Connection, commit: Commit) -> None:
    """Record a commit, in its transaction."""
    connection.execute("INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?, ?)", commit.row)


def check_meta(connection: sqlite3.Connection, path: Path, recorded: tuple[int, int] | None) -> None:
    """Check the specification, the last commit and the counters; StoreCorrupt if something differs or is missing.

    The connection is in a read transaction, and `recorded` is what `CommitRecord.read` returned before it began.
    """
    sealed = connection.execute("SELECT value FROM meta WHERE key = 'crc'").fetchone()
    if sealed is None or sealed[0] != _meta_crc(connection):
        raise StoreCorrupt(f"{path} is damaged (its specification or a table's definition changed); {HINT}.")
    commit = last_commit(connection)
    row = connection.execute("SELECT * FROM commits WHERE seq = ?", [commit.seq]).fetchone()
    if row is not None and row != commit.row:
        raise StoreCorrupt(f"{path} is damaged (its last commit fails its checksum); {HINT}.")
    if recorded is not None and recorded[0] > commit.seq:
        raise StoreCorrupt(
            f"{path} lacks {counted(recorded[0] - commit.seq, 'acknowledged change')}, because its log is damaged or "
            "missing. Restore a backup with `nnclr store restore`, or keep what is readable with `nnclr store repair "
            "COLLECTION`."
        )
    if (sequence(connection, "oplog"), sequence(connection, "items")) != (commit.seq, commit.rid) or (
        recorded is not None and recorded[0] == commit.seq and recorded[1] != commit.items
    ):
        raise StoreCorrupt(f"{path} is damaged (its counters disagree with its last commit); {HINT}.")


def check_totals(connection: sqlite3.Connection, path: Path) -> None:
    """Compare the tables with each other and with the commits; StoreCorrupt if rows or changes are missing."""
    last = last_commit(connection)
    rows = connection.execute("SELECT count(*) FROM items NOT INDEXED").fetchone()[0]
    lone = "SELECT count(*) FROM {} WHERE rid NOT IN (SELECT rid FROM items)"
    first, count = connection.execute("SELECT coalesce(min(seq), 0), count(*) FROM oplog").fetchone()
    damage = ""
    if any(connection.execute(lone.format(table)).fetchone()[0] for table in ("vectors", "thumbnails")):
        damage = "its tables disagree"
    elif rows != last.items:
        damage = f"{counted(rows, 'row')} instead of {last.items}"
    elif any(row != Commit(*row[:-1]).row for row in connection.execute("SELECT * FROM commits")):
        damage = "a commit fails its checksum"
    elif count and count != last.seq - first + 1:
        damage = "the log of changes lacks some"
    if damage:
        raise StoreCorrupt(f"{path} is damaged ({damage}; nothing was changed); {HINT}.")
