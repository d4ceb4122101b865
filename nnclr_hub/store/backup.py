"""Backups of a store in a folder, at any address of fsspec. Each one copies only the pages of files that are new.

back_up(store, "s3://bucket/nnclr", keep=30)
restore("s3://bucket/nnclr", Path("restored"), at="2026-05-01T12:00")

backups/TIME.json   one backup: of each file of the store, the chunk with the hashes of its pages, then those with its
                    pages. It is written last, and makes the backup valid
chunks/SHA256       the hashes of all pages of an SQLite file in order, 16 bytes each; or up to 1024 pages

SQLite copies each file to a temporary file in one read transaction: one state, while others write. A change of a few
items touches few pages, but these are spread over the whole file. So pages are looked up by their hashes, and only
those that the previous backup does not have are packed into new chunks.
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
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from nnclr_hub.arguments import checked
from nnclr_hub.errors import DiskFull, InvalidRequest, NNCLRHubError, StoreCorrupt, StoreError, StoreLocked, StoreTooNew
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.json_text import MALFORMED, parse_json, what_is_wrong
from nnclr_hub.remote_files import open_file_system, reading
from nnclr_hub.store import records
from nnclr_hub.store.base import Progress, VectorStore
from nnclr_hub.store.disk import fsync_folder, make_folder, read_id, write_id, written_whole
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder import schema
from nnclr_hub.store.folder.catalog import CATALOG
from nnclr_hub.store.folder.rows import size_of
from nnclr_hub.store.folder.store import EmbeddedStore
from nnclr_hub.store.folder.verify import damaged_rows
from nnclr_hub.store.records import RECORDS
from nnclr_hub.store.sqlite import HINT, PAGE_SIZE, connect, quick_check, translated

log = logging.getLogger(__name__)
FORMAT = "nnclr_hub backup, version 4"
CHUNK_PAGES = 1024  # 16 MiB
MOST_CHUNKS = 1000  # in a file, beyond those that are full
HASH = 16  # bytes of the SHA-256 of a page
_ID = re.compile(r"\d{8}T\d{6}\.\d{6}Z")
_CHUNK = re.compile(r"\.?[0-9a-f]{64}(\..*part)?")  # a chunk, or one that was not written completely
Chunk = tuple[str, int]  # SHA-256 in hex, and bytes


@dataclass(frozen=True)
class Backup:
    """A backup of a store."""

    id: str  # its time in UTC, and the name of its file
    store: str | None  # the id of the store; None if it had none, because its disk was full
    collections: dict[str, int]  # number of items by name
    aliases: dict[str, str]
    files: dict[str, list[Chunk]]  # by path in the store's folder: the chunk with the hashes, then those with pages
    missing: tuple[str, ...] = ()  # collections that were damaged

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
    """The result of a backup."""

    id: str
    collections: int
    items: int
    written: int  # bytes that were copied
    size: int  # bytes of all its chunks
    removed: int = 0  # old backups
    freed: int = 0  # bytes of chunks that were removed with them


# ------------------------------------------------------------------------------ make a backup


@checked
def back_up(
    store: VectorStore, to: str | Path, keep: int | None = None, *, progress: Progress = lambda done, total: None
) -> BackupReport:
    """Add a backup of a store, each collection as it was at one moment, to those at an address.

    This process or another one may write to the store at the same time. A temporary copy of the largest collection
    needs space in the destination if that is a folder, otherwise in the folder for temporary files (TMPDIR). Make only
    one backup at a time to an address.

    Args:
        store: with a folder; it may be open read-only.
        to: a folder, or an address of fsspec such as s3://bucket/folder.
        keep: the number of backups to keep, at least 1; older ones are removed afterwards. None: all.
        progress: called with (done, total) in bytes.

    Raises:
        InvalidRequest: the destination is inside of the store, or has backups of another one.
        StoreLocked: another backup to the folder is running.
        StoreCorrupt: a collection is damaged. The backup has the others, and no older backup was removed.
        DiskFull, StoreError: the destination cannot be written; older backups stay usable.
    """
    if not isinstance(store, EmbeddedStore):
        raise InvalidRequest("Only a store in a folder can be backed up; Milvus has its own backups (milvus-backup).")
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise InvalidRequest(f"keep must be a whole number from 1, got {keep!r}.")
    place = _Place(to)
    with place.locked(store.folder):
        ids, own = place.ids(), read_id(store.folder)
        previous = next(place.sound(reversed(ids)), None)
        if previous is not None and None not in (previous.store, own) and previous.store != own:
            raise InvalidRequest(
                f"{to} has backups of another store; use one destination for each store, because old backups are "
                "removed by their age."
            )
        copy = _Copy(place, previous, store, progress)
        copy.run()
        reached("backup.chunks")
        # ids ascend even if the clock is set back
        last = datetime.fromisoformat(ids[-1]).timestamp() + 1e-5 if ids else 0.0
        id = _id(datetime.fromtimestamp(max(time.time(), last), UTC))
        backup = Backup(id, own, copy.collections, copy.aliases, copy.files, tuple(copy.damaged))
        content = {"format": FORMAT, **asdict(backup)}
        place.write(f"backups/{id}.json", json.dumps({"sha256": _checksum(content), **content}, indent=1).encode())
        reached("backup.done")
        if copy.damaged:
            name, error = next(iter(copy.damaged.items()))
            reason = str(error).removesuffix(f"; {HINT}.")
            raise StoreCorrupt(
                f"Backup {id} has the rest of the store, but not {', '.join(copy.damaged)}; no older backup was "
                f"removed. {reason}. Every backup ends like this until you run `nnclr store repair {name}` or `nnclr "
                f"store drop {name}`."
            )
        try:
            removed, freed = (0, 0) if keep is None else _prune(place, keep)
        except NNCLRHubError as error:
            raise StoreError(f"Backup {id} is complete, but older ones were not removed. {error}") from error
    items = sum(backup.collections.values())
    return BackupReport(id, len(backup.collections), items, copy.written, backup.size, removed, freed)


class _Copy:
    """Copies the files of a store as chunks, and shares those of the previous backup."""

    def __init__(self, place: _Place, previous: Backup | None, store: EmbeddedStore, progress: Progress) -> None:
        self._place, self._store, self._progress, self._done = place, store, progress, 0
        self._total = sum(path.stat().st_size for path in store.files().values() if path.exists())
        self._existing, self._previous = place.chunks(), previous.files if previous else {}
        self._intact: dict[Chunk, bool] = {}  # whether existing chunks are intact, once they were checked
        self.written = 0
        self.files: dict[str, list[Chunk]] = {}
        self.collections: dict[str, int] = {}
        self.damaged: dict[str, StoreError] = {}  # by name

    def run(self) -> None:
        # names first: an alias that is moved later must not point to a collection that was not complete yet
        names = "SELECT name, uuid FROM collections ORDER BY name", "SELECT alias, name FROM aliases ORDER BY alias"
        keys, aliases = self._save(CATALOG, schema.SCHEMA, *names)
        if (self._store.folder / RECORDS).is_file():
            self._save(RECORDS, records.SCHEMA)
        for name, key in keys:
            file, count = f"collections/{key}.sqlite", "SELECT count(*) FROM items"
            for [[items]] in self._save(file, schema.SCHEMA, count, of=name):  # none of a damaged collection
                self.collections[name] = items
        self.aliases = {alias: name for alias, name in aliases if name in self.collections}

    def _save(self, file: str, format: int, *queries: str, of: str | None = None) -> list[list[Any]]:
        """Copy a file, and return what queries find in it; if the collection `of` is damaged, note that instead."""
        # the copy is complete before the first upload, because SQLite's log grows until the transaction ends
        with NamedTemporaryFile(dir=self._place.folder, delete=False) as copy:
            path, is_sound = self._store.folder / file, False
            try:
                with closing(sqlite3.connect(copy.name, isolation_level=None)) as target:
                    os.unlink(copy.name)  # so that a crash leaves nothing
                    target.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
                    with closing(connect(path, format, read_only=True)) as source, translated(path):
                        quick_check(source, path)  # copies of damage must not replace sound backups
                        source.execute("BEGIN")
                        source.execute("SELECT 1 FROM sqlite_master").fetchone()  # the first read begins it
                        found = [source.execute(query).fetchall() for query in queries]
                        if of is not None:
                            self._check_rows(source, path)
                        is_sound = True  # an error from here on is that of the disk with the copy
                        source.backup(target, pages=CHUNK_PAGES)
            except StoreError as error:
                if of is None or is_sound or isinstance(error, DiskFull):
                    raise
                if path in self._store.files().values():  # else it was dropped since, and is left out
                    self.damaged[of] = error
                return []
            self.files[file] = self._chunks(copy.fileno(), file)
            return found

    def _check_rows(self, source: sqlite3.Connection, path: Path) -> None:
        show = lambda done, total: self._progress(min(self._done, self._total), self._total)  # noqa: E731
        if row := next(damaged_rows(source, size_of(schema.read_spec(source)), show), None):
            raise StoreCorrupt(f"{path} is damaged (item {row.id!r}: {row.part}); {HINT}.")

    def _chunks(self, copy: int, name: str) -> list[Chunk]:
        hashes: list[bytes] = []
        for start in range(0, os.fstat(copy).st_size, CHUNK_PAGES * PAGE_SIZE):
            hashes += map(_hash, _parts(os.pread(copy, CHUNK_PAGES * PAGE_SIZE, start), PAGE_SIZE))
            self._done += CHUNK_PAGES * PAGE_SIZE
            self._progress(min(self._done, self._total), self._total)
        known, chunks = self._shared(name, set(hashes))
        new = list({page: number for number, page in enumerate(hashes) if page not in known}.values())
        for start in range(0, len(new), CHUNK_PAGES):
            pages = [os.pread(copy, PAGE_SIZE, number * PAGE_SIZE) for number in new[start : start + CHUNK_PAGES]]
            chunks.append(self._put(b"".join(pages)))
        return [self._put(b"".join(hashes)), *chunks]

    def _shared(self, name: str, wanted: set[bytes]) -> tuple[set[bytes], list[Chunk]]:
        """Return the pages that the previous backup has of a file, and its chunks; nothing if that is not worth it."""
        chunks = self._previous.get(name, [])
        local = self._place.folder is not None
        if not chunks or not all(self._is_intact(chunk, read=local or chunk == chunks[0]) for chunk in chunks):
            return set(), []
        size = sum(size for _, size in chunks[1:])
        known = wanted & set(_parts(self._place.read(chunks[0]), HASH))
        # neither unused pages nor the number of chunks may grow with the number of backups
        worn = size > 2 * PAGE_SIZE * len(known) or len(chunks) > MOST_CHUNKS + size // (CHUNK_PAGES * PAGE_SIZE)
        return (set(), []) if worn else (known, chunks[1:])

    def _is_intact(self, chunk: Chunk, *, read: bool) -> bool:
        """Return whether a chunk may be shared: it exists and, if it is read, has its content.

        An object store keeps checksums itself, and reading all chunks back would be a download.
        """
        if chunk not in self._intact:
            self._intact[chunk] = self._existing.get(chunk[0]) == chunk[1]
            self._progress(min(self._done, self._total), self._total)  # which ends a canceled backup
            if self._intact[chunk] and read:
                try:
                    self._place.read(chunk)
                except StoreCorrupt as error:
                    log.warning("a damaged chunk is written again (%s)", str(error).partition(" is damaged")[0])
                    self._intact[chunk] = False
        return self._intact[chunk]

    def _put(self, data: bytes) -> Chunk:
        chunk = hashlib.sha256(data).hexdigest(), len(data)
        if not self._is_intact(chunk, read=self._place.folder is not None):
            self._place.write(f"chunks/{chunk[0]}", data)
            self._intact[chunk] = True
            self.written += len(data)
            reached("backup.chunk")
        return chunk


def _prune(place: _Place, keep: int) -> tuple[int, int]:
    """Remove all backups but the newest ones; return how many, and the bytes of the chunks that were removed.

    Backups that cannot be read do not count. Damaged ones are removed when they are older than those that are kept. No
    chunk is removed while other unreadable backups exist, because they may use it.
    """
    sound, unreadable = [], dict[str, StoreError]()
    for id in place.ids():
        try:
            sound.append(place.backup(id))
        except (StoreCorrupt, StoreTooNew) as error:
            unreadable[id] = error
    old, kept = sound[:-keep], sound[-keep:]
    lost = [id for id, error in unreadable.items() if isinstance(error, StoreCorrupt) and id < kept[0].id]
    for id in lost:
        log.warning("a backup that cannot be read is removed, as older than those to keep (%s)", unreadable[id])
    place.remove([f"backups/{id}.json" for id in [*(backup.id for backup in old), *lost]])
    used = {sha256 for backup in kept for sha256, _ in backup.chunks}
    # also those that a crash has left
    is_known = len(unreadable) == len(lost)
    unused = {name: size for name, size in place.chunks().items() if is_known and name not in used}
    place.remove([f"chunks/{name}" for name in unused])
    return len(old) + len(lost), sum(unused.values())


# ------------------------------------------------------------------------------ list, verify and restore


@checked
def list_backups(source: str | Path) -> list[Backup]:
    """Return the backups at an address, oldest first; those with a damaged description are left out with a warning."""
    place = _Place(source)
    return list(place.sound(place.ids()))


@checked
def verify_backups(source: str | Path, *, progress: Progress = lambda done, total: None) -> dict[str, str | None]:
    """Read every chunk of the backups back; return for each backup None, or what is wrong with it.

    `progress` is called with (done, total) in bytes. InvalidRequest is raised if there is no backup.
    """
    place, backups, problems, damaged, done = _Place(source), {}, {}, {}, 0
    checked = place.ids(some=True)
    for id in checked:
        try:
            backups[id] = place.backup(id)
        except StoreError as error:
            problems[id] = str(error)
    chunks = set[Chunk]().union(*(backup.chunks for backup in backups.values()))
    for chunk in chunks:
        try:
            place.read(chunk)
        except StoreCorrupt as error:
            damaged[chunk] = str(error)
        done += chunk[1]
        progress(done, sum(size for _, size in chunks))
    for id, backup in backups.items():
        for chunk in backup.chunks & damaged.keys():
            problems[id] = damaged[chunk]
    # another process may have removed old ones while they were read
    return {id: place.with_hint(id, problems[id]) if id in problems else None for id in place.ids() if id in checked}


@checked
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
        at: the id of a backup, or a time: the newest backup at or before it. A time without an offset is in the time
            zone of this machine. None: the newest backup.
        progress: called with (done, total) in bytes.

    Raises:
        InvalidRequest: the folder is not empty; or there is no backup, or none that is old enough.
        StoreCorrupt: the backup is damaged; nothing was restored.
        DiskFull, StoreError: the folder cannot be written.
    """
    folder, place = Path(folder), _Place(source)
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise InvalidRequest(f"{folder} exists already; choose a new folder, because a restore overwrites nothing.")
    backup = place.backup(_select(place.ids(some=True), at))
    done = 0

    def write(name: str, path: Path) -> None:
        nonlocal done
        for size in _write_pages(place, backup.files[name], path):
            done += size
            progress(done, backup.size)

    with translated(folder), written_whole(folder) as partial:
        (partial / "collections").mkdir()
        for name in {CATALOG, RECORDS} & backup.files.keys():
            write(name, partial / name)
        with closing(connect(partial / CATALOG, schema.SCHEMA)) as root:
            root.execute("BEGIN")
            for name, key in root.execute("SELECT name, uuid FROM collections").fetchall():
                if name not in backup.collections:  # it was damaged
                    root.execute("DELETE FROM aliases WHERE name = ?", [name])
                    root.execute("DELETE FROM collections WHERE name = ?", [name])
                    continue
                # a new key: from here on, its row ids and changes are not those of the original any more
                path = partial / "collections" / f"{uuid.uuid4().hex}.sqlite"
                root.execute("UPDATE collections SET uuid = ? WHERE name = ?", [path.stem, name])
                write(f"collections/{key}.sqlite", path)
                with closing(connect(path, schema.SCHEMA)) as connection:
                    connection.execute("DELETE FROM snapshot")  # describes an index, which a backup does not have
            root.execute("COMMIT")
        fsync_folder(partial / "collections")
        write_id(partial, backup.store)
    return backup


