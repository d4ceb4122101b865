"""Take a backup of a store.

Every upsert gives its items new row ids, and only an edit of metadata changes a row. So a backup copies the rows with
ids above those of the backup before, the pieces with edited rows, and a list of the live ones. It also copies the log
of changes, from which `restore` finds the rows of any commit in between. Reading needs no lock: each collection is read
in one transaction while others write.

A transaction makes SQLite keep its log, which then grows with every write. So most pieces are copied ahead, each in a
short transaction. Only what was written since then is copied in the transactions in which the backup reads the store.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from nnclr_hub.errors import InvalidRequest, StoreError
from nnclr_hub.store.backup.description import Backup, BackupRows, CollectionBackup, Log, Piece, backup_id
from nnclr_hub.store.backup.destination import Destination
from nnclr_hub.store.backup.pieces import log_piece, packed, rows_piece
from nnclr_hub.store.backup.retention import prune
from nnclr_hub.store.base import Progress, VectorStore
from nnclr_hub.store.embedded.catalog import connect, read_spec
from nnclr_hub.store.embedded.changes import log_start
from nnclr_hub.store.embedded.integrity import Commit, last_commit
from nnclr_hub.store.embedded.rows import size_of
from nnclr_hub.store.embedded.store import EmbeddedStore
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder import read_id
from nnclr_hub.store.records import RECORDS
from nnclr_hub.store.records import SCHEMA as RECORDS_FORMAT
from nnclr_hub.store.sqlite import connect as connect_to
from nnclr_hub.store.sqlite import open_files_limit, translated

log = logging.getLogger(__name__)
PIECE_BYTES = 16 << 20  # of the rows of a piece; the row that exceeds it is the last one
ROW_BYTES = 64  # of a row on top of its vector, metadata and thumbnail
LOG_CHANGES = 100_000  # of a piece of the log
LIVE_SHARE = 0.5  # a piece of which fewer rows are live is replaced
OPEN_TOGETHER = 32  # collections that are read at one moment; more would need too many open files
FILES_SHARE = 32  # of the files that the process may open, one such collection is read for so many
ROUNDS = 5  # in which pieces are copied ahead; each is shorter than the one before unless writes are faster
ATTEMPTS = 20


@dataclass(frozen=True)
class BackupReport:
    """The result of a backup.

    id: of the backup.
    collections, items: how many it contains.
    written: bytes that were copied.
    size: bytes of all its pieces, most of which older backups share.
    together: see `Backup`.
    removed: number of old backups that were removed.
    freed: bytes of pieces that were removed.
    """

    id: str
    collections: int
    items: int
    written: int
    size: int
    together: bool
    removed: int = 0
    freed: int = 0


def back_up(
    store: VectorStore,
    destination: str | Path,
    *,
    keep: int | None = None,
    verify: bool = False,
    progress: Progress = lambda done, total: None,
) -> BackupReport:
    """Add a backup of a store to those at the destination; only what is new is copied. The store may be written.

    Args:
        store: with a folder; it may be open read-only while another process writes to it.
        destination: a folder, or an address of fsspec such as s3://bucket/folder. It is new, empty, or has backups.
        keep: the number of backups to keep, at least 1; older ones are removed afterwards. None: all.
        verify: read the pieces that it shares with the backup before, and write damaged ones again.
        progress: called with (done, total), counted in rows to copy of the collections read so far.

    Raises:
        InvalidRequest: the store is not in a folder; the destination is inside of it, or has other files, or
            backups of another store; or `keep` is invalid.
        MissingDependency: the driver for the address is not installed.
        StoreLocked: another backup to the destination is running.
        DiskFull, StoreError: the destination cannot be written; older backups stay usable.
    """
    if not isinstance(store, EmbeddedStore):
        raise InvalidRequest("Only a store in a folder can be backed up; Milvus has its own backups (milvus-backup).")
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise InvalidRequest(f"keep must be a whole number from 1, got {keep!r}.")
    to = Destination(destination)
    to.refuse_unsuitable(store.folder)
    with to.locked():
        report = _added(store, to, verify, progress)
        if keep is None:
            return report
        try:
            removed, freed = prune(to, keep)
        except StoreError as error:
            raise type(error)(f"Backup {report.id} is complete, but older ones were not removed. {error}") from error
    return BackupReport(**{**asdict(report), "removed": removed, "freed": freed})


def _added(store: EmbeddedStore, to: Destination, verify: bool, progress: Progress) -> BackupReport:
    ids, own = to.ids(), read_id(store.folder)
    previous = to.first_sound(reversed(ids))
    to.refuse_other_store(previous, own)
    if verify and previous is not None:
        for piece in previous.pieces.values():
            if isinstance(problem := to.check_piece(piece), str):
                log.warning("%s", problem)
    copier = _Copier(to, previous, to.first_sound(ids), progress)
    collections, aliases, together = _collections(store, copier)
    records = copier.records(store.folder / RECORDS)
    # ascending even if the clock is set back; a name has microseconds, so the time must not have more
    now = max(time.time(), previous.at + 1e-5 if previous else 0.0, *(one.commit.at for one in collections))
    moment = datetime.fromtimestamp(now + 1e-6, UTC)
    reached("backup.pieces")
    backup = Backup(backup_id(moment), moment.timestamp(), together, tuple(collections), aliases, records, own)
    to.put(backup)
    reached("backup.done")
    items = sum(one.commit.items for one in collections)
    size = sum(piece.size for piece in backup.pieces.values())
    return BackupReport(backup.id, len(collections), items, copier.written, size, together)


# ------------------------------------------------------------------------------ reading the store


@dataclass(frozen=True)
class _View:
    """A collection in a read transaction."""

    name: str
    key: str
    path: Path
    connection: sqlite3.Connection
    commit: Commit


OpenView = Callable[[], AbstractContextManager[_View]]


def _collections(store: EmbeddedStore, copier: _Copier) -> tuple[list[CollectionBackup], dict[str, str], bool]:
    """Return the collections, the aliases, and whether all are as they were at one moment.

    If no collection has changed since its transaction began when the last one has begun, then there was such a moment.
    """
    for attempt in range(ATTEMPTS):
        files, aliases = store.files(), store.aliases()
        try:
            for name, path in files.items():
                copier.copy_ahead(path.stem, lambda name=name, path=path: _view(name, path))
            if len(files) > min(OPEN_TOGETHER, open_files_limit() // FILES_SHARE):
                found = []
                for name, path in files.items():
                    with _view(name, path) as view:
                        found.append(copier.collection(view))
                return found, aliases, False
            with ExitStack() as stack:
                views = [stack.enter_context(_view(name, path)) for name, path in files.items()]
                together = all(_is_current(view) for view in views)
                together = together and (store.files(), store.aliases()) == (files, aliases)
                if together or attempt == ATTEMPTS - 1:
                    return [copier.collection(view) for view in views], aliases, together
        except StoreError:
            if store.files() == files:  # otherwise a collection was dropped
                raise
    raise StoreError("Collections are created and dropped too often for a backup; repeat it later.")


@contextmanager
def _view(name: str, path: Path) -> Iterator[_View]:
    with closing(connect(path, read_only=True)) as connection, translated(path):
        connection.execute("BEGIN")
        yield _View(name, path.stem, path, connection, last_commit(connection))


def _is_current(view: _View) -> bool:
    with closing(connect(view.path, read_only=True)) as connection, translated(view.path):
        return last_commit(connection) == view.commit


# ------------------------------------------------------------------------------ copying


@dataclass
class _Copied:
    """The pieces of a collection at the destination.

    floor: the change after which its log is needed; None in its first backup.
    read_at: by the hash of a piece of rows, the change that it is up to.
    """

    floor: int | None
    rows: list[BackupRows] = field(default_factory=list)
    log: list[Log] = field(default_factory=list)
    read_at: dict[str, int] = field(default_factory=dict)


class _Copier:
    """Copies what a backup needs and the destination lacks.

    Args:
        destination: of the backup.
        previous: the backup whose pieces are shared, as far as they exist.
        oldest: the backup from which on commits can be restored.
        progress: see `back_up`.
    """

    def __init__(
        self, destination: Destination, previous: Backup | None, oldest: Backup | None, progress: Progress
    ) -> None:
        self._destination = destination
        self._existing = destination.pieces()
        self._previous, self._oldest = previous, oldest
        self._progress = progress
        self._copied: dict[str, _Copied] = {}  # by the key of the collection
        self._done = self._total = 0
        self.written = 0

    def copy_ahead(self, key: str, open_view: OpenView) -> None:
        """Copy pieces in short transactions, until little is left."""
        for _ in range(ROUNDS):
            if self._copy(key, open_view) <= 1:
                return

    def collection(self, view: _View) -> CollectionBackup:
        """Return a collection as the view has it, after the rest of it was copied."""
        self._copy(view.key, lambda: nullcontext(view))
        copied = self._copied[view.key]
        with translated(view.path):
            spec, live = read_spec(view.connection), self._put(packed(_live(view)))
        rows, changes = tuple(copied.rows), tuple(copied.log)
        return CollectionBackup(view.name, view.key, asdict(spec), view.commit, live, rows, changes)

    def records(self, path: Path) -> Piece | None:
        """Copy the file of jobs and probes."""
        if not path.is_file():
            return None
        with (
            translated(path),
            closing(connect_to(path, RECORDS_FORMAT, read_only=True)) as source,
            closing(sqlite3.connect(":memory:")) as copy,
        ):
            source.backup(copy)
            data = copy.serialize()
            # the header says that there is a write-ahead log, which a file in memory cannot have
            return self._put(data[:18] + b"\1\1" + data[20:])

    def _put(self, data: bytes) -> Piece:
        piece, written = self._destination.put_piece(data)
        self.written += written
        return piece

    def _copy(self, key: str, open_view: OpenView) -> int:
        """Copy rows and changes that the destination lacks; return in how many pieces."""
        with open_view() as view:
            copied = self._copied.setdefault(key, self._known(view))
            wanted = _missing_rows(view, copied)
            changes = _missing_changes(view, copied)
        self._total += sum(count for _, _, count in wanted)
        for first, last, count in wanted:
            with open_view() as view:
                rids, data = rows_piece(view.connection, first, last)
                at = view.commit.seq
            if len(rids):
                copied.rows.append(BackupRows(int(rids[0]), int(rids[-1]), len(rids), self._put(data)))
                copied.read_at[copied.rows[-1].piece.sha256] = at
            self._done += count
            self._progress(self._done, self._total)
        copied.rows.sort(key=lambda one: one.first)
        for after, to in changes:
            with open_view() as view:
                data = log_piece(view.connection, after, to) if log_start(view.connection) <= after else None
            if data is not None:
                copied.log.append(Log(after, to, self._put(data)))
        copied.log.sort(key=lambda one: one.after)
        return len(wanted) + len(changes)

    def _known(self, view: _View) -> _Copied:
        """Return what the backup before has of a collection, without missing and truncated pieces."""
        oldest = self._oldest.collection(view.key) if self._oldest else None
        previous = self._previous.collection(view.key) if self._previous else None
        if previous is None:
            return _Copied(None)
        rows = [one for one in previous.rows if self._exists(one.piece)]
        log = [one for one in previous.log if self._exists(one.piece)]
        read_at = {one.piece.sha256: previous.commit.seq for one in rows}
        if oldest is not None:
            log = [one for one in log if one.to > oldest.commit.seq]
            return _Copied(oldest.commit.seq, rows, log, read_at)
        return _Copied(log[0].after if log else previous.commit.seq, rows, log, read_at)

    def _exists(self, piece: Piece) -> bool:
        return self._existing.get(piece.sha256) == piece.size


def _live(view: _View) -> np.ndarray:
    rids = view.connection.execute("SELECT rid FROM items ORDER BY rid")
    return np.fromiter((rid for (rid,) in rids), np.int64)


def _missing_rows(view: _View, copied: _Copied) -> list[tuple[int, int, int]]:
    """Return first and last id and number of the rows of new pieces, and forget pieces that they replace."""
    live = _live(view)
    kept = [one for one in _unedited(view, copied) if _is_kept(one, live)]
    new = len(live) - int(np.searchsorted(live, kept[-1].last if kept else 0, "right"))
    # small pieces at the end are merged into the new one, if that at least doubles them: else each backup would add one
    while new and kept and kept[-1].count <= new and kept[-1].piece.size < PIECE_BYTES // 2:
        new += kept.pop().count
    copied.rows = kept
    ranges = np.array([(one.first, one.last) for one in kept], np.int64).reshape(-1, 2)
    before = np.searchsorted(ranges[:, 0], live, "right")  # how many kept pieces begin at or before each row
    covered = np.zeros(len(live), bool)
    if len(kept):
        covered = (before > 0) & (live <= ranges[np.maximum(before - 1, 0), 1])
    wanted, before = live[~covered], before[~covered]
    own = size_of(read_spec(view.connection)) + ROW_BYTES
    found = []
    for part in np.split(wanted, np.flatnonzero(np.diff(before)) + 1):  # a piece must not span a kept one
        if not len(part):
            continue
        sizes = view.connection.execute(
            "SELECT length(CAST(metadata AS BLOB)) + ifnull(length(jpeg), 0) FROM items LEFT JOIN thumbnails "
            "USING (rid) WHERE rid BETWEEN ? AND ? ORDER BY rid",
            [int(part[0]), int(part[-1])],
        )
        until = np.cumsum(np.fromiter((size for (size,) in sizes), np.int64, len(part)) + own)
        for some in np.split(part, np.flatnonzero(np.diff((until - 1) // PIECE_BYTES)) + 1):
            found.append((int(some[0]), int(some[-1]), len(some)))
    return found


def _unedited(view: _View, copied: _Copied) -> list[BackupRows]:
    """Return the pieces none of whose rows was edited since."""
    since = min(copied.read_at.values(), default=0)
    if log_start(view.connection) > since:  # nobody knows what was edited
        return []
    found = view.connection.execute(
        "SELECT rid, max(seq) FROM oplog WHERE seq > ? AND op = '=' GROUP BY rid ORDER BY rid", [since]
    )
    edits = np.array(found.fetchall(), np.int64).reshape(-1, 2)
    start = np.searchsorted(edits[:, 0], [one.first for one in copied.rows])
    stop = np.searchsorted(edits[:, 0], [one.last for one in copied.rows], "right")
    return [
        one
        for one, some in zip(copied.rows, map(slice, start, stop), strict=True)
        if edits[some, 1].max(initial=0) <= copied.read_at[one.piece.sha256]
    ]


def _is_kept(rows: BackupRows, live: np.ndarray) -> bool:
    """Return whether enough rows of a piece are live."""
    alive = np.searchsorted(live, rows.last, "right") - np.searchsorted(live, rows.first, "left")
    return bool(alive >= max(1, LIVE_SHARE * rows.count))


def _missing_changes(view: _View, copied: _Copied) -> list[tuple[int, int]]:
    """Return the ranges of new pieces of the log, and forget pieces that they replace."""
    if copied.floor is None:
        return []
    start = max(log_start(view.connection), copied.floor)
    new = view.commit.seq - max([start, *(one.to for one in copied.log)])
    while new > 0 and copied.log and (last := copied.log[-1]).after >= start and last.to - last.after <= new:
        if new + last.to - last.after > LOG_CHANGES:
            break
        new += last.to - last.after
        copied.log.pop()
    gaps, position = [], start
    for part in [*copied.log, None]:
        until = part.after if part else view.commit.seq
        gaps += [(after, min(after + LOG_CHANGES, until)) for after in range(position, until, LOG_CHANGES)]
        position = max(position, part.to if part else 0)
    return gaps
