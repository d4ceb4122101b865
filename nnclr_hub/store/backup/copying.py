"""Take a backup of a store, and check backups.

Every upsert gives its items new row ids, and a row never changes. So a backup copies only rows with ids above those of
the backup before, and a list of the live ones. It also copies the log of changes, from which `restore` finds the rows
of any commit in between. Reading needs no lock: each collection is read in one transaction while others write.
"""

from __future__ import annotations

import logging
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from nnclr_hub.errors import InvalidRequest, StoreCorrupt, StoreError
from nnclr_hub.store.backup.destination import Backup, CollectionBackup, Destination, Log, Piece, Rows, backup_id
from nnclr_hub.store.base import Progress, VectorStore
from nnclr_hub.store.embedded.catalog import SCHEMA, connect, read_spec
from nnclr_hub.store.embedded.changes import log_start
from nnclr_hub.store.embedded.integrity import Commit, add_digests, digest_of, last_commit
from nnclr_hub.store.embedded.rows import size_of
from nnclr_hub.store.embedded.store import EmbeddedStore
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.records import RECORDS
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.sqlite import format_of, translated

log = logging.getLogger(__name__)
PIECE_BYTES = 16 << 20
ROW_BYTES = 1024  # that are assumed for metadata and thumbnail
LIVE_SHARE = 0.5  # a piece of which fewer rows are live is replaced
OPEN_TOGETHER = 32  # collections that are read at one moment; more would need too many open files
ATTEMPTS = 20
TABLES = ("items", "vectors", "thumbnails")


@dataclass(frozen=True)
class BackupReport:
    """The result of a backup.

    id: of the backup.
    collections, items: how many it contains.
    written: bytes that were copied.
    size: bytes of all its pieces, most of which older backups share.
    together: see `Backup`.
    """

    id: str
    collections: int
    items: int
    written: int
    size: int
    together: bool


@dataclass(frozen=True)
class _View:
    """A collection in a read transaction."""

    name: str
    key: str
    path: Path
    connection: sqlite3.Connection
    commit: Commit


def back_up(
    store: VectorStore, destination: str | Path, *, progress: Progress = lambda done, total: None
) -> BackupReport:
    """Add a backup of a store to those at the destination; only what is new is copied. The store may be written.

    Args:
        store: with a folder; it may be open read-only while another process writes to it.
        destination: a folder, or an address of fsspec such as s3://bucket/folder.
        progress: called with (done, total), counted in rows to copy of the collections read so far.

    Raises:
        InvalidRequest: it is not a folder, or an earlier version wrote it.
        MissingDependency: the driver for the address is not installed.
        DiskFull, StoreError: the destination cannot be written; older backups stay usable.
    """
    if not isinstance(store, EmbeddedStore):
        raise InvalidRequest("Only a store in a folder can be backed up; Milvus has its own backups (milvus-backup).")
    to = Destination(destination)
    previous = _latest(to)
    copier = _Copier(to, progress)
    with _views(store) as (views, aliases, together):
        # ascending even if the clock is set back; a name has microseconds, so the time must not have more
        now = max(time.time(), previous.at + 1e-5 if previous else 0.0, *(view.commit.at for view in views))
        moment = datetime.fromtimestamp(now + 1e-6, UTC)
        collections = tuple(copier.copy(view, previous and previous.collection(view.key)) for view in views)
        records = copier.records(store.folder / RECORDS)
    reached("backup.pieces")
    backup = Backup(backup_id(moment), moment.timestamp(), together, collections, aliases, records)
    to.put(backup)
    reached("backup.done")
    items = sum(one.commit.items for one in collections)
    size = sum(piece.size for piece in backup.pieces.values())
    return BackupReport(backup.id, len(collections), items, copier.written, size, together)


def _latest(destination: Destination) -> Backup | None:
    """Return the newest intact backup."""
    for id in reversed(destination.ids()):
        try:
            return destination.read(id)
        except StoreCorrupt as error:
            log.warning("the next backup does not build on a damaged one (%s)", error)
    return None


# ------------------------------------------------------------------------------ reading the store


