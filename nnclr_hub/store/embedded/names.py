"""The root catalog of a store: names of collections, and aliases for them."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nnclr_hub.errors import CollectionExists, CollectionNotFound, InvalidRequest, StoreCorrupt, StoreReadOnly
from nnclr_hub.store.embedded.catalog import connect, create_root, format_of, quick_check, translated
from nnclr_hub.store.embedded.roots import WAY_ON, has_collections
from nnclr_hub.store.succession import SUFFIX, WAS


class Names:
    """What each name means; every change is durable when it returns.

    Args:
        path: of the SQLite file, made if it is not there.
        read_only: for a store that another process writes.

    Raises:
        StoreCorrupt: it is damaged, or it is not there while collections are.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self._path = path
        self._lock = threading.RLock()
        if not path.is_file() and has_collections(path.parent):
            raise StoreCorrupt(f"{path} is missing, but there are collections beside it: {WAY_ON}.")
        with self._damage_named():
            self._root = connect(path, read_only=read_only, create=not read_only)
        self._closed = False
        try:
            with self._damage_named():
                if format_of(self._root) == 0 and has_collections(path.parent):
                    raise StoreCorrupt("it is empty, but there are collections beside it")
                if not read_only:
                    # a page that cannot be read must not look like collections that nobody has named
                    quick_check(self._root, path)
                    create_root(self._root)
        except BaseException:
            self._root.close()
            raise

    def collections(self) -> list[str]:
        """Names of the collections, in order."""
        with self._reading() as root:
            return [name for (name,) in root.execute("SELECT name FROM collections ORDER BY name")]

    def keys(self) -> set[str]:
        """Stems of the files of all collections."""
        with self._reading() as root:
            return {key for (key,) in root.execute("SELECT uuid FROM collections")}

    def aliases(self) -> dict[str, str]:
        """Names by alias."""
        with self._reading() as root:
            # a store of the first format has none until someone opens it for writing, which may be at any moment
            return dict(root.execute("SELECT alias, name FROM aliases ORDER BY alias")) if format_of(root) > 1 else {}

    def resolve(self, name: str, *, aliases: bool = True) -> tuple[str, str]:
        """The collection's own name and the stem of its file.

        Raises:
            CollectionNotFound: names those that exist.
            InvalidRequest: it is an alias, where none may stand.
        """
        with self._reading() as root:
            known = self.aliases()
            if name in known and not aliases:
                raise InvalidRequest(f"{name!r} is an alias: name the collection that it means, {known[name]!r}.")
            own = known.get(name, name)
            row = root.execute("SELECT name, uuid FROM collections WHERE name = ?", [own]).fetchone()
            if row is None:
                there = ", ".join([*self.collections(), *known])
                hint = f"there are {there}." if there else "the store is empty; index images first."
                raise CollectionNotFound(f"There is no collection {name!r}: {hint}")
            return row

    def refuse_taken(self, name: str) -> None:
        """Raises CollectionExists if a collection or an alias has the name."""
        if name in self.collections():
            raise CollectionExists(f"There is a collection {name!r} already: use it, drop it, or take another name.")
        if name in self.aliases():
            raise CollectionExists(f"There is an alias {name!r} already: take another name, or forget the alias first.")

    def add(self, name: str, key: str) -> None:
        """A new collection."""
        self._change("INSERT INTO collections VALUES (?, ?)", [name, key])

    def remove(self, name: str) -> None:
        """Forgets a collection and the aliases that mean it."""
        self._change("DELETE FROM collections WHERE name = ?", [name])

    def rename(self, name: str, to: str) -> None:
        """Gives a collection another name; its aliases go with it."""
        self._change("UPDATE collections SET name = ? WHERE name = ?", [to, name])

    def alias(self, alias: str, name: str) -> None:
        """Makes an alias mean a collection.

        Raises:
            CollectionExists: a collection itself is called so.
        """
        if alias in self.collections():
            raise CollectionExists(f"There is a collection {alias!r}, so it cannot be an alias: take another name.")
        self._change("INSERT OR REPLACE INTO aliases VALUES (?, ?)", [alias, name])

    def unalias(self, alias: str) -> None:
        """Forgets an alias.

        Raises:
            CollectionNotFound: there is none.
        """
        known = self.aliases()
        if alias not in known:
            hint = f"there are {', '.join(known)}." if known else "there are no aliases."
            raise CollectionNotFound(f"There is no alias {alias!r}: {hint}")
        self._change("DELETE FROM aliases WHERE alias = ?", [alias])

    def promote(self, name: str, alias: str) -> str | None:
        """See `VectorStore.promote`; one transaction."""
        known = self.aliases()
        taken = {*self.collections(), *known}
        kept = None
        if name == alias:
            raise InvalidRequest(f"{name!r} is the collection's own name already: promote another one to it.")
        with self._reading() as root:
            root.execute("BEGIN IMMEDIATE")
            try:
                if alias in self.collections():
                    names = (f"{alias}.old{number or ''}" for number in (0, *range(2, len(taken) + 3)))
                    kept = next(free for free in names if free not in taken)
                    root.execute("UPDATE collections SET name = ? WHERE name = ?", [kept, alias])
                # other names of what went by `alias` until now; that of its successor in the making is not one of them
                root.execute(
                    "UPDATE aliases SET name = ? WHERE name = ? AND alias NOT GLOB ? AND alias NOT GLOB ?",
                    [name, kept or known.get(alias, name), f"*{SUFFIX}", f"*{WAS}"],
                )
                root.execute("INSERT OR REPLACE INTO aliases VALUES (?, ?)", [alias, name])
                root.execute("COMMIT")
            except BaseException:
                root.execute("ROLLBACK")
                raise
        return kept

    def close(self) -> None:
        """Lets go of the file."""
        with self._lock:
            self._closed = True
            self._root.close()

    def _change(self, statement: str, parameters: list[str]) -> None:
        with self._reading() as root:
            root.execute(statement, parameters)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed:
                raise StoreReadOnly(f"The store {self._path.parent} is closed: open it again.")
            with self._damage_named():
                yield self._root

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        """SQLite's errors as ours; of damage to this file another way leads on than of damage to a collection's."""
        try:
            with translated(self._path):
                yield
        except StoreCorrupt as error:
            reason = error.__cause__ or error
            raise StoreCorrupt(f"{self._path} is damaged ({reason}): {WAY_ON}.") from error
