"""Restore a backup, or the state at a commit between two backups, to a new store.

The state after commit S is that of the last backup before S, changed by the log up to S. Its rows are in that backup or
in the next one. A row that was both added and deleted between the two backups is in neither; a commit at which such a
row was live cannot be restored. In every case the rows are compared with the digest that the commit recorded.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from nnclr_hub.errors import CollectionNotFound, InvalidRequest, StoreCorrupt
from nnclr_hub.store.backup.description import Backup, BackupRows, CollectionBackup, Log, backup_id
from nnclr_hub.store.backup.destination import Destination
from nnclr_hub.store.backup.pieces import ROW_TABLES, opened_piece, unpacked
from nnclr_hub.store.base import Progress
from nnclr_hub.store.commit_record import CommitRecord
from nnclr_hub.store.embedded.catalog import connect, create_collection, create_root
from nnclr_hub.store.embedded.integrity import Commit, insert_commit, recounted
from nnclr_hub.store.embedded.names import CATALOG
from nnclr_hub.store.folder import write_id, written_whole
from nnclr_hub.store.records import RECORDS
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.sqlite import translated

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """The result of a restore.

    id: of the backup.
    collections: for each, the last change that it includes and its number of items.
    """

    id: str
    collections: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class _Plan:
    """What to restore of a collection: a backup of it, the next one if changes of it are needed, and the last change.

    The change is that of the backup if `later` is None.
    """

    base: CollectionBackup
    later: CollectionBackup | None = None
    seq: int | None = None
    at: float | None = None


def restore(
    source: str | Path,
    folder: Path,
    *,
    at: int | datetime | str | None = None,
    collection: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Restored:
    """Restore a backup to a new folder, which is completely on disk when this returns, or does not exist.

    Which collections exist, their names and aliases, jobs and probes are those of the last backup before `at`.

    Args:
        source: folder or address with backups.
        folder: must not exist.
        at: the number of a change of one collection, or a time; the last commit up to it is restored. The time or the
            id of a backup gives exactly that backup. A time without a zone is local. None: the newest backup.
        collection: restore only this one; None: all.
        progress: called with (done, total), counted in bytes.

    Raises:
        InvalidRequest: the folder exists, there is no backup, or none is old enough, or `at` is after the newest one,
            or that commit cannot be restored exactly, for example because the collection was dropped before the next
            backup; the message names the next ones that can.
        CollectionNotFound: the backup does not have the collection.
        StoreCorrupt: the backup is damaged; nothing was restored. Other damaged backups are skipped with a warning.
        DiskFull, StoreError: the folder cannot be written.
    """
    folder = Path(folder)
    if folder.exists() or folder.is_symlink():
        raise InvalidRequest(f"{folder} exists already; choose a new folder, because a restore overwrites nothing.")
    destination = Destination(source)
    ids = destination.ids()
    if not ids:
        raise InvalidRequest(f"{destination.address} has no backup; check the address.")
    backup, plans = _planned(destination, ids, at, collection)
    sizes = [rows.piece.size for plan in plans for rows in _rows(plan)]
    done, found = 0, {}

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress(done, sum(sizes))

    with written_whole(folder) as partial, translated(partial / CATALOG):
        (partial / "collections").mkdir()
        with closing(connect(partial / CATALOG, create=True)) as root:
            create_root(root)
            for plan in plans:
                # a new key: from here on, its row ids are not those of the original any more
                key = uuid.uuid4().hex
                commit = _restored(destination, plan, partial / "collections" / f"{key}.sqlite", advance)
                root.execute("INSERT INTO collections VALUES (?, ?)", [plan.base.name, key])
                found[plan.base.name] = (commit.seq, commit.items)
            root.executemany(
                "INSERT INTO aliases VALUES (?, ?)",
                [(alias, name) for alias, name in backup.aliases.items() if name in found],
            )
        write_id(partial, backup.store)
        if backup.records is not None:
            with (partial / RECORDS).open("wb") as file:
                file.write(destination.read_piece(backup.records))
                file.flush()
                os.fsync(file.fileno())
    return Restored(backup.id, found)


# ------------------------------------------------------------------------------ what to restore


def _planned(
    source: Destination, ids: list[str], at: int | datetime | str | None, collection: str | None
) -> tuple[Backup, list[_Plan]]:
    """Return the backup that decides what exists, and a plan for each collection."""
    if at is None or isinstance(at, str):
        backup = _sound(source, ids, ids[-1] if at is None else at)
        return backup, [_Plan(one) for one in _chosen(backup, collection)]
    if isinstance(at, datetime) and (id := backup_id(at)) in ids:
        return _planned(source, ids, id, collection)
    backups = _readable(source, ids)
    if not backups:
        raise StoreCorrupt(f"Every backup in {source.address} is damaged.")
    if isinstance(at, datetime):
        moment = at.timestamp()
        earlier = [one for one in backups if one.at <= moment]
        if not earlier:
            raise InvalidRequest(f"The oldest backup is of {_time(backups[0].at)}, which is after {_time(moment)}.")
        if moment >= backups[-1].at + 1.0:  # times are often given in whole seconds
            raise InvalidRequest(
                f"The newest backup is of {_time(backups[-1].at)}, so the state at {_time(moment)} is unknown. Restore "
                f"backup {backups[-1].id}, or the newest one by giving no time."
            )
        later = next((one for one in backups if one.at > moment), None)
        plans = []
        for one in _chosen(earlier[-1], collection):
            following = later.collection(one.key) if later else None
            if later and following is None:
                raise InvalidRequest(
                    f"{one.name!r} was dropped before the next backup, so its state at {_time(moment)} is unknown. "
                    f"Restore backup {earlier[-1].id}, which has it as after change {one.commit.seq} of "
                    f"{_time(one.commit.at)}, or other collections."
                )
            plans.append(_Plan(one, following, at=moment))
        return earlier[-1], plans
    [newest, *others] = _chosen(backups[-1], collection)
    if others:
        raise InvalidRequest("The number of a change belongs to one collection; name it, or give a time.")
    of_key = [(backup, one) for backup in backups if (one := backup.collection(newest.key)) is not None]
    earlier = [(backup, one) for backup, one in of_key if one.commit.seq <= at]
    if not earlier or at > newest.commit.seq:
        raise InvalidRequest(
            f"The backups of {newest.name!r} go from change {of_key[0][1].commit.seq} to {newest.commit.seq}; {at} is "
            "not among them."
        )
    backup, base = earlier[-1]
    later = next((one for _, one in of_key if one.commit.seq > at), None)
    return backup, [_Plan(base, later, seq=at)]


def _sound(source: Destination, ids: list[str], id: str) -> Backup:
    """Return a backup; if it is damaged, name the newest sound one."""
    if id not in ids:
        raise InvalidRequest(f"{source.address} has no backup {id!r}; the newest one is {ids[-1]}.")
    try:
        return source.read(id)
    except StoreCorrupt as error:
        if not (others := _readable(source, [one for one in ids if one != id])):
            raise
        raise StoreCorrupt(f"{error} The newest sound backup is {others[-1].id}.") from error


def _readable(source: Destination, ids: list[str]) -> list[Backup]:
    """Return the backups whose description is sound, oldest first."""
    found = []
    for id in ids:
        try:
            found.append(source.read(id))
        except StoreCorrupt as error:
            log.warning("a damaged backup is skipped (%s)", error)
    return found


def _chosen(backup: Backup, collection: str | None) -> list[CollectionBackup]:
    if collection is None:
        return list(backup.collections)
    name = backup.aliases.get(collection, collection)
    chosen = [one for one in backup.collections if one.name == name]
    if not chosen:
        existing = ", ".join(one.name for one in backup.collections) or "none"
        raise CollectionNotFound(f"The backup has no collection {collection!r}; it has {existing}.")
    return chosen


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _rows(plan: _Plan) -> list[BackupRows]:
    """Return the pieces that may contain the rows, each once."""
    pieces = [*plan.base.rows, *(plan.later.rows if plan.later else ())]
    return list({one.piece.sha256: one for one in pieces}.values())


# ------------------------------------------------------------------------------ one collection


def _restored(source: Destination, plan: _Plan, path: Path, advance: Callable[[int], None]) -> Commit:
    """Write a collection's file; return the commit that it is at."""
    commit, live, edited = _state(source, plan)
    current = {one.piece.sha256 for one in plan.later.rows} if plan.later else set()
    spec = CollectionSpec(**{**plan.base.spec, "indexed": tuple(plan.base.spec["indexed"])})
    with translated(path), closing(connect(path, create=True)) as target:
        create_collection(target, spec, plan.base.name)
        target.execute("CREATE TEMP TABLE live (rid INTEGER PRIMARY KEY)")
        target.executemany("INSERT INTO live VALUES (?)", ((rid,) for rid in live.tolist()))
        target.execute("CREATE TEMP TABLE edited (rid INTEGER PRIMARY KEY)")
        target.executemany("INSERT INTO edited VALUES (?)", ((rid,) for rid in sorted(edited)))
        for number, rows in enumerate(_rows(plan)):
            if len(live) and np.searchsorted(live, rows.first) < np.searchsorted(live, rows.last, "right"):
                # a row that was edited up to the commit is as the later backup has it
                before = plan.later is not None and rows.piece.sha256 not in current
                condition = "AND rid NOT IN (SELECT rid FROM edited)" * before
                _insert(target, source.read_piece(rows.piece), f"piece{number}", condition)
            advance(rows.piece.size)
        target.executemany(
            "UPDATE sqlite_sequence SET seq = ? WHERE name = ?", [(commit.rid, "items"), (commit.seq, "oplog")]
        )
        counted = recounted(target, commit)
        if (counted.items, counted.digest) != (commit.items, commit.digest):
            _refuse(source, plan, commit, counted)
        insert_commit(target, replace(commit, log=0))
    path.with_suffix("").mkdir()
    record = CommitRecord(path.with_suffix("") / "commit")
    record.write(commit.seq, commit.items, commit.digest)
    record.close()
    return commit