def _select(ids: list[str], at: str | datetime | None) -> str:
    if at is None:
        return ids[-1]
    if isinstance(at, str) and _ID.fullmatch(at):
        found = at if at in ids else None
    else:
        try:
            moment = _id(at if isinstance(at, datetime) else datetime.fromisoformat(at))
        except (ValueError, OverflowError) as error:
            raise InvalidRequest(
                f"{at!r} is neither a time such as 2026-05-01T12:00 nor the id of a backup such as {ids[-1]}."
            ) from error
        found = max((id for id in ids if id <= moment), default=None)
    if found is None:
        raise InvalidRequest(f"There is no backup {at}; the first is {ids[0]}, the last {ids[-1]} (ids are in UTC).")
    return found


def _write_pages(place: _Place, chunks: list[Chunk], path: Path) -> Iterator[int]:
    """Write a file; yield the size of each chunk when its pages are written."""
    numbers: dict[bytes, list[int]] = {}
    for number, page in enumerate(_parts(place.read(chunks[0]), HASH)):
        numbers.setdefault(page, []).append(number)
    with path.open("xb") as target:
        for chunk in chunks[1:]:
            for page in _parts(place.read(chunk), PAGE_SIZE):
                for number in numbers.pop(_hash(page), ()):
                    os.pwrite(target.fileno(), page, number * PAGE_SIZE)
            yield chunk[1]
        os.fsync(target.fileno())


