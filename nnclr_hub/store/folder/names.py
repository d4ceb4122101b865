"""The root catalog of a store: names of collections, and aliases for them.

Each collection's file also records its name, so that the root catalog can be rebuilt after damage.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from nnclr_hub.errors import InvalidRequest, NNCLRHubError, StoreCorrupt, StoreError, StoreTooNew
from nnclr_hub.store.checks import check_collection_name
from nnclr_hub.store.commit_record import CommitRecord
from nnclr_hub.store.database import Database, replacement
from nnclr_hub.store.disk import give_back, take_lock
from nnclr_hub.store.folder.catalog import ROOT_TABLES, SCHEMA, connect
from nnclr_hub.store.folder.integrity import seal
from nnclr_hub.store.name_errors import (
    alias_exists,
    alias_not_found,
    collection_exists,
    collection_not_found,
    is_alias,
    is_collection,
    is_own_name,
    replaced_name,
)
from nnclr_hub.store.sqlite import translated

log = logging.getLogger(__name__)
CATALOG = "catalog.sqlite"
LOST = "lost+found"
HINT = "run `nnclr store repair` without naming a collection to rebuild it from the collections' own files"


class Names:
    """Collections and aliases by name; every change is durable when its method returns.

    Args:
        path: of the SQLite file, created if it does not exist.
        read_only: for a store that another process writes.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        if not path.is_file() and has_collections(path.parent):
            raise StoreCorrupt(f"{path} is missing, although the store has collections; {HINT}.")
        if path.is_file() and path.stat().st_size == 0 and has_collections(path.parent):
            raise StoreCorrupt(f"{path} is empty, although the store has collections; {HINT}.")
        if not read_only and not path.is_file():  # a new store, whose folder had another one
            CommitRecord(path.with_name(f"{path.name}.commit")).remove()
        self._database = Database(path, SCHEMA, ROOT_TABLES, HINT, read_only=read_only)

    def files(self) -> dict[str, str]:
        """Return the stems of the collections' files by name, sorted."""
        with self._using() as root:
            return dict(root.execute("SELECT name, uuid FROM collections ORDER BY name"))

    def collections(self) -> list[str]:
        """Return the names of the collections, sorted."""
        return list(self.files())

    def aliases(self) -> dict[str, str]:
        """Return names by alias."""
        with self._using() as root:
            return dict(root.execute("SELECT alias, name FROM aliases ORDER BY alias"))

    def resolve(self, name: str, *, aliases: bool = True) -> tuple[str, str]:
        """Return a collection's own name and the stem of its file.

        Args:
            name: of a collection.
            aliases: whether an alias is accepted.
        """
        with self._using() as root:
            known = self.aliases()
            if name in known and not aliases:
                raise is_alias(name, known[name])
            own = known.get(name, name)
            row = root.execute("SELECT name, uuid FROM collections WHERE name = ?", [own]).fetchone()
            if row is None:
                raise collection_not_found(name, [*self.collections(), *known])
            return row

    def refuse_taken(self, name: str) -> None:
        """Raise CollectionExists if a collection or an alias has the name."""
        if name in self.collections():
            raise collection_exists(name)
        if name in self.aliases():
            raise alias_exists(name)

    def add(self, name: str, key: str) -> None:
        """Add a collection."""
        self._change("INSERT INTO collections VALUES (?, ?)", [name, key])

    def remove(self, name: str) -> None:
        """Remove a collection and its aliases."""
        self._change("DELETE FROM collections WHERE name = ?", [name])

    def rename(self, name: str, to: str) -> None:
        """Rename a collection; its aliases follow."""
        self._change("UPDATE collections SET name = ? WHERE name = ?", [to, name])

    def alias(self, alias: str, name: str) -> None:
        """Point an alias to a collection."""
        if alias in self.collections():
            raise is_collection(alias)
        self._change("INSERT OR REPLACE INTO aliases VALUES (?, ?)", [alias, name])

    def unalias(self, alias: str) -> None:
        """Remove an alias."""
        known = self.aliases()
        if alias not in known:
            raise alias_not_found(alias, list(known))
        self._change("DELETE FROM aliases WHERE alias = ?", [alias])

    def promote(self, name: str, to: str) -> str | None:
        """See `VectorStore.promote`; everything is one transaction."""
        known = self.aliases()
        if name == to:
            raise is_own_name(name)
        if to not in self.collections():
            with self._database.changing() as root:
                root.execute("UPDATE aliases SET name = ? WHERE name = ?", [name, known.get(to, name)])
                root.execute("INSERT OR REPLACE INTO aliases VALUES (?, ?)", [to, name])
            return None
        # the promoted one gives up its name, so `c` and `c.old` can be swapped, and swapped back
        kept = replaced_name(to, {*self.collections(), *known} - {name})
        with self._database.changing() as root:  # aliases follow each change of a name
            root.execute("UPDATE aliases SET name = ? WHERE name = ?", [name, to])
            for now, then in ((name, ""), (to, kept), ("", to)):
                root.execute("UPDATE collections SET name = ? WHERE name = ?", [then, now])
        return kept

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _change(self, statement: str, parameters: list[str]) -> None:
        with self._database.changing() as root:
            root.execute(statement, parameters)

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._database.using() as root:
            assert root is not None
            yield root