@contextmanager
def _views(store: EmbeddedStore) -> Iterator[tuple[Sequence[_View], dict[str, str], bool]]:
    """Provide the collections, each in a read transaction, the aliases, and whether all are as they were at one moment.

    If no collection has changed since its transaction began when the last one has begun, then there was such a moment.
    """
    for attempt in range(ATTEMPTS):
        files, aliases = store.files(), store.aliases()
        with ExitStack() as stack:
            try:
                views = [stack.enter_context(_view(name, path)) for name, path in files.items()]
                together = len(files) <= OPEN_TOGETHER and all(_is_current(view) for view in views)
                together = together and (store.files(), store.aliases()) == (files, aliases)
            except StoreError:
                if store.files() == files:  # otherwise a collection was dropped
                    raise
                continue
            if together or len(files) > OPEN_TOGETHER or attempt == ATTEMPTS - 1:
                yield views, aliases, together
                return
    raise StoreError("Collections are created and dropped too often for a backup; repeat it later.")


@contextmanager
def _view(name: str, path: Path) -> Iterator[_View]:
    with closing(connect(path, read_only=True)) as connection, translated(path):
        if format_of(connection) != SCHEMA:
            raise InvalidRequest(
                f"Collection {name!r} was written by an earlier version; run `nnclr store snapshot {name}` once, which "
                "updates it, then repeat the backup."
            )
        connection.execute("BEGIN")
        yield _View(name, path.stem, path, connection, last_commit(connection))


def _is_current(view: _View) -> bool:
    with closing(connect(view.path, read_only=True)) as connection, translated(view.path):
        return last_commit(connection) == view.commit


# ------------------------------------------------------------------------------ copying


