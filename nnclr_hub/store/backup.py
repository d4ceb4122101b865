"""Backups of an embedded store, in a folder or at any address of fsspec. Each one copies only pages that are new.

back_up(store, "s3://bucket/nnclr", keep=30)
restore("s3://bucket/nnclr", Path("restored"), at="2026-05-01T12:00")

backups/TIME.json   one backup: its files as lists of chunks. It is written last, and makes the backup valid
chunks/SHA256       up to 1024 pages of an SQLite file, or the index of a file: where each of its pages is
lock                held while a backup is made, so that no other backup removes a chunk that this one shares

SQLite copies each file to a temporary file in one read transaction: one state, while others write. A change of a few
items touches few pages, but these are spread over the whole file. So pages are compared with the previous backup one by
one, and only new ones are packed into chunks.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidRequest, NNCLRHubError, StoreCorrupt, StoreError, StoreLocked, StoreTooNew
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.remote_files import open_file_system, reading
from nnclr_hub.store import records
from nnclr_hub.store.base import Progress, VectorStore
from nnclr_hub.store.disk import PAGE_SIZE, fsync_folder, make_folder, read_id, translated, write_id, written_whole
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder import schema
from nnclr_hub.store.folder.catalog import CATALOG
from nnclr_hub.store.folder.store import EmbeddedStore
from nnclr_hub.store.sqlite import connect, quick_check

log = logging.getLogger(__name__)
FORMAT = "nnclr_hub backup, version 3"
CHUNK_PAGES = 1024  # 16 MiB
SMALL_CHUNKS = 64  # of a file; if more are less than half full, they are packed again
LOCK_SECONDS = 86_400.0  # after which the lock of a process that crashed ends, where the system does not release it
ATTEMPTS = 20  # to read a store whose collections are dropped while they are read
SCRATCH = ".copy-"  # begins the names of temporary files
OTHERS = ("lock", "lost+found")  # names next to backups and chunks
# of each page: its chunk, its place in it, and the first 16 bytes of its SHA-256
INDEX = np.dtype([("chunk", "<u4"), ("page", "<u4"), ("hash", "<u8", (2,))])
_ID = re.compile(r"\d{8}T\d{6}\.\d{6}Z")
_CHUNK = re.compile(r"\.?[0-9a-f]{64}(\..*part)?")  # a chunk, or one that was not written completely
Chunk = tuple[str, int]  # SHA-256 in hex, and bytes


@dataclass(frozen=True)
class Backup:
    """A backup of a store.

    id: its time in UTC, which is also its file's name.
    store: the id of the store; None if it had none, because its disk was full.
    collections: number of items by name.
    aliases: names by alias.
    files: by path in the store's folder, the chunk with the index of the file, and those with its pages.
    """

    id: str
    store: str | None
    collections: dict[str, int]
    aliases: dict[str, str]
    files: dict[str, list[Chunk]]

    @property
    def chunks(self) -> set[Chunk]:
        """All its chunks, most of which other backups share."""
        return {chunk for chunks in self.files.values() for chunk in chunks}

    @property
    def size(self) -> int:
        """Bytes of its chunks."""
        return sum(size for _, size in self.chunks)


@dataclass(frozen=True)
class BackupReport:
    """The result of a backup.

    id: of the backup.
    collections, items: how many it contains.
    written: bytes that were copied.
    size: bytes of all its chunks.
    removed, freed: old backups that were removed, and bytes of chunks that were removed with them.
    """

    id: str
    collections: int
    items: int
    written: int
    size: int
    removed: int = 0
    freed: int = 0


# ------------------------------------------------------------------------------ make a backup


def back_up(
    store: VectorStore, to: str | Path, keep: int | None = None, *, progress: Progress = lambda done, total: None
) -> BackupReport:
    """Add a backup of a store, each collection as it was at one moment, to those at an address.

    This process or another one may write to the store at the same time. A temporary copy of the largest collection
    needs space in the destination if that is a folder, otherwise in the folder for temporary files (TMPDIR).

    Args:
        store: with a folder; it may be open read-only.
        to: a folder, or an address of fsspec such as s3://bucket/folder. It is new, empty, or has backups.
        keep: the number of backups to keep, at least 1; older ones are removed afterwards. None: all.
        progress: called with (done, total) in bytes.

    Raises:
        InvalidRequest: the store is not in a folder; the destination is inside of it, or has other files, or
            backups of another store; or `keep` is invalid.
        MissingDependency: the driver for the address is not installed.
        StoreLocked: another backup to the destination is running.
        StoreCorrupt: a file of the store is damaged; older backups are kept.
        DiskFull, StoreError: the destination cannot be written; older backups stay usable.
    """
    if not isinstance(store, EmbeddedStore):
        raise InvalidRequest("Only a store in a folder can be backed up; Milvus has its own backups (milvus-backup).")
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise InvalidRequest(f"keep must be a whole number from 1, got {keep!r}.")
    place = _Place(to)
    place.refuse_unsuitable(store.folder)
    with place.locked():
        ids, own = place.ids(), read_id(store.folder)
        previous = place.sound_backup(ids[-1]) if ids else None
        if previous is not None and None not in (previous.store, own) and previous.store != own:
            raise InvalidRequest(
                f"{to} has backups of another store; use one destination for each store, because old backups are "
                "removed by their age."
            )
        writer = _Writer(place, previous, sum(path.stat().st_size for path in store.files().values()), progress)
        copied = _copy_store(store, writer)
        reached("backup.chunks")
        # ids ascend even if the clock is set back
        last = datetime.fromisoformat(ids[-1]).timestamp() + 1e-5 if ids else 0.0
        backup = replace(copied, id=_id(datetime.fromtimestamp(max(time.time(), last), UTC)), store=own)
        content = {"format": FORMAT, **asdict(backup)}
        described = json.dumps({"sha256": _checksum(content), **content}, indent=1)
        place.check_lock()
        place.write(f"backups/{backup.id}.json", described.encode())
        reached("backup.done")
        try:
            removed, freed = (0, 0) if keep is None else _prune(place, keep)
        except NNCLRHubError as error:
            raise StoreError(f"Backup {backup.id} is complete, but older ones were not removed. {error}") from error
    items = sum(backup.collections.values())
    return BackupReport(backup.id, len(backup.collections), items, writer.written, backup.size, removed, freed)


def _copy_store(store: EmbeddedStore, writer: _Writer) -> Backup:
    for _ in range(ATTEMPTS):
        files = set(store.files().values())
        try:
            return _copy_files(store.folder, writer)
        except StoreError:
            if files <= set(store.files().values()):  # otherwise a collection was dropped before it was read
                raise
    raise StoreError("Collections are dropped too often for a backup; repeat it later.")


def _copy_files(folder: Path, writer: _Writer) -> Backup:
    # names first: an alias that is moved later must not point to a collection that was not complete yet
    with _reading(folder / CATALOG, schema.SCHEMA) as root:
        keys = dict(root.execute("SELECT name, uuid FROM collections ORDER BY name"))
        aliases = dict(root.execute("SELECT alias, name FROM aliases ORDER BY alias"))
        files, collections = {CATALOG: writer.save(root, CATALOG)}, {}
    if (folder / records.RECORDS).is_file():
        with _reading(folder / records.RECORDS, records.SCHEMA) as connection:
            files[records.RECORDS] = writer.save(connection, records.RECORDS)
    for name, key in keys.items():
        file = f"collections/{key}.sqlite"
        with _reading(folder / file, schema.SCHEMA) as connection:
            collections[name] = connection.execute("SELECT count(*) FROM items").fetchone()[0]
            files[file] = writer.save(connection, file)
    return Backup("", None, collections, aliases, files)


@contextmanager
def _reading(path: Path, format: int) -> Iterator[sqlite3.Connection]:
    with closing(connect(path, format, read_only=True)) as connection, translated(path):
        quick_check(connection, path)  # copies of damage must not replace sound backups
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the first read begins the transaction
        yield connection


class _Writer:
    """Writes files as chunks, and shares those of the previous backup."""

    def __init__(self, place: _Place, previous: Backup | None, total: int, progress: Progress) -> None:
        self._place, self._progress = place, progress
        self._existing = place.chunks()
        self._previous = previous.files if previous else {}
        self._done, self._total = 0, total
        self.written = 0

    def save(self, connection: sqlite3.Connection, name: str) -> list[Chunk]:
        """Copy a file as its read transaction has it, and end that."""
        # the copy is complete before the first upload, because SQLite's log grows until the transaction ends
        with NamedTemporaryFile(prefix=SCRATCH, dir=self._place.folder) as copy, translated(Path(copy.name)):
            with closing(sqlite3.connect(copy.name, isolation_level=None)) as target:
                target.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
                connection.backup(target, pages=CHUNK_PAGES)
            connection.execute("COMMIT")
            return self._save_pages(copy.fileno(), name)

    def _save_pages(self, copy: int, name: str) -> list[Chunk]:
        index, hashes = np.zeros(os.fstat(copy).st_size // PAGE_SIZE, INDEX), []
        for start in range(0, len(index), CHUNK_PAGES):
            pages = _pages(os.pread(copy, CHUNK_PAGES * PAGE_SIZE, start * PAGE_SIZE))
            hashes += [hashlib.sha256(page).digest()[:16] for page in pages]
            self._done += len(pages) * PAGE_SIZE
            self._progress(self._done, max(self._done, self._total))
        index["hash"] = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2)
        new, chunks = self._share(index, name)
        for start in range(0, len(new), CHUNK_PAGES):
            places = new[start : start + CHUNK_PAGES]
            index["chunk"][places], index["page"][places] = len(chunks), np.arange(len(places))
            chunks.append(self._put(b"".join(os.pread(copy, PAGE_SIZE, at * PAGE_SIZE) for at in places.tolist())))
        return [self._put(index.tobytes()), *chunks]

    def _share(self, index: np.ndarray, name: str) -> tuple[np.ndarray, list[Chunk]]:
        """Enter pages that the previous backup has at the same place; return the numbers of the others, and chunks."""
        everything = np.arange(len(index))
        if name not in self._previous:
            return everything, []
        described, *chunks = self._previous[name]
        try:
            old = np.frombuffer(self._place.read(described), INDEX)[: len(index)]
        except StoreCorrupt as error:
            log.warning("%s is copied completely (%s)", name, error)
            self._existing.pop(described[0], None)
            return everything, []
        same = np.flatnonzero((old["hash"] == index["hash"][: len(old)]).all(axis=1))
        used = np.bincount(old["chunk"][same], minlength=len(chunks)).tolist()
        # neither unused pages nor the number of chunks may grow with the number of backups
        kept = [
            number
            for number, (sha256, size) in enumerate(chunks)
            if self._existing.get(sha256) == size and 2 * used[number] >= size // PAGE_SIZE
        ]
        small = {number for number in kept if chunks[number][1] < CHUNK_PAGES * PAGE_SIZE // 2}
        kept = [number for number in kept if number not in small or len(small) <= SMALL_CHUNKS]
        same = same[np.isin(old["chunk"][same], kept)]
        index[same] = old[same]
        index["chunk"][same] = np.searchsorted(kept, old["chunk"][same])
        return np.setdiff1d(everything, same), [chunks[number] for number in kept]

    def _put(self, data: bytes) -> Chunk:
        sha256 = hashlib.sha256(data).hexdigest()
        if self._existing.get(sha256) != len(data):
            self._place.write(f"chunks/{sha256}", data)
            self._existing[sha256] = len(data)
            self.written += len(data)
            reached("backup.chunk")
        return sha256, len(data)


def _prune(place: _Place, keep: int) -> tuple[int, int]:
    """Remove all backups but the newest ones; return how many, and the bytes of the chunks that were removed.

    A crash may leave chunks that no backup uses; the next call removes them. Backups with a damaged description do not
    count. As long as one is among the newest, no chunk is removed, because it may use it.
    """
    ids, sound, damaged = place.ids(), [], 0
    for id in reversed(ids):
        if len(sound) == keep:
            break
        try:
            sound.append(place.backup(id))
        except (StoreCorrupt, StoreTooNew) as error:
            damaged += 1
            log.warning("no chunk is removed, because a backup that cannot be read may use it (%s)", error)
    old = ids[: len(ids) - len(sound) - damaged]
    place.remove("backups", [f"{id}.json" for id in old])
    used = {sha256 for backup in sound for sha256, _ in backup.chunks}
    unused = {} if damaged else {name: size for name, size in place.chunks().items() if name not in used}
    place.remove("chunks", list(unused))
    return len(old), sum(unused.values())


# ------------------------------------------------------------------------------ list, verify and restore


def list_backups(source: str | Path) -> list[Backup]:
    """Return the backups at an address, oldest first; those with a damaged description are left out with a warning."""
    place = _Place(source)
    return [backup for id in place.ids() if (backup := place.sound_backup(id)) is not None]


def verify_backups(source: str | Path, *, progress: Progress = lambda done, total: None) -> dict[str, str | None]:
    """Read every chunk of the backups back; return for each backup None, or what is wrong with it.

    A chunk that is damaged whenever it is read is removed, so that the next backup writes it again.

    Args:
        source: see `back_up`.
        progress: called with (done, total) in bytes.

    Raises:
        InvalidRequest: there is no backup.
    """
    place, found = _Place(source), {}
    backups: list[Backup] = []
    for id in place.existing_ids():
        try:
            backups.append(place.backup(id))
        except StoreError as error:
            found[id] = str(error)
    chunks, problems, done = {chunk for backup in backups for chunk in backup.chunks}, {}, 0
    total = sum(size for _, size in chunks)
    for chunk in chunks:
        if (problem := _problem(place, chunk)) and _problem(place, chunk):  # the second time, it was not the connection
            problems[chunk] = problem
            if chunk[0] in place.chunks():
                place.remove("chunks", [chunk[0]])
        done += chunk[1]
        progress(done, total)
    for backup in backups:
        found[backup.id] = next((problems[chunk] for chunk in backup.chunks if chunk in problems), None)
    # another process may have removed old ones while they were read
    return {id: found[id] for id in place.ids() if id in found}


def _problem(place: _Place, chunk: tuple[str, int]) -> str | None:
    """Return what is wrong with a chunk."""
    try:
        place.read(chunk)
    except StoreCorrupt as error:
        return str(error)
    return None


def restore(
    source: str | Path,
    folder: str | Path,
    at: str | datetime | None = None,
    *,
    progress: Progress = lambda done, total: None,
) -> Backup:
    """Restore a backup to a folder, which is completely on disk when this returns, or as it was before.

    Args:
        source: see `back_up`.
        folder: does not exist, or is empty.
        at: the id of a backup, or a time: the newest backup at or before it. A time without a zone is local. None:
            the newest backup.
        progress: called with (done, total) in bytes.

    Returns:
        What was restored.

    Raises:
        InvalidRequest: the folder is not empty; or there is no backup, or none that is old enough.
        StoreCorrupt: the backup is damaged; nothing was restored.
        DiskFull, StoreError: the folder cannot be written.
    """
    folder, place = Path(folder), _Place(source)
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise InvalidRequest(f"{folder} exists already; choose a new folder, because a restore overwrites nothing.")
    backup = place.backup_at(at)
    done = 0

    def write(name: str, path: Path) -> None:
        nonlocal done
        for size in _restored_pages(place, backup.files[name], path):
            done += size
            progress(done, backup.size)

    with translated(folder), written_whole(folder) as partial:
        (partial / "collections").mkdir()
        write(CATALOG, partial / CATALOG)
        if records.RECORDS in backup.files:
            write(records.RECORDS, partial / records.RECORDS)
        with closing(connect(partial / CATALOG, schema.SCHEMA)) as root:
            root.execute("BEGIN")
            for name, key in root.execute("SELECT name, uuid FROM collections").fetchall():
                # a new key: from here on, its row ids and changes are not those of the original any more
                path = partial / "collections" / f"{uuid.uuid4().hex}.sqlite"
                root.execute("UPDATE collections SET uuid = ? WHERE name = ?", [path.stem, name])
                write(f"collections/{key}.sqlite", path)
                with closing(connect(path, schema.SCHEMA)) as connection:
                    connection.execute("DELETE FROM snapshot")  # of the index, which a backup does not have
            root.execute("COMMIT")
        fsync_folder(partial / "collections")
        write_id(partial, backup.store)
    return backup


def _restored_pages(place: _Place, chunks: list[Chunk], path: Path) -> Iterator[int]:
    """Write a file; yield the size of each chunk when its pages are written."""
    index, chunks = np.frombuffer(place.read(chunks[0]), INDEX), chunks[1:]
    order = np.argsort(index["chunk"], kind="stable")
    bounds = np.searchsorted(index["chunk"], np.arange(len(chunks) + 1), sorter=order)
    with path.open("xb") as target:
        for number, chunk in enumerate(chunks):
            pages = _pages(place.read(chunk))
            for at in order[bounds[number] : bounds[number + 1]].tolist():
                os.pwrite(target.fileno(), pages[index["page"][at]], at * PAGE_SIZE)
            yield chunk[1]
        os.fsync(target.fileno())


def _pages(data: bytes) -> list[memoryview]:
    return [memoryview(data)[start : start + PAGE_SIZE] for start in range(0, len(data), PAGE_SIZE)]


def _id(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# ------------------------------------------------------------------------------ where backups are


class _Place:
    """A folder, or an address of fsspec such as s3://bucket/folder, with backups."""

    def __init__(self, address: str | Path) -> None:
        from fsspec.implementations.dirfs import DirFileSystem
        from fsspec.implementations.local import LocalFileSystem

        self._address = str(address)
        files, root = open_file_system(self._address)
        self.folder = Path(root) if isinstance(files, LocalFileSystem) else None
        self._fs = DirFileSystem(root, files)
        self._lock = b""  # what this process wrote to the lock of an address

    def refuse_unsuitable(self, store: Path) -> None:
        """Raise InvalidRequest for the store, for a folder in it, and for one that has other files but no backups."""
        if self.folder is not None:
            root = self.folder.resolve()
            if root.exists() and not root.is_dir():
                raise StoreError(f"{self._address} is not a folder; choose another destination.")
            if any(folder.exists() and folder.samefile(store) for folder in (root, *root.parents)):
                raise InvalidRequest(
                    f"{self._address} is in the folder of the store, so backups there would be lost with it; choose "
                    "a folder on another disk."
                )
        others = {name for name in self._names("") if name not in OTHERS and not name.startswith(".")}
        if others and not self.ids() and not self.chunks():
            raise InvalidRequest(
                f"{self._address} has other files, for example {min(others)}; choose a new or an empty folder."
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process make or remove backups here during the block."""
        if self.folder is None:
            if self._holder():
                raise self._refusal(f" If none is running, delete {self._address}/lock.")
            self._lock = str(time.time()).encode()
            self.write("lock", self._lock)
            try:
                yield
            finally:
                if self._holder() == self._lock:
                    self.write("lock", b"")  # an object store may forbid deletion
            return
        with self._used():
            make_folder(self.folder)
            handle = (self.folder / "lock").open("ab")
        with handle:  # the system releases the lock of a process that ends
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise self._refusal() from error
            except OSError:
                log.warning("%s cannot be locked, so make only one backup to it at a time", self._address)
            for left in self.folder.glob(f"{SCRATCH}*"):
                left.unlink(missing_ok=True)
            yield

    def check_lock(self) -> None:
        """Refuse to continue if another process has taken the lock, because two began at once or this one took long."""
        if self.folder is None and self._holder() != self._lock:
            raise self._refusal()

    def _holder(self) -> bytes:
        """Return the content of the lock of an address; b"" if nobody holds it."""
        try:
            content = self._read("lock")
            return content if time.time() - float(content) < LOCK_SECONDS else b""
        except (StoreCorrupt, ValueError):  # it is missing, or empty
            return b""

    def _refusal(self, hint: str = "") -> StoreLocked:
        return StoreLocked(f"Another backup to {self._address} is running; repeat this one when it has ended.{hint}")

    def ids(self) -> list[str]:
        """Return the ids of the backups, oldest first."""
        return sorted(name[:-5] for name in self._names("backups") if _ID.fullmatch(name[:-5]) and name[-5:] == ".json")

    def existing_ids(self) -> list[str]:
        """Return the ids of the backups, at least one."""
        if not (ids := self.ids()):
            raise InvalidRequest(f"{self._address} has no backup; check the address.")
        return ids

    def backup_at(self, at: str | datetime | None) -> Backup:
        """Return the backup that `at` of `restore` selects."""
        ids = self.existing_ids()
        if at is None:
            at = ids[-1]
        elif isinstance(at, datetime) or not _ID.fullmatch(at):
            try:
                moment = _id(at if isinstance(at, datetime) else datetime.fromisoformat(at))
            except (ValueError, OverflowError) as error:
                raise InvalidRequest(
                    f"{at!r} is neither a time such as 2026-05-01T12:00 nor the id of a backup such as {ids[-1]}."
                ) from error
            at = max((id for id in ids if id <= moment), default=moment)
        if at not in ids:
            raise InvalidRequest(f"{self._address} has no backup {at}; it has {ids[0]} to {ids[-1]}.")
        return self.backup(at)

    def backup(self, id: str) -> Backup:
        """Return a backup; raise StoreCorrupt if its description is missing or damaged."""
        data, name = self._read(f"backups/{id}.json"), f"{self._address}/backups/{id}.json"
        try:
            content: dict[str, Any] = json.loads(data)
            if content.pop("sha256") != _checksum(content):
                raise ValueError("it fails its checksum")
            if content.pop("format") != FORMAT:
                raise StoreTooNew(f"{name} has another format; restore it with the version of nnclr_hub that wrote it.")
            files = {name: [(sha256, size) for sha256, size in file] for name, file in content.pop("files").items()}
            return Backup(**content, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreCorrupt(f"{name} is damaged ({error}); use another backup.") from error

    def sound_backup(self, id: str) -> Backup | None:
        """Return a backup; None if its description is damaged."""
        try:
            return self.backup(id)
        except StoreCorrupt as error:
            log.warning("a damaged backup is skipped (%s)", error)
            return None

    def chunks(self) -> dict[str, int]:
        """Return the sizes of all chunks in bytes, by hash, and of files that were not written completely."""
        with self._used():
            self._fs.invalidate_cache()
            found: Any = self._fs.find("chunks", detail=True)
        sizes = {name.rsplit("/", 1)[-1]: info["size"] for name, info in found.items()}
        return {name: size for name, size in sizes.items() if _CHUNK.fullmatch(name)}

    def read(self, chunk: Chunk) -> bytes:
        """Return the content of a chunk; raise StoreCorrupt if it is missing or damaged."""
        sha256, size = chunk
        data = self._read(f"chunks/{sha256}")
        if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
            raise StoreCorrupt(
                f"{self._address}/chunks/{sha256} is damaged. Use another backup, and delete that file, so that the "
                "next backup does not share it."
            )
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a file; in a folder completely or not at all, and durably."""
        with self._used():
            if self.folder is not None:
                make_folder((self.folder / name).parent)
                replace_file(self.folder / name, data, durable=True)
                return
            self._fs.makedirs(name.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(name, data)  # half a file has another size or checksum

    def remove(self, folder: str, names: list[str]) -> None:
        """Remove files; durable when this returns."""
        with self._used():
            for name in names:
                self._fs.rm_file(f"{folder}/{name}")
                reached("backup.removed")
            if self.folder is not None:
                fsync_folder(self.folder / folder)

    def _read(self, name: str) -> bytes:
        with self._used():
            try:
                return self._fs.cat_file(name)
            except FileNotFoundError as error:
                raise StoreCorrupt(f"{self._address}/{name} is missing; use another backup.") from error

    def _names(self, folder: str) -> list[str]:
        with self._used():
            self._fs.invalidate_cache()
            try:
                return [str(name).rstrip("/").rsplit("/", 1)[-1] for name in self._fs.ls(folder, detail=False)]
            except FileNotFoundError:
                return []

    def _used(self) -> AbstractContextManager[None]:
        return reading(self._address) if self.folder is None else translated(self.folder)
