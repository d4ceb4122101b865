"""Recovery of items from a damaged SQLite file into a new one.

Rows are read in ranges. A range that fails is halved, so a damaged page costs only the rows on it. A row is kept if its
checksum is right.
"""

from __future__ import annotations

import logging
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store.folder.rows import parse_object, row_crc, size_of
from nnclr_hub.store.folder.schema import Commit, connect, create_collection, insert_commit, read_spec
from nnclr_hub.store.items import Progress
from nnclr_hub.store.reports import SalvageReport
from nnclr_hub.store.sqlite import CommitRecord, remove_files, replace_damaged

log = logging.getLogger(__name__)
CHUNK = 64  # row ids
_ROWS = (
    "SELECT rid, id, metadata, items.crc, vector, vectors.crc, {} FROM items NOT INDEXED LEFT JOIN vectors USING (rid) "
)
_WHOLE = _ROWS.format("jpeg") + "LEFT JOIN thumbnails USING (rid) WHERE rid "
_WITHOUT_THUMBNAIL = _ROWS.format("NULL") + "WHERE rid "


def salvage(path: Path, lost: Path, progress: Progress = lambda done, total: None) -> SalvageReport:
    """Replace a damaged file by a new one with every intact item, and move the damaged file to the folder `lost`."""
    new = path.with_name(f"{path.stem}.salvage")
    remove_files(new)  # left by an interrupted attempt
    try:
        with closing(connect(path, read_only=True)) as old:
            spec = read_spec(old)
            with closing(connect(new, create=True)) as target:  # closing merges its log into the file
                name = _first(old, "SELECT value FROM meta WHERE key = 'name'")  # the root catalog has it as well
                create_collection(target, spec, name)
                saved, ids, suspected, thumbnails = _copy(old, target, size_of(spec), progress)
    except (sqlite3.DatabaseError, StoreCorrupt) as error:
        reason = error.__cause__ if isinstance(error.__cause__, sqlite3.Error) else error
        if reason is error and isinstance(error, StoreCorrupt):
            raise  # its message names the next step
        raise StoreCorrupt(
            f"{path} cannot be salvaged ({reason}); restore a backup, import an export, or index its images again."
        ) from error
    # the index snapshots stay: the new file lists none of them, so the next start moves them to lost+found
    kept = replace_damaged(path, new, lost)
    CommitRecord(path.with_suffix("") / "commit").remove()
    return SalvageReport(saved, tuple(ids), suspected, thumbnails, str(kept))


def _copy(
    old: sqlite3.Connection, target: sqlite3.Connection, size: int, progress: Progress
) -> tuple[int, list[str], int, int]:
    """Fill the new file; return the number of items saved, ids lost, rows suspected, and thumbnails lost."""
    ids, complete = _known_ids(old)
    last_change, total = _last_numbers(old, ids)
    saved, lost, suspected, thumbnails = 0, [], 0, 0
    for first in range(1, total + 1, CHUNK):
        last = min(first + CHUNK - 1, total)
        target.execute("BEGIN IMMEDIATE")
        for rid, row, whole in _read(old, first, last):
            known_id = ids.pop(rid, None)
            if row is not None and _keep(target, rid, row, size, known_id, whole):
                saved += 1
                thumbnails += not whole
            elif row is not None or known_id is not None:
                lost.append(known_id or f"row {rid}")
            else:
                suspected += not complete
        target.execute("COMMIT")
        progress(last, total)
    lost += ids.values()  # the index has them, and the table does not
    # Row ids and changes are never used again. Other processes reload everything, because the new file has no log.
    numbers = [(total, "items"), (last_change + 1, "oplog")]
    target.executemany("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", numbers)
    insert_commit(target, Commit(last_change + 1, time.time(), saved, total))
    return saved, lost, suspected, thumbnails


def _read(old: sqlite3.Connection, first: int, last: int) -> Iterator[tuple[int, tuple[Any, ...] | None, bool]]:
    """Yield row id and columns of the rows first ... last, None if it is unreadable; and whether it is complete."""
    # a range scan also reads the row after the last one, which may be on a damaged page
    where, numbers = ("= ?", [first]) if first == last else ("BETWEEN ? AND ?", [first, last])
    for statement in (_WHOLE, _WITHOUT_THUMBNAIL) if first == last else (_WHOLE,):
        try:
            found = old.execute(statement + where, numbers).fetchall()
        except sqlite3.DatabaseError:
            continue
        yield from ((row[0], row[1:], statement is _WHOLE) for row in found)
        return
    if first == last:
        yield first, None, False
    else:
        middle = (first + last) // 2
        yield from _read(old, first, middle)
        yield from _read(old, middle + 1, last)


def _keep(
    target: sqlite3.Connection, rid: int, row: tuple[Any, ...], size: int, known_id: str | None, whole: bool
) -> bool:
    """Write a row to the new file if it is intact; return whether it is."""
    id, metadata, crc, vector, vector_crc, jpeg = row
    if not isinstance(vector, bytes) or len(vector) != size or zlib.crc32(vector) != vector_crc:
        return False
    if not whole:  # the checksum covers the thumbnail
        if not isinstance(id, str) or known_id not in (None, id) or parse_object(metadata) is None:
            return False
        crc = row_crc(rid, id, metadata, vector_crc, None)
    elif not isinstance(jpeg, bytes | None) or row_crc(rid, id, metadata, vector_crc, jpeg) != crc:
        return False
    try:
        target.execute("INSERT INTO items VALUES (?, ?, ?, ?)", [rid, id, metadata, crc])
    except sqlite3.IntegrityError:  # a damaged page may show an item twice
        return False
    target.execute("INSERT INTO vectors VALUES (?, ?, ?)", [rid, vector, vector_crc])
    if jpeg is not None:
        target.execute("INSERT INTO thumbnails VALUES (?, ?)", [rid, jpeg])
    return True


def _known_ids(old: sqlite3.Connection) -> tuple[dict[int, str], bool]:
    """Return ids by row id from the index on ids, read from both ends as far as possible; and whether it is whole."""
    known: dict[int, str] = {}
    for order in ("ASC", "DESC"):
        try:
            for rid, id in old.execute(f"SELECT rid, CAST(id AS BLOB) FROM items ORDER BY id {order}"):
                if isinstance(id, bytes) and id.isascii():
                    known[rid] = id.decode()
            return known, order == "ASC"
        except sqlite3.DatabaseError as error:
            log.warning("the index on ids is only partly readable (%s)", error)
    return known, False


def _last_numbers(old: sqlite3.Connection, ids: dict[int, str]) -> tuple[int, int]:
    """Return the last change, and the highest row id: of the newest commit whose checksum is right, or estimates."""
    try:
        for row in old.execute("SELECT * FROM commits ORDER BY seq DESC"):
            if row == (commit := Commit(*row[:-1])).row:
                return commit.seq, commit.rid
    except sqlite3.DatabaseError as error:
        log.warning("the commits are unreadable (%s)", error)
    tables = ("vectors", "items NOT INDEXED", "thumbnails")
    highest = (_first(old, f"SELECT max(rid) FROM {table}") for table in tables)
    total = max([rid for rid in highest if isinstance(rid, int)] + list(ids), default=0)
    # each row may have been added and deleted
    return _first(old, "SELECT max(seq) FROM oplog") or 2 * total, total


def _first(old: sqlite3.Connection, statement: str) -> Any:
    try:
        row = old.execute(statement).fetchone()
    except sqlite3.DatabaseError:
        return None
    return row[0] if row else None