# ------------------------------------------------------------------------------ rebuilding


def has_collections(folder: Path) -> bool:
    """Return whether a store's folder has files of collections."""
    return any((folder / "collections").glob("*.sqlite"))


def write_name(path: Path, name: str) -> None:
    """Record the name in the collection's file; failing is harmless, because the root catalog has it as well."""
    try:
        with closing(connect(path)) as connection, translated(path):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('name', ?)", [name])
            seal(connection)
            connection.execute("COMMIT")
    except NNCLRHubError as error:
        log.warning("the file of collection %s keeps its earlier name (%s)", name, error)


def rebuild_catalog(folder: Path) -> dict[str, str]:
    """Rebuild the root catalog from what is readable of the old one, and else from the collections' files.

    The old catalog is moved to lost+found. A collection whose name is lost is called `recovered-...`. Aliases that the
    old catalog no longer has are lost.

    Returns:
        The stems of the collections' files by name.
    """
    if not has_collections(folder):
        raise InvalidRequest(f"{folder} has no collections; name another folder, or index images first.")
    lock = take_lock(folder)
    try:
        return _rebuild(folder)
    finally:
        give_back(lock)


def _rebuild(folder: Path) -> dict[str, str]:
    old = folder / CATALOG
    known, aliases = _read(old, "SELECT uuid, name FROM collections"), _read(old, "SELECT alias, name FROM aliases")
    names: dict[str, str] = {}
    for path in sorted((folder / "collections").glob("*.sqlite")):
        name = _valid(known.get(path.stem)) or _recorded_name(path) or f"recovered-{path.stem[:8]}"
        free = (f"{name}.{number}" for number in range(2, len(names) + 3))
        names[name if name not in names else next(one for one in free if one not in names)] = path.stem
    with replacement(old, SCHEMA, ROOT_TABLES, HINT, folder / LOST) as new, new.changing() as root:
        root.executemany("INSERT INTO collections VALUES (?, ?)", names.items())
        root.executemany(
            "INSERT INTO aliases VALUES (?, ?)",
            [(one, name) for one, name in aliases.items() if name in names and _valid(one) and one not in names],
        )
    return names


def _read(root: Path, statement: str) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        with closing(connect(root, read_only=True)) as connection, translated(root):
            for key, value in connection.execute(statement):
                found[key] = value
    except StoreError as error:
        log.warning("the catalog is only partly readable (%s)", error)
    return found


def _recorded_name(path: Path) -> str | None:
    try:
        with closing(connect(path, read_only=True)) as connection, translated(path):
            row = connection.execute("SELECT value FROM meta WHERE key = 'name'").fetchone()
    except StoreTooNew:
        raise
    except StoreError as error:
        log.warning("the name in %s cannot be read (%s)", path, error)
        return None
    return _valid(row[0]) if row else None


def _valid(name: object) -> str | None:
    try:
        return check_collection_name(name)  # pyright: ignore[reportArgumentType] - refused with InvalidRequest
    except InvalidRequest:
        return None
