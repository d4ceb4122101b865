"""The root catalog of a store: names of collections, and aliases for them.

It has the specification of each, too, as it was created. Each collection's file records its name and specification, so
either can be read if the other is damaged.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

from nnclr_hub.errors import InvalidRequest, StoreCorrupt, StoreError, StoreTooNew
from nnclr_hub.store.checks import check_collection_name
from nnclr_hub.store.disk import give_back, size_of_file, take_lock
from nnclr_hub.store.folder.schema import SCHEMA, connect
from nnclr_hub.store.sqlite import CommitRecord, Database, replacement, translated

log = logging.getLogger(__name__)
CATALOG = "catalog.sqlite"
LOST = "lost+found"
HINT = "run `nnclr store repair` without naming a collection to rebuild it from the collections' own files"
_TABLES = """
CREATE TABLE collections (name TEXT PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, spec TEXT NOT NULL) STRICT;
CREATE TABLE aliases (
    alias TEXT PRIMARY KEY, name TEXT NOT NULL REFERENCES collections ON DELETE CASCADE ON UPDATE CASCADE) STRICT;
"""


def has_collections(folder: Path) -> bool:
    """Return whether a store's folder has files of collections."""
    return any((folder / "collections").glob("*.sqlite"))


def open_catalog(folder: Path, *, read_only: bool) -> Database:
    """Open the catalog of a store, or create it if the store is new."""
    path = folder / CATALOG
    if not size_of_file(path) and has_collections(folder):
        state = "empty" if path.is_file() else "missing"
        raise StoreCorrupt(f"{path} is {state}, although the store has collections; {HINT}.")
    if not read_only and not path.is_file():  # a new store, whose folder had another one
        CommitRecord(path.with_name(f"{path.name}.commit")).remove()
    return Database(path, SCHEMA, _TABLES, HINT, read_only=read_only)


def rebuild_catalog(folder: Path) -> dict[str, str]:
    """Rebuild the catalog from what is readable of the old one, and else from the collections' files.

    The old catalog is moved to lost+found. A collection whose name is lost is called `recovered-...`. Aliases that the
    old catalog no longer has are lost. Return the stems of the collections' files by name.
    """
    if not has_collections(folder):
        raise InvalidRequest(f"{folder} has no collections; name another folder, or index images first.")
    lock = take_lock(folder)
    try:
        old, names = folder / CATALOG, dict[str, str]()
        known, aliases = dict(_read(old, "SELECT uuid, name FROM collections")), _read(old, "SELECT * FROM aliases")
        specs = dict(_read(old, "SELECT uuid, spec FROM collections"))
        for path in sorted((folder / "collections").glob("*.sqlite")):
            recorded = dict(_read(path, "SELECT key, value FROM meta WHERE key IN ('name', 'spec')"))
            specs[path.stem] = recorded.get("spec") or specs.get(path.stem, "")
            name = _valid(known.get(path.stem)) or _valid(recorded.get("name")) or f"recovered-{path.stem[:8]}"
            numbered = (name, *(f"{name}.{number}" for number in range(2, len(names) + 3)))
            names[next(free for free in numbered if free not in names)] = path.stem
        with replacement(old, SCHEMA, _TABLES, HINT, folder / LOST) as new, new.changing() as root:
            rows = [(name, stem, specs[stem]) for name, stem in names.items()]
            root.executemany("INSERT INTO collections VALUES (?, ?, ?)", rows)
            usable = [pair for pair in aliases if pair[1] in names and _valid(pair[0]) and pair[0] not in names]
            root.executemany("INSERT INTO aliases VALUES (?, ?)", usable)
        return names
    finally:
        give_back(lock)


def _read(path: Path, statement: str) -> list[tuple[str, str]]:
    rows = []
    try:
        with closing(connect(path, read_only=True)) as connection, translated(path):
            for row in connection.execute(statement):
                rows.append(row)
    except StoreTooNew:
        raise
    except (StoreError, sqlite3.Error) as error:
        log.warning("%s is only partly readable (%s)", path, error)
    return rows


def _valid(name: object) -> str | None:
    try:
        return check_collection_name(name)  # pyright: ignore[reportArgumentType] - refused with InvalidRequest
    except InvalidRequest:
        return None