class _Copier:
    """Copies what a backup needs and the destination lacks."""

    def __init__(self, destination: Destination, progress: Progress) -> None:
        self._destination = destination
        self._progress = progress
        self._done = self._total = 0
        self.written = 0

    def put(self, data: bytes) -> Piece:
        piece, written = self._destination.put_piece(data)
        self.written += written
        return piece

    def copy(self, view: _View, previous: CollectionBackup | None) -> CollectionBackup:
        """Copy a collection; what `previous` has already is shared with it."""
        with translated(view.path):
            spec = read_spec(view.connection)
            rids = view.connection.execute("SELECT rid FROM items ORDER BY rid")
            live = np.fromiter((rid for (rid,) in rids), np.int64)
            rows = [one for one in previous.rows if _is_kept(one, live)] if previous else []
            rows = sorted([*rows, *self._new_rows(view, live, rows, spec)], key=lambda one: one.first)
            changes = self._log(view, previous)
        fields = {**asdict(spec), "indexed": list(spec.indexed)}
        return CollectionBackup(view.name, view.key, fields, view.commit, self.put(packed(live)), tuple(rows), changes)

    def _new_rows(self, view: _View, live: np.ndarray, kept: Sequence[Rows], spec: CollectionSpec) -> Iterator[Rows]:
        ranges = np.array([(one.first, one.last) for one in kept], np.int64).reshape(-1, 2)
        before = np.searchsorted(ranges[:, 0], live, "right")  # how many kept pieces begin at or before each row
        covered = np.zeros(len(live), bool)
        if len(kept):
            covered = (before > 0) & (live <= ranges[np.maximum(before - 1, 0), 1])
        wanted, before = live[~covered], before[~covered]
        self._total += len(wanted)
        most = max(1, PIECE_BYTES // (size_of(spec) + ROW_BYTES))
        for part in np.split(wanted, np.flatnonzero(np.diff(before)) + 1):  # a piece must not span a kept one
            for start in range(0, len(part), most):
                some = part[start : start + most]
                first, last = int(some[0]), int(some[-1])
                select = "SELECT * FROM main.{} WHERE rid BETWEEN ? AND ?"
                data = _extract(view.connection, {table: select.format(table) for table in TABLES}, [first, last])
                yield Rows(first, last, len(some), self.put(data))
                self._done += len(some)
                self._progress(self._done, self._total)

    def _log(self, view: _View, previous: CollectionBackup | None) -> tuple[Log, ...]:
        known = previous.log if previous else ()
        after = max(log_start(view.connection), previous.commit.seq if previous else 0)
        if after >= view.commit.seq:
            return known
        tables = {table: f"SELECT * FROM main.{table} WHERE seq > ? AND seq <= ?" for table in ("oplog", "commits")}
        data = _extract(view.connection, tables, [after, view.commit.seq])
        return (*known, Log(after, view.commit.seq, self.put(data)))

    def records(self, path: Path) -> Piece | None:
        """Copy the file of jobs and probes."""
        if not path.is_file():
            return None
        with (
            translated(path),
            closing(connect(path, read_only=True)) as source,
            closing(sqlite3.connect(":memory:")) as copy,
        ):
            source.backup(copy)
            data = copy.serialize()
            # the header says that there is a write-ahead log, which a file in memory cannot have
            return self.put(data[:18] + b"\1\1" + data[20:])


def _is_kept(rows: Rows, live: np.ndarray) -> bool:
    """Return whether enough rows of a piece are live."""
    alive = np.searchsorted(live, rows.last, "right") - np.searchsorted(live, rows.first, "left")
    return bool(alive >= max(1, LIVE_SHARE * rows.count))


def _extract(connection: sqlite3.Connection, tables: dict[str, str], parameters: Sequence[int]) -> bytes:
    """Return an SQLite file with the results of queries as its tables."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as piece:
        for table, query in tables.items():
            cursor = connection.execute(query, parameters)
            names = [column[0] for column in cursor.description]
            key = "INTEGER PRIMARY KEY"
            piece.execute(f"CREATE TABLE {table} ({names[0]} {key}, {', '.join(names[1:])})")
            piece.execute("BEGIN")
            piece.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(names))})", cursor)
            piece.execute("COMMIT")
        return piece.serialize()


def packed(rids: np.ndarray) -> bytes:
    """Return ascending row ids (n,) int64 as compressed bytes."""
    return zlib.compress(np.diff(rids, prepend=0).astype("<i8").tobytes(), 1)


def unpacked(data: bytes) -> np.ndarray:
    """Return row ids (n,) int64 from the bytes that `packed` made."""
    return np.cumsum(np.frombuffer(zlib.decompress(data), "<i8"))


@contextmanager
def opened_piece(data: bytes) -> Iterator[sqlite3.Connection]:
    """Provide a piece that `_extract` made as a database in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(data)
        yield connection


# ------------------------------------------------------------------------------ checking


def verify_backups(
    destination: str | Path, *, id: str | None = None, progress: Progress = lambda done, total: None
) -> dict[str, str | None]:
    """Read every piece of backups back, and compare the rows of each collection with the digest of its commit.

    Args:
        destination: see `back_up`.
        id: of one backup; None: all.
        progress: called with (done, total), counted in bytes.

    Returns:
        For each backup None, or what is wrong with it.

    Raises:
        InvalidRequest: the destination has no backup, or none with that id.
    """
    source = Destination(destination)
    ids = source.ids()
    if not ids or (id is not None and id not in ids):
        raise InvalidRequest(f"{source.address} has no backup{f' {id!r}' if id else ''}; check the address.")
    found: dict[str, str | None] = {}
    backups: list[Backup] = []
    for one in [id] if id is not None else ids:
        try:
            backups.append(source.read(one))
        except StoreError as error:
            found[one] = str(error)
    total = sum({piece.sha256: piece.size for backup in backups for piece in backup.pieces.values()}.values())
    checked: dict[str, str | np.ndarray] = {}  # by hash
    done = 0
    for backup in backups:
        for piece in backup.pieces.values():
            if piece.sha256 not in checked:
                checked[piece.sha256] = _checked(source, piece)
                done += piece.size
                progress(done, total)
        problems = [str(one) for hash in backup.pieces if isinstance(one := checked[hash], str)]
        problems = problems or [text for one in backup.collections if (text := _incomplete(source, one, checked))]
        found[backup.id] = problems[0] if problems else None
    return dict(sorted(found.items()))


def _checked(source: Destination, piece: Piece) -> str | np.ndarray:
    """Return row ids and checksums (n, 2) of a piece, or what is wrong with it."""
    nothing = np.zeros((0, 2), np.int64)
    try:
        data = source.read_piece(piece)
    except StoreError as error:
        return str(error)
    if not data.startswith(b"SQLite format 3"):
        return nothing
    with opened_piece(data) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'items'").fetchone():
            return nothing
        return np.array(connection.execute("SELECT rid, crc FROM items").fetchall(), np.int64).reshape(-1, 2)


def _incomplete(source: Destination, one: CollectionBackup, checked: dict[str, str | np.ndarray]) -> str | None:
    live = unpacked(source.read_piece(one.live))
    parts = [part for rows in one.rows if not isinstance(part := checked[rows.piece.sha256], str)]
    rows = np.concatenate([np.zeros((0, 2), np.int64), *parts])
    rows = rows[np.isin(rows[:, 0], live)]
    digest = add_digests(digest_of(rows[:, 0].astype(np.uint64), rows[:, 1].astype(np.uint64)))
    if (len(live), len(rows), digest) != (one.commit.items, one.commit.items, one.commit.digest):
        return f"The rows of collection {one.name!r} are not those of its commit {one.commit.seq}."
    return None