def _insert(target: sqlite3.Connection, data: bytes, name: str, condition: str) -> None:
    """Copy the live rows of a piece that meet a condition; a row may be in the pieces of both backups.

    Each piece is attached under another name: SQLite would run the statements that it has prepared for one piece on
    the pages of the next one.
    """
    target.execute(f"ATTACH ':memory:' AS {name}")
    target.deserialize(data, name=name)
    target.execute("BEGIN IMMEDIATE")
    columns = {"items": "rid, id, metadata, crc", "vectors": "rid, vector, crc", "thumbnails": "rid, jpeg"}
    for table in ROW_TABLES:
        target.execute(
            f"INSERT OR IGNORE INTO main.{table} ({columns[table]}) SELECT {columns[table]} FROM {name}.{table} "
            f"WHERE rid IN (SELECT rid FROM live) {condition}"
        )
    target.execute("COMMIT")
    target.execute(f"DETACH {name}")


def _state(source: Destination, plan: _Plan) -> tuple[Commit, np.ndarray, set[int]]:
    """Return the commit to restore, the row ids (n,) that were live then, and those edited since the first backup."""
    commit, live = plan.base.commit, unpacked(source.read_piece(plan.base.live))
    if plan.later is None:
        return commit, live, set()
    changes: list[tuple[int, str, int]] = []
    commits = [commit]
    expected = commit.seq
    for part in plan.later.log:
        if part.to <= commit.seq:
            continue
        if part.after > expected:
            raise InvalidRequest(
                f"The changes after {expected} of {plan.base.name!r} were not backed up; restore change {expected} or "
                f"{plan.later.commit.seq}."
            )
        expected = part.to
        some_changes, some_commits = _read_log(source, part)
        changes += some_changes
        commits += some_commits
    wanted = [
        one
        for one in commits
        if one.seq >= commit.seq and (one.seq <= plan.seq if plan.seq is not None else one.at <= (plan.at or 0.0))
    ]
    last = max(wanted, key=lambda one: one.seq, default=commit)
    added = {rid for seq, op, rid in changes if commit.seq < seq <= last.seq and op == "+"}
    deleted = {rid for seq, op, rid in changes if commit.seq < seq <= last.seq and op == "-"}
    edited = {rid for seq, op, rid in changes if commit.seq < seq <= last.seq and op == "="}
    return last, np.array(sorted({*live.tolist(), *added} - deleted), np.int64), edited


def _read_log(source: Destination, part: Log) -> tuple[list[tuple[int, str, int]], list[Commit]]:
    with opened_piece(source.read_piece(part.piece)) as connection:
        changes = connection.execute("SELECT seq, op, rid FROM oplog ORDER BY seq").fetchall()
        rows = connection.execute("SELECT seq, at, items, digest, rid, log FROM commits ORDER BY seq")
        return changes, [Commit(*row) for row in rows]


def _refuse(source: Destination, plan: _Plan, commit: Commit, counted: Commit) -> None:
    if plan.later is None or commit.seq == plan.base.commit.seq:
        raise StoreCorrupt(
            f"The backup of {plan.base.name!r} in {source.address} is damaged: it has {counted.items} rows of "
            f"{commit.items}, or others than those of change {commit.seq}. Use an older backup."
        )
    raise InvalidRequest(
        f"Change {commit.seq} of {plan.base.name!r} cannot be restored: some of its {commit.items} rows were edited, "
        "replaced or deleted before the next backup. "
        f"Restore change {plan.base.commit.seq} or {plan.later.commit.seq}, and make backups more often."
    )
