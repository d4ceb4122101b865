"""EmbeddedStore: a folder of collections, written by one process at a time.

STORE/ID, STORE/catalog.sqlite, STORE/records.sqlite, STORE/collections/UUID.sqlite and UUID/index-N.faiss
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from nnclr_hub.arguments import checked
from nnclr_hub.errors import CollectionNotFound, DiskFull, InvalidRequest, NNCLRHubError, StoreError
from nnclr_hub.store.base import Collection, VectorStore, is_alias
from nnclr_hub.store.checks import check_collection_name
from nnclr_hub.store.disk import fsync_folder, give_back, take_lock, write_id
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder.catalog import CATALOG, LOST, has_collections, open_catalog
from nnclr_hub.store.folder.collection import IS_MEANT, EmbeddedCollection
from nnclr_hub.store.folder.salvage import salvage
from nnclr_hub.store.folder.schema import connect, create_collection, last_commit, read_spec, write_meta
from nnclr_hub.store.items import Progress
from nnclr_hub.store.records import RECORDS, Records
from nnclr_hub.store.reports import CollectionInfo, SalvageReport, Statistics
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.sqlite import bytes_of_database, remove_files, translated

log = logging.getLogger(__name__)
T = TypeVar("T")


class EmbeddedStore(VectorStore):
    """See `store.base.VectorStore`; safe to call from many threads.

    Args:
        folder: created if it does not exist.
        read_only: do not lock the folder; see what the process that writes to it commits.
        settings: sizes and times, see `store.settings`.

    Raises:
        StoreLocked: another process has it open for writing.
        InvalidRequest: read_only, and the folder has no store.
        StoreTooNew, StoreCorrupt, StoreError: it cannot be opened.
    """

    UNCHECKED = ("get",)

    @checked
    def __init__(
        self,
        folder: str | Path,
        *,
        read_only: bool = False,
        settings: StoreSettings | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.read_only = read_only
        self.records = Records(self.folder / RECORDS, read_only=read_only)
        self._settings = settings or StoreSettings()
        # by the stem of their file, which a rename does not change
        self._open: dict[str, EmbeddedCollection] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._changing = threading.RLock()
        self._pid = os.getpid()
        self._lock: int | None = None
        if read_only:
            with translated(self.folder):
                exists = (self.folder / CATALOG).is_file() or has_collections(self.folder)
            if not exists:
                raise InvalidRequest(f"{self.folder} is not a store; index images first, or name another store.")
        else:
            self._lock = take_lock(self.folder)
        try:
            self._catalog = open_catalog(self.folder, read_only=read_only)
            if not read_only:
                with translated(self.folder):
                    self._clear_leftovers()
                write_id(self.folder)
        except BaseException:
            self._release_lock()
            raise

    def __repr__(self) -> str:
        return f"<EmbeddedStore {str(self.folder)!r}{', read-only' * self.read_only}>"

    # ---- collections

    def create(self, name: str, spec: CollectionSpec) -> EmbeddedCollection:
        check_collection_name(name)
        self.refuse_if_read_only()
        spec = spec.decided(transforms=True)
        with self._changing:
            self.refuse_taken(name)
            key = uuid.uuid4().hex
            path = self._path(key)
            with translated(path):
                path.parent.mkdir(exist_ok=True)
                fsync_folder(self.folder)
                with closing(connect(path, create=True)) as connection:
                    create_collection(connection, spec, name)
                fsync_folder(path.parent)
            reached("create.made")
            # a crash before this row exists leaves a file without a name, which the next start moves away
            self._change("INSERT INTO collections VALUES (?, ?, ?)", name, key, json.dumps(asdict(spec)))
            reached("create.recorded")
            return self.get(name)

    def get(self, name: str) -> EmbeddedCollection:
        while True:
            own, key = self._resolve(name)
            collection = self._open.get(key)
            if collection is None:
                with self._opening(key):
                    if self._resolve(name) != (own, key):  # dropped or renamed while this thread waited
                        continue
                    if (collection := self._open.get(key)) is None:
                        files = self._path(key), self.folder / LOST, self._settings
                        collection = EmbeddedCollection(own, *files, read_only=self.read_only)
                        self._open[key] = collection
            if self.read_only:
                collection.name = own  # another process may have renamed it
            return collection

    def write(self, name: str, work: Callable[[Collection], T]) -> T:
        while True:
            key = self._resolve(name)[1]
            token = IS_MEANT.set(lambda key=key: self._resolve(name)[1] == key)
            try:
                return work(self.get(name))
            except CollectionNotFound:
                if self._resolve(name)[1] == key:
                    raise
            finally:
                IS_MEANT.reset(token)

    def drop(self, name: str) -> None:
        self.refuse_if_read_only()
        with self._changing:
            name, key = self._resolve(name, aliases=False)
            self._change("DELETE FROM collections WHERE name = ?", name)  # and its aliases
            reached("drop.recorded")
            with self._opening(key):
                opened = self._open.pop(key, None)
                if opened is not None:
                    opened.close(keep=False)
                try:
                    shutil.rmtree(self._path(key).with_suffix(""), ignore_errors=True)
                    remove_files(self._path(key))
                except OSError as error:  # dropped nevertheless; the next start moves away what is left
                    log.warning("files of a dropped collection could not be deleted (%s)", error)
            self._locks.pop(key, None)  # a thread that waits for it resolves the name again
            reached("drop.removed")

    def rename(self, name: str, to: str) -> None:
        self.refuse_if_read_only()
        with self._changing:
            name, key = self._resolve(name, aliases=False)
            self.refuse_taken(to)
            self._change("UPDATE collections SET name = ? WHERE name = ?", to, name)  # its aliases follow
            self._renamed(key, to)

    def list(self) -> list[CollectionInfo]:
        """Return the state of each collection, by name.

        A collection that is not open yet stays closed; its index is "closed". One that cannot be read does not hide the
        others: its state is "damaged: ...", and its spec may be the one that it was created with.
        """
        infos = [self._info(name, key) for name, key in self.names().items()]
        return [info for info in infos if info is not None]

    def _info(self, name: str, key: str) -> CollectionInfo | None:
        """Return the state of a collection; None if it was dropped or renamed concurrently."""
        spec = None
        try:
            opened = self._open.get(key)
            if opened is not None:
                return replace(opened.info(), name=name)  # another process may have renamed it
            path = self._path(key)
            with closing(connect(path, read_only=True)) as connection, translated(path):
                spec = read_spec(connection)
                last = last_commit(connection)  # counting the rows takes time for each of them
            return CollectionInfo(
                *(name, spec, last.items, last.seq, last.seq, "ready", "closed"),
                vectors_seq=last.seq,
                bytes=bytes_of_database(path),
            )
        except DiskFull:
            raise
        except StoreError as error:
            if name not in self.names():
                return None
            if spec is None:
                stored = self._rows("SELECT name, spec FROM collections")[name]
                # of a rebuilt catalog, the specification of a file that cannot be read is unknown
                spec = CollectionSpec(**json.loads(stored)) if stored else CollectionSpec(1)
            return CollectionInfo(name, spec, 0, 0, 0, f"damaged: {error}", "none")

    def files(self) -> dict[str, Path]:
        """Return the SQLite file of each collection, by name."""
        return {name: self._path(key) for name, key in self.names().items()}

    def statistics(self) -> dict[str, Statistics]:
        found = {}
        for collection in list(self._open.values()):
            try:
                found[collection.name] = collection.statistics()
            except StoreError as error:  # the others are not hidden
                log.warning("collection %s has no statistics (%s)", collection.name, error)
        return found

    def salvage(self, name: str, progress: Progress = lambda done, total: None) -> SalvageReport:
        """Move what is readable of a collection whose file is damaged into a new file.

        The damaged file is kept in lost+found. StoreCorrupt is raised if nothing is readable.
        """
        self.refuse_if_read_only()
        with self._changing:
            _, key = self._resolve(name)
            with self._opening(key):
                opened = self._open.pop(key, None)
                if opened is not None:
                    opened.close(keep=False)  # a damaged file must get neither a snapshot nor the clean flag
                return salvage(self._path(key), self.folder / LOST, progress)

    # ---- aliases

    def alias(self, alias: str, name: str) -> None:
        self.refuse_if_read_only()
        with self._changing:
            name = self._resolve(name)[0]
            self.check_alias(alias)
            self._change("INSERT OR REPLACE INTO aliases VALUES (?, ?)", alias, name)

    def unalias(self, alias: str) -> None:
        self.refuse_if_read_only()
        with self._changing:
            self.require_alias(alias)
            self._change("DELETE FROM aliases WHERE alias = ?", alias)

    def aliases(self) -> dict[str, str]:
        return self._rows("SELECT alias, name FROM aliases ORDER BY alias")

    def promote(self, name: str, to: str, finish: Callable[[], None] | None = None) -> str | None:
        self.refuse_if_read_only()
        with self._changing:
            reached("promote.begun")
            name, key = self._resolve(name)
            check_collection_name(to, "Alias")

            def swap() -> str | None:
                if finish is not None:
                    finish()
                if name == to:
                    raise InvalidRequest(f"{name!r} is already the collection's own name; promote another one to it.")
                aliases, old = self.aliases(), None
                with self._catalog.changing() as root:  # aliases follow each change of a name
                    root.execute("UPDATE aliases SET name = ? WHERE name = ?", [name, aliases.get(to, to)])
                    if to in self.names():
                        # the promoted one gives up its name, so `c` and `c.old` can be swapped, and swapped back
                        old = self._free_name(to, name)
                        for now, then in ((name, ""), (to, old), ("", to)):
                            root.execute("UPDATE collections SET name = ? WHERE name = ?", [then, now])
                    else:
                        root.execute("INSERT OR REPLACE INTO aliases VALUES (?, ?)", [to, name])
                return old

            old = swap() if finish is None else self.get(to).hold_writes(swap)
            reached("promote.recorded")
            if old is not None:
                self._renamed(self._resolve(old)[1], old)
                self._renamed(key, to)
            return old

    def _free_name(self, to: str, free: str) -> str:
        """Return `to.old`, or the first of `to.old2`, ... that is not taken, or is the name that becomes free."""
        taken = {*self.names(), *self.aliases()} - {free}
        return next(name for n in range(1, len(taken) + 2) if (name := f"{to}.old{n if n > 1 else ''}") not in taken)

    # ---- life

    def close(self) -> None:
        """Close all collections and unlock the folder; errors are logged, since everything acknowledged is on disk."""
        if os.getpid() != self._pid:  # a forked child must not unlock the folder of its parent
            return
        with self._changing:
            self._catalog.close()  # first: from here on nothing is opened
            for key in list(self._locks):
                with self._opening(key):  # waits for a collection that another thread is opening
                    opened = self._open.pop(key, None)
                    try:
                        if opened is not None:
                            opened.close()
                    except StoreError as error:  # the others must be closed nevertheless
                        log.warning("a collection was not closed cleanly, so the next start checks it (%s)", error)
            self.records.close()
            self._release_lock()

    # ---- inside

    def _rows(self, statement: str) -> dict[str, str]:
        with self._catalog.using() as root:
            assert root is not None
            return dict(root.execute(statement))

    def names(self) -> dict[str, str]:
        """Return the stems of the collections' files by name, sorted."""
        return self._rows("SELECT name, uuid FROM collections ORDER BY name")

    def _change(self, statement: str, *parameters: str) -> None:
        with self._catalog.changing() as root:
            root.execute(statement, parameters)

    def _resolve(self, name: str, *, aliases: bool = True) -> tuple[str, str]:
        """Return a collection's own name and the stem of its file; `aliases`: whether an alias is accepted."""
        if not isinstance(name, str):
            raise InvalidRequest(f"name must be a string, got {name!r:.80}.")
        own = "coalesce((SELECT name FROM aliases WHERE alias = ?1), ?1)"
        with self._catalog.using() as root:
            assert root is not None
            row = None
            with suppress(UnicodeEncodeError):  # SQLite cannot look up a name that is not UTF-8
                row = root.execute(f"SELECT name, uuid FROM collections WHERE name = {own}", [name]).fetchone()
            if row is None:
                raise self.not_found(name)
        if row[0] != name and not aliases:
            raise is_alias(name, row[0])
        return row

    def _opening(self, key: str) -> threading.Lock:
        """Return the lock to hold while a collection is opened or removed; others can be opened at the same time."""
        return self._locks.setdefault(key, threading.Lock())

    def _renamed(self, key: str, name: str) -> None:
        """Give a collection, if it is open, and its file the new name."""
        with self._opening(key):
            if (opened := self._open.get(key)) is not None:
                opened.name = name
            try:
                with closing(connect(self._path(key))) as connection, translated(self._path(key)):
                    connection.execute("BEGIN IMMEDIATE")
                    write_meta(connection, "name", name)
                    connection.execute("COMMIT")
            except NNCLRHubError as error:  # harmless: the catalog has the name as well
                log.warning("the file of collection %s keeps its earlier name (%s)", name, error)

    def _path(self, key: str) -> Path:
        return self.folder / "collections" / f"{key}.sqlite"

    def _release_lock(self) -> None:
        if self._lock is not None:
            give_back(self._lock)
            self._lock = None

    def _clear_leftovers(self) -> None:
        """Move files that a crash during create or drop has left, and that have no name, to lost+found."""
        known = set(self.names().values())
        for file in (self.folder / "collections").glob("*"):
            if file.name.split(".")[0] not in known:
                (self.folder / LOST).mkdir(exist_ok=True)
                shutil.move(file, self.folder / LOST / file.name)
