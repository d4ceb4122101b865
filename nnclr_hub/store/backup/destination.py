"""Where backups are kept: a folder, or any address that fsspec knows.

backups/TIME.json      one backup: what it contains, by the SHA-256 of each piece. It is written last
pieces/ab/SHA256       the pieces; none is ever changed, and backups share them
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nnclr_hub.errors import DiskFull, InvalidRequest, MissingDependency, StoreCorrupt, StoreError, StoreTooNew
from nnclr_hub.store.embedded.integrity import Commit
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder import NO_SPACE, fsync_folder, make_folder

FORMAT = "nnclr_hub backup"
VERSION = 1
_DRIVERS = {"s3": "s3", "gs": "gcs", "gcs": "gcs"}  # protocol: extra that installs its driver


@dataclass(frozen=True)
class Piece:
    """A piece by its content: SHA-256 in hex, and bytes."""

    sha256: str
    size: int

    @property
    def file(self) -> str:
        return f"pieces/{self.sha256[:2]}/{self.sha256}"


@dataclass(frozen=True)
class Rows:
    """An SQLite file with the rows first ... last that were live when it was written: items, vectors, thumbnails."""

    first: int
    last: int
    count: int
    piece: Piece


@dataclass(frozen=True)
class Log:
    """An SQLite file with the changes and commits after `after` up to `to`."""

    after: int
    to: int
    piece: Piece


@dataclass(frozen=True)
class CollectionBackup:
    """A collection at one commit.

    name, spec: as in the catalog.
    key: identifies the collection's file; row ids of one file are never used twice.
    commit: what the collection was backed up at.
    live: row ids, see `copying.packed`.
    rows: together they contain all live rows.
    log: ascending; there may be gaps.
    """

    name: str
    key: str
    spec: dict[str, Any]
    commit: Commit
    live: Piece
    rows: tuple[Rows, ...]
    log: tuple[Log, ...]

    @property
    def pieces(self) -> list[Piece]:
        return [self.live, *(one.piece for one in self.rows), *(one.piece for one in self.log)]


@dataclass(frozen=True)
class Backup:
    """A backup of a store.

    id: its time, which is also its file's name.
    at: seconds since 1970.
    together: whether all collections are as they were at one moment; each is at one commit in any case.
    records: an SQLite file with jobs and probes; None if there are none.
    """

    id: str
    at: float
    together: bool
    collections: tuple[CollectionBackup, ...]
    aliases: dict[str, str]
    records: Piece | None

    @property
    def pieces(self) -> dict[str, Piece]:
        """All pieces by their hash."""
        found = [piece for one in self.collections for piece in one.pieces]
        return {piece.sha256: piece for piece in [*found, *([self.records] if self.records else [])]}

    def collection(self, key: str) -> CollectionBackup | None:
        """Return a collection by the key of its file."""
        return next((one for one in self.collections if one.key == key), None)


def backup_id(moment: datetime) -> str:
    """Return the id of a backup of a time."""
    return moment.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


class Destination:
    """A folder or an address with backups.

    Args:
        address: a folder, or an address of fsspec such as s3://bucket/folder.

    Raises:
        InvalidRequest: the address is invalid.
        MissingDependency: its driver is not installed.
    """

    def __init__(self, address: str | Path) -> None:
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        self.address = str(address)
        try:
            self._fs, self._root = url_to_fs(self.address)
        except ImportError as error:
            extra = _DRIVERS.get(self.address.partition("://")[0])
            raise MissingDependency(
                f"The driver for {self.address} is not installed ({error}): "
                + (f"pip install 'nnclr_hub[{extra}]'." if extra else "install the package that fsspec names.")
            ) from error
        except ValueError as error:
            raise InvalidRequest(f"{self.address!r} is not a valid address ({error}).") from error
        self._local = isinstance(self._fs, LocalFileSystem)
        # object stores show a file when it is complete, and may forbid deletion, which a move needs
        self._whole = not _DRIVERS.keys().isdisjoint(
            (self._fs.protocol,) if isinstance(self._fs.protocol, str) else self._fs.protocol
        )

    # ---- pieces

    def put_piece(self, data: bytes) -> tuple[Piece, int]:
        """Store a piece unless it exists with its size; return it, and how many bytes were written."""
        piece = Piece(hashlib.sha256(data).hexdigest(), len(data))
        with self._translated():
            try:
                if self._fs.info(f"{self._root}/{piece.file}")["size"] == piece.size:
                    return piece, 0
            except FileNotFoundError:
                pass
            self._write(piece.file, data)
        reached("backup.piece")
        return piece, len(data)

    def read_piece(self, piece: Piece) -> bytes:
        """Return a piece.

        Raises:
            StoreCorrupt: it is missing or damaged.
        """
        with self._translated():
            try:
                data = self._fs.cat_file(f"{self._root}/{piece.file}")
            except FileNotFoundError as error:
                raise StoreCorrupt(f"{self.address}/{piece.file} is missing; use an older backup.") from error
        if len(data) != piece.size or hashlib.sha256(data).hexdigest() != piece.sha256:
            raise StoreCorrupt(f"{self.address}/{piece.file} is damaged; use an older backup.")
        return data

    # ---- backups

    def ids(self) -> list[str]:
        """Return the ids of the backups, oldest first."""
        with self._translated():
            try:
                files = self._fs.ls(f"{self._root}/backups", detail=False)
            except FileNotFoundError:
                return []
        names = [str(file).rsplit("/", 1)[-1] for file in files]
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def put(self, backup: Backup) -> None:
        """Store the description of a backup, which completes it."""
        content = {"format": FORMAT, "version": VERSION, **asdict(backup)}
        content["sha256"] = _checksum(content)
        with self._translated():
            self._write(f"backups/{backup.id}.json", json.dumps(content, indent=1).encode())

    def read(self, id: str) -> Backup:
        """Return a backup.

        Raises:
            StoreTooNew: a later version wrote it.
            StoreCorrupt: its description is missing or damaged.
        """
        name = f"{self.address}/backups/{id}.json"
        with self._translated():
            try:
                content = json.loads(self._fs.cat_file(f"{self._root}/backups/{id}.json"))
                if content["format"] == FORMAT and isinstance(content["version"], int) and content["version"] > VERSION:
                    raise StoreTooNew(f"{name} was written by a later version of nnclr_hub; install that version.")
                if content.pop("sha256") != _checksum(content):
                    raise ValueError("it fails its checksum")
                return _parsed(content)
            except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError) as error:
                raise StoreCorrupt(f"{name} is damaged or missing ({error}); use an older backup.") from error

    # ---- inside

    def _write(self, name: str, data: bytes) -> None:
        """Write a new file completely or not at all; it is durable when this returns."""
        if self._whole:
            self._fs.pipe_file(f"{self._root}/{name}", data)
            return
        if not self._local:
            half = f"{self._root}/{name}.{os.getpid()}.part"
            self._fs.makedirs(half.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(half, data)
            self._fs.mv(half, f"{self._root}/{name}")
            return
        path = Path(self._root, name)
        make_folder(path.parent)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        fsync_folder(path.parent)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFull(
                    f"{self.address} is full; older backups stay usable. Free some space, then repeat."
                ) from error
            raise StoreError(
                f"{self.address} cannot be used ({error}); check the address and the permissions."
            ) from error


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _parsed(content: dict[str, Any]) -> Backup:
    def piece(one: dict[str, Any]) -> Piece:
        return Piece(**one)

    collections = tuple(
        CollectionBackup(
            one["name"],
            one["key"],
            one["spec"],
            Commit(**one["commit"]),
            piece(one["live"]),
            tuple(Rows(part["first"], part["last"], part["count"], piece(part["piece"])) for part in one["rows"]),
            tuple(Log(part["after"], part["to"], piece(part["piece"])) for part in one["log"]),
        )
        for one in content["collections"]
    )
    records = piece(content["records"]) if content["records"] else None
    return Backup(content["id"], content["at"], content["together"], collections, content["aliases"], records)