def _parts(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _hash(page: bytes) -> bytes:
    return hashlib.sha256(page).digest()[:HASH]


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

    @contextmanager
    def locked(self, store: Path) -> Iterator[None]:
        """Make the folder, and let no other process make or remove backups in it during the block."""
        if self.folder is None:
            yield
            return
        if any(parent.exists() and parent.samefile(store) for parent in (self.folder / "x").resolve().parents):
            raise InvalidRequest(
                f"{self._address} is in the folder of the store, so backups there would be lost with it; choose a "
                "folder on another disk."
            )
        with self._used():
            make_folder(self.folder)
            ours = {"lock", "chunks", "backups", "lost+found"}
            others = {name for name in os.listdir(self.folder) if name not in ours and name[0] != "."}
            if others and not (self.folder / "backups").is_dir():
                raise InvalidRequest(f"{self._address} holds {min(others)}, but no backups; choose a new folder.")
            handle = (self.folder / "lock").open("ab")
        with handle:  # the system releases the lock of a process that ends
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreLocked(
                    f"Another backup to {self._address} is running; repeat this one when it has ended."
                ) from error
            except OSError:
                log.warning("%s cannot be locked, so make only one backup to it at a time", self._address)
            yield

    def ids(self, *, some: bool = False) -> list[str]:
        """Return the ids of the backups, oldest first; with `some`, at least one."""
        names = [name.removesuffix(".json") for name in self._sizes("backups")]
        ids = sorted(filter(_ID.fullmatch, names))
        if some and not ids:
            raise InvalidRequest(f"{self._address} has no backup; check the address.")
        return ids

    def backup(self, id: str) -> Backup:
        """Return a backup; raise StoreCorrupt if its description is missing or damaged."""
        data, name = self._read(f"backups/{id}.json"), f"{self._address}/backups/{id}.json"
        try:
            content: dict[str, Any] = parse_json(data)
            if content.pop("sha256") != _checksum(content):
                raise ValueError("it fails its checksum")
            if content.pop("format") != FORMAT:
                raise StoreTooNew(f"{name} has another format; restore it with the version of nnclr_hub that wrote it.")
            files = {name: [(sha256, size) for sha256, size in file] for name, file in content.pop("files").items()}
            missing = tuple(content.pop("missing", ()))
            return Backup(**content, files=files, missing=missing)
        except MALFORMED as error:
            raise StoreCorrupt(f"{name} is damaged ({what_is_wrong(error)}); use another backup.") from error

    def sound(self, ids: Iterable[str]) -> Iterator[Backup]:
        """Yield the backups whose description can be read."""
        for id in ids:
            try:
                yield self.backup(id)
            except (StoreCorrupt, StoreTooNew) as error:
                log.warning("a backup is skipped (%s)", error)

    def with_hint(self, id: str, problem: str) -> str:
        """Return what is wrong with a backup, and how to remove it."""
        return f"{problem} To remove this backup, delete {self._address}/backups/{id}.json."

    def chunks(self) -> dict[str, int]:
        """Return the sizes of all chunks in bytes, by hash, and of files that were not written completely."""
        return {name: size for name, size in self._sizes("chunks").items() if _CHUNK.fullmatch(name)}

    def read(self, chunk: Chunk) -> bytes:
        """Return the content of a chunk; raise StoreCorrupt if it is missing or damaged."""
        sha256, size = chunk
        data = self._read(f"chunks/{sha256}")
        if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
            again = "" if self.folder else f", and delete {self._address}/chunks/{sha256}, which backups share"
            raise StoreCorrupt(f"{self._address}/chunks/{sha256} is damaged; use another backup{again}.")
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

    def remove(self, names: list[str]) -> None:
        """Remove files of one folder; durable when this returns."""
        with self._used():
            for name in names:
                self._fs.rm_file(name)
                reached("backup.removed")
            if names and self.folder is not None:
                fsync_folder((self.folder / names[0]).parent)

    def _read(self, name: str) -> bytes:
        with self._used():
            try:
                return self._fs.cat_file(name)
            except FileNotFoundError as error:
                raise StoreCorrupt(f"{self._address}/{name} is missing; use another backup.") from error

    def _sizes(self, folder: str) -> dict[str, int]:
        with self._used():
            self._fs.invalidate_cache()
            found: Any = self._fs.find(folder, detail=True)
        return {name.rsplit("/", 1)[-1]: info["size"] for name, info in found.items()}

    def _used(self) -> AbstractContextManager[None]:
        return reading(self._address) if self.folder is None else translated(self.folder)
