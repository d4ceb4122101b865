"""EmbeddedStore: a folder of collections, written by one process at a time.

STORE/LOCK, STORE/ID, STORE/catalog.sqlite, STORE/records.sqlite, STORE/collections/UUID.sqlite and UUID/index-N.faiss
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from nnclr_hub.errors import CollectionNotFound, DiskFull, InvalidRequest, StoreClosed, StoreError
from nnclr_hub.store.base import Collection, VectorStore
from nnclr_hub.store.checks import check_collection_name
from nnclr_hub.store.disk import fsync_folder, give_back, take_lock, write_id
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder.catalog import connect, create_collection, last_seq, read_spec
from nnclr_hub.store.folder.collection import IS_MEANT, EmbeddedCollection
from nnclr_hub.store.folder.integrity import last_commit
from nnclr_hub.store.folder.names import CATALOG, LOST, Names, has_collections, write_name
from nnclr_hub.store.folder.salvage import salvage
from nnclr_hub.store.items import Progress
from nnclr_hub.store.records import RECORDS, Records
from nnclr_hub.store.reports import CollectionInfo, SalvageReport, Statistics
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.sqlite import open_files_limit, remove_files, translated

log = logging.getLogger(__name__)
T = TypeVar("T")
FILES_EACH = 10  # open files of a collection that few threads use
SPARE = 3  # so many collections' files that other code may open at the same time
MIN_OPEN = 2  # collections that may be open even if that is too many files


class EmbeddedStore(VectorStore):
    """See `store.base.VectorStore`; safe to call from many threads.

    Args:
        folder: created if it does not exist.
        read_only: do not lock the folder; see what the process that writes to it commits.
        memory: bytes that the index of a collection may use; None: half of the machine's memory.
        settings: sizes and times, see `store.settings`.

    Raises:
        StoreLocked: another process has it open for writing.
        InvalidRequest: read_only, and the folder has no store.
        StoreTooNew, StoreCorrupt, StoreError: it cannot be opened.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        read_only: bool = False,
        memory: int | None = None,
        settings: StoreSettings | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.read_only = read_only
        self.records = Records(self.folder / RECORDS, read_only=read_only)
        self._settings = settings or StoreSettings()
        if memory is not None:
            self._settings = replace(self._settings, memory=memory)
        # by the stem of their file, which a rename does not change
        self._open: dict[str, EmbeddedCollection] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._changing = threading.RLock()
        self._promotions = 0  # for `write`
        self._pid = os.getpid()
        self._lock: BinaryIO | None = None
        if read_only:
            with translated(self.folder):
                exists = (self.folder / CATALOG).is_file() or has_collections(self.folder)
            if not exists:
                raise InvalidRequest(f"{self.folder} is not a store; index images first, or name another store.")
        else:
            self._lock = take_lock(self.folder)
        try:
            self._names = Names(self.folder / CATALOG, read_only=read_only)
            if not read_only:
                with translated(self.folder):
                    self._clear_leftovers()
                write_id(self.folder)
        except BaseException:
            self._release_lock()
            raise

    def __repr__(self) -> str:
        try:
            names = f"collections {', '.join(self._names.collections()) or 'none'}"
        except StoreError as error:
            names = "closed" if isinstance(error, StoreClosed) else "unreadable"
        return f"<EmbeddedStore {str(self.folder)!r}{', read-only' * self.read_only}: {names}>"

    # ---- collections

    def create(self, name: str, spec: CollectionSpec) -> EmbeddedCollection:
        check_collection_name(name)
        self.refuse_if_read_only()
        spec = spec.decided(transforms=True)
        with self._changing:
            self._names.refuse_taken(name)
            key = uuid.uuid4().hex
            path = self._path(key)
            with translated(path):
                path.parent.mkdir(exist_ok=True)
                fsync_folder(self.folder)
                connection = connect(path, create=True)
                try:
                    create_collection(connection, spec, name)
                finally:
                    connection.close()
                fsync_folder(path.parent)
            reached("create.made")
            # a crash before this row exists leaves a file without a name, which the next start moves away
            self._names.add(name, key)
            reached("create.recorded")
            return self.get(name)

    def get(self, name: str) -> EmbeddedCollection:
        while True:
            own, key = self._names.resolve(name)
            collection = self._open.get(key)
            if collection is None:
                with self._opening(key):
                    if self._names.resolve(name) != (own, key):  # dropped or renamed while this thread waited
                        continue
                    collection = self._open.get(key) or self._opened(own, key)
            if self.read_only:
                collection.name = own  # another process may have renamed it
            return collection

    def write(self, name: str, work: Callable[[Collection], T]) -> T:
        while True:
            promotions = self._promotions
            token = IS_MEANT.set(lambda promotions=promotions: self._promotions == promotions)
            try:
                return work(self.get(name))
            except CollectionNotFound:
                if self._promotions == promotions:
                    raise
            finally:
                IS_MEANT.reset(token)

    def drop(self, name: str) -> None:
        self.refuse_if_read_only()
        with self._changing:
            name, key = self._names.resolve(name, aliases=False)
            self._names.remove(name)
            reached("drop.recorded")
            with self._opening(key):
                opened = self._open.pop(key, None)
                if opened is not None:
                    opened.close(keep=False, dropped=True)
                self._remove_files(key)
            self._locks.pop(key, None)  # a thread that waits for it resolves the name again
            reached("drop.removed")

    def rename(self, name: str, to: str) -> None:
        self.refuse_if_read_only()
        with self._changing:
            name, key = self._names.resolve(name, aliases=False)
            self._names.refuse_taken(check_collection_name(to))
            self._names.rename(name, to)
            self._renamed(key, to)

    def list(self) -> list[CollectionInfo]:
        """Return the state of each collection, by name.

        A collection that is not open stays closed; its index is "closed". One that cannot be read does not hide the
        others: its state is "damaged: ...", and if its specification is unreadable, that is of dimension 1.
        """
        found = [self._info(name) for name in self._names.collections()]
        return [info for info in found if info is not None]

    def _info(self, name: str) -> CollectionInfo | None:
        """Return the state of a collection; None if it was dropped or renamed concurrently."""
        spec = CollectionSpec(1, model="")
        try:
            key = self._names.resolve(name, aliases=False)[1]
            opened = self._open.get(key)
            if opened is not None and (info := opened.info_if_open()) is not None:
                return replace(info, name=name)  # another process may have renamed it
            path = self._path(key)
            with closing(connect(path, read_only=True)) as connection, translated(path):
                spec = read_spec(connection)
                count = last_commit(connection).items  # counting the rows takes time for each of them
                last = last_seq(connection)
            return CollectionInfo(name, spec, count, last, last, "ready", "closed")
        except (CollectionNotFound, InvalidRequest):
            return None
        except DiskFull:
            raise
        except StoreError as error:
            if name not in self._names.collections():
                return None
            return CollectionInfo(name, spec, 0, 0, 0, f"damaged: {error}", "none")

    def files(self) -> dict[str, Path]:
        """Return the SQLite file of each collection, by name."""
        return {name: self._path(key) for name, key in self._names.files().items()}

    def statistics(self) -> dict[str, Statistics]:
        found = {}
        for collection in list(self._open.values()):
            if not collection.suspended:
                try:
                    found[collection.name] = collection.statistics()
                except StoreError as error:  # the others are not hidden
                    log.warning("collection %s has no statistics (%s)", collection.name, error)
        return found

    def salvage(self, name: str, progress: Progress = lambda done, total: None) -> SalvageReport:
        """Move what is readable of a collection whose file is damaged into a new file.

        The damaged file is kept in lost+found.

        Raises:
            StoreCorrupt: nothing is readable.
        """
        self.refuse_if_read_only()
        with self._changing:
            _, key = self._names.resolve(name)
            with self._opening(key):
                opened = self._open.pop(key, None)
                if opened is not None:
                    opened.close(keep=False)  # a damaged file must get neither a snapshot nor the clean flag
                return salvage(self._path(key), self.folder / LOST, progress)

    # ---- aliases

    def alias(self, alias: str, name: str) -> None:
        self.refuse_if_read_only()
        with self._changing:
            self._names.alias(check_collection_name(alias, "Alias"), self._names.resolve(name)[0])

    def unalias(self, alias: str) -> None:
        self.refuse_if_read_only()
        with self._changing:
            self._names.unalias(alias)

    def aliases(self) -> dict[str, str]:
        return self._names.aliases()

    def promote(self, name: str, to: str, finish: Callable[[], None] | None = None) -> str | None:
        self.refuse_if_read_only()
        with self._changing:
            reached("promote.begun")
            name, key = self._names.resolve(name)
            check_collection_name(to, "Alias")

            def change() -> str | None:
                if finish is not None:
                    finish()
                kept = self._names.promote(name, to)
                self._promotions += 1
                return kept

            kept = change() if finish is None else self.get(to).hold_writes(change)
            reached("promote.recorded")
            if kept is not None:
                self._renamed(self._names.resolve(kept)[1], kept)
                self._renamed(key, to)
            return kept

    # ---- life

    def close(self) -> None:
        """Close all collections and unlock the folder; errors are logged, since everything acknowledged is on disk."""
        if os.getpid() != self._pid:  # a forked child must not unlock the folder of its parent
            return
        with self._changing:
            self._names.close()  # first: from here on nothing is opened
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

    def _make_room(self) -> None:
        """Close the files of the least recently used collections if there are too many, or their indexes too large.

        The next call of such a collection opens them again.
        """
        used = sorted((one for one in list(self._open.values()) if not one.suspended), key=lambda one: one.last_used)
        sizes = {id(one): one.statistics().index_bytes for one in used}
        most = max(MIN_OPEN, (open_files_limit() - _open_files()) // FILES_EACH + len(used) - SPARE)
        total = sum(sizes.values())
        for number, collection in enumerate(used):
            if len(used) - number < most and total <= self._settings.total_memory:
                return
            try:
                if collection.suspend():
                    total -= sizes[id(collection)]
            except StoreError as error:
                log.warning("collection %s was not closed cleanly (%s)", collection.name, error)

    def _opening(self, key: str) -> threading.Lock:
        """Return the lock to hold while a collection is opened or removed; others can be opened at the same time."""
        return self._locks.setdefault(key, threading.Lock())

    def _opened(self, name: str, key: str) -> EmbeddedCollection:
        collection = EmbeddedCollection(
            name,
            self._path(key),
            self.folder / LOST,
            self._settings,
            read_only=self.read_only,
            make_room=self._make_room,
        )
        self._open[key] = collection
        return collection

    def _renamed(self, key: str, name: str) -> None:
        """Give a collection, if it is open, and its file the new name."""
        with self._opening(key):
            opened = self._open.get(key)
            if opened is not None:
                opened.name = name
            write_name(self._path(key), name)

    def _path(self, key: str) -> Path:
        return self.folder / "collections" / f"{key}.sqlite"

    def _release_lock(self) -> None:
        if self._lock is not None:
            give_back(self._lock)
            self._lock = None

    def _clear_leftovers(self) -> None:
        """Move files that a crash during create or drop has left, and that have no name, to lost+found."""
        known = set(self._names.files().values())
        for file in (self.folder / "collections").glob("*"):
            if file.name.split(".")[0] not in known:
                (self.folder / LOST).mkdir(exist_ok=True)
                shutil.move(file, self.folder / LOST / file.name)

    def _remove_files(self, key: str) -> None:
        path = self._path(key)
        try:
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            remove_files(path)
        except OSError as error:  # the collection is dropped nevertheless; the next start moves away what is left
            log.warning("files of a dropped collection could not be deleted (%s)", error)


def _open_files() -> int:
    """Return how many files this process has open."""
    try:
        return len(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))
    except OSError:  # no file is left to list them with
        return open_files_limit()
