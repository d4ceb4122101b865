"""EmbeddedStore: a folder of collections, written by one process at a time.

STORE/LOCK, STORE/catalog.sqlite, STORE/collections/UUID.sqlite and UUID/index-N.faiss
"""

from __future__ import annotations

import fcntl
import shutil
import sqlite3
import threading
import uuid
from pathlib import Path
from typing import BinaryIO, Self

from nnclr_hub.errors import (
    CollectionExists,
    CollectionNotFound,
    InvalidRequest,
    StoreError,
    StoreLocked,
    StoreReadOnly,
)
from nnclr_hub.store.base import CollectionInfo, CollectionSpec, check_name
from nnclr_hub.store.catalog import connect, create_collection, create_root, translated
from nnclr_hub.store.collection import EmbeddedCollection

CATALOG = "catalog.sqlite"
LOST = "lost+found"


class EmbeddedStore:
    """See `store.base.VectorStore`; safe to call from many threads.

    Args:
        folder: made if it is not there.
        read_only: leave the lock to others; sees what a writer beside it commits.

    Raises:
        StoreLocked: another process has it open for writing.
        InvalidRequest: read_only on a folder that holds no store.
        StoreTooNew, StoreCorrupt, StoreError: it cannot be opened.
    """

    def __init__(self, folder: str | Path, *, read_only: bool = False) -> None:
        self.folder = Path(folder)
        self.read_only = read_only
        self._open: dict[str, EmbeddedCollection] = {}
        self._names = threading.RLock()
        self._lock: BinaryIO | None = None
        if read_only:
            if not (self.folder / CATALOG).is_file():
                raise InvalidRequest(f"{self.folder} holds no store: index pictures first, or name another folder.")
        else:
            self._take_lock()
        try:
            self._root = connect(self.folder / CATALOG, read_only=read_only)
            if not read_only:
                with translated(self.folder / CATALOG):
                    create_root(self._root)
                self._clear_leftovers()
        except BaseException:
            self._release_lock()
            raise

    # ---- collections

    def create(self, name: str, spec: CollectionSpec) -> EmbeddedCollection:
        """A new, empty collection.

        Raises:
            CollectionExists: the name is taken.
            InvalidRequest: it cannot be a name.
        """
        check_name(name, "Collection name")
        self._refuse_if_read_only()
        with self._names:
            if name in self._uuids():
                raise CollectionExists(
                    f"There is a collection {name!r} already: use it, drop it, or take another name."
                )
            key = uuid.uuid4().hex
            path = self._path(key)
            path.parent.mkdir(exist_ok=True)
            connection = connect(path)
            try:
                with translated(path):
                    create_collection(connection, spec)
            finally:
                connection.close()
            # a crash before this row leaves a file that no row names, which the next start moves away
            with translated(self.folder / CATALOG):
                self._root.execute("INSERT INTO collections VALUES (?, ?)", [name, key])
            return self._opened(name, key)

    def get(self, name: str) -> EmbeddedCollection:
        """An existing collection.

        Raises:
            CollectionNotFound: names those that exist.
            StoreCorrupt: its file is damaged.
        """
        with self._names:
            uuids = self._uuids()
            if name not in uuids:
                hint = (
                    f"there are {', '.join(sorted(uuids))}." if uuids else "the store is empty; index pictures first."
                )
                raise CollectionNotFound(f"There is no collection {name!r} in {self.folder}: {hint}")
            return self._opened(name, uuids[name])

    def drop(self, name: str) -> None:
        """Deletes a collection with everything in it.

        Raises:
            CollectionNotFound: there is none of that name.
        """
        self._refuse_if_read_only()
        with self._names:
            self.get(name).close()
            collection = self._open.pop(name)
            key = self._uuids()[name]
            with translated(self.folder / CATALOG):
                self._root.execute("DELETE FROM collections WHERE name = ?", [collection.name])
            self._remove_files(key)

    def list(self) -> list[CollectionInfo]:
        """How each collection stands, by name."""
        return [self.get(name).info() for name in sorted(self._uuids())]

    # ---- life

    def close(self) -> None:
        """Closes all collections and lets go of the folder."""
        with self._names:
            for collection in self._open.values():
                collection.close()
            self._open.clear()
            self._root.close()
            self._release_lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- inside

    def _uuids(self) -> dict[str, str]:
        with self._names:
            try:
                with translated(self.folder / CATALOG):
                    return dict(self._root.execute("SELECT name, uuid FROM collections").fetchall())
            except StoreError as error:
                if isinstance(error.__cause__, sqlite3.ProgrammingError):
                    raise StoreReadOnly(f"The store {self.folder} is closed: open it again.") from error
                raise

    def _opened(self, name: str, key: str) -> EmbeddedCollection:
        if name not in self._open:
            self._open[name] = EmbeddedCollection(name, self._path(key), self.folder / LOST, read_only=self.read_only)
        return self._open[name]

    def _path(self, key: str) -> Path:
        return self.folder / "collections" / f"{key}.sqlite"

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise StoreReadOnly(f"The store {self.folder} was opened for reading: open it without read_only.")

    def _take_lock(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / "LOCK").open("ab")
        except OSError as error:
            raise StoreError(
                f"The store {self.folder} cannot be opened ({error.strerror}): name a folder that can be written."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise StoreLocked(
                f"Another process has the store {self.folder} open for writing: stop that one (a server, or an "
                "`nnclr index`), or send your request to that server."
            ) from error

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _clear_leftovers(self) -> None:
        """Files of a create or drop that a crash cut short: no row names them; out of the way, not deleted."""
        known = set(self._uuids().values())
        for file in (self.folder / "collections").glob("*"):
            if file.name.split(".")[0] not in known:
                (self.folder / LOST).mkdir(exist_ok=True)
                shutil.move(file, self.folder / LOST / file.name)

    def _remove_files(self, key: str) -> None:
        path = self._path(key)
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
