"""What a backup consists of, and its description, which is a file of JSON."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from nnclr_hub.errors import StoreCorrupt, StoreTooNew
from nnclr_hub.store.embedded.integrity import Commit

FORMAT = "nnclr_hub backup"
VERSION = 1


@dataclass(frozen=True)
class Piece:
    """A piece by its content: SHA-256 in hex, and bytes."""

    sha256: str
    size: int

    @property
    def file(self) -> str:
        return f"pieces/{self.sha256[:2]}/{self.sha256}"


@dataclass(frozen=True)
class BackupRows:
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
    live: row ids, see `pieces.packed`.
    rows: together they contain all live rows.
    log: ascending, without overlaps; there may be gaps.
    """

    name: str
    key: str
    spec: dict[str, Any]
    commit: Commit
    live: Piece
    rows: tuple[BackupRows, ...]
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
    store: the id of the store; None if it had none, because its disk was full.
    """

    id: str
    at: float
    together: bool
    collections: tuple[CollectionBackup, ...]
    aliases: dict[str, str]
    records: Piece | None
    store: str | None

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


def written(backup: Backup) -> bytes:
    """Return the description of a backup."""
    content = {"format": FORMAT, "version": VERSION, **asdict(backup)}
    content["sha256"] = _checksum(content)
    return json.dumps(content, indent=1).encode()


def parsed(data: bytes, name: str) -> Backup:
    """Return the backup that a description describes.

    Args:
        data: of the description.
        name: of its file, for messages.

    Raises:
        StoreTooNew: another version wrote it, in a format that this one does not read.
        StoreCorrupt: it is damaged.
    """
    try:
        content = json.loads(data)
    except ValueError as error:
        raise StoreCorrupt(f"{name} is damaged (it is not JSON); use another backup.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("version"), int):
        raise StoreCorrupt(f"{name} is damaged (it does not describe a backup); use another backup.")
    if content["version"] != VERSION:
        raise StoreTooNew(
            f"{name} has format {content['version']}, and this version of nnclr_hub reads only format {VERSION}; "
            "restore it with the version that wrote it."
        )
    if content.pop("sha256", None) != _checksum(content):
        raise StoreCorrupt(f"{name} is damaged (it fails its checksum); use another backup.")
    try:
        return _backup(content)
    except (KeyError, TypeError) as error:  # with a valid checksum, so it was not damaged on the disk
        raise StoreCorrupt(f"{name} is incomplete ({error}); use another backup.") from error


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _backup(content: dict[str, Any]) -> Backup:
    def piece(one: dict[str, Any]) -> Piece:
        return Piece(**one)

    collections = tuple(
        CollectionBackup(
            one["name"],
            one["key"],
            one["spec"],
            Commit(**one["commit"]),
            piece(one["live"]),
            tuple(BackupRows(part["first"], part["last"], part["count"], piece(part["piece"])) for part in one["rows"]),
            tuple(Log(part["after"], part["to"], piece(part["piece"])) for part in one["log"]),
        )
        for one in content["collections"]
    )
    records = piece(content["records"]) if content["records"] else None
    return Backup(
        content["id"],
        content["at"],
        content["together"],
        collections,
        content["aliases"],
        records,
        content["store"],
    )
