"""Recovery of items from a damaged SQLite file into a new one.

Each table is read separately and in ranges. A range that fails is halved, so a damaged page costs only the rows on it.
A row is kept if its checksum is right.
"""

from __future__ import annotations

import logging
import sqlite3
import time
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store.commit_record import CommitRecord
from nnclr_hub.store.folder.catalog import connect, create_collection, last_seq, read_spec
from nnclr_hub.store.folder.integrity import Commit, insert_commit, row_crc, sequence
from nnclr_hub.store.folder.rows import is_metadata, size_of
from nnclr_hub.store.items import Progress
from nnclr_hub.store.reports import SalvageReport
from nnclr_hub.store.sqlite import remove_files, replace_damaged

log = logging.getLogger(__name__)
CHUNK = 64
# a row id this many times above those of all other tables comes from damage
IMPLAUSIBLE = 16
_HIGHEST = (
    "SELECT seq FROM sqlite_sequence WHERE name = 'items'",
    "SELECT max(rid) FROM items NOT INDEXED",
    "SELECT max(rid) FROM vectors",
    "SELECT max(rid) FROM thumbnails",
    "SELECT max(rid) FROM oplog",
)
_LAST_CHANGE = (
    "SELECT seq FROM sqlite_sequence WHERE name = 'oplog'",
    "SELECT max(seq) FROM oplog",
    "SELECT max(seq) FROM commits",
)


def salvage(path: Path, lost: Path, progress: Progress = lambda done, total: None) -> SalvageReport:
    """Replace a damaged file by a new one with every intact item, and move the damaged file to the folder `lost`."""
    new = path.with_name(f"{path.stem}.salvage")
    remove_files(new)  # of an interrupted attempt
    try:
        with closing(connect(path, read_only=True)) as old:
            spec = read_spec(old)
            with closing(connect(new, create=True)) as target:  # closing merges its log into the file
                create_collection(target, spec, _name(old))
                saved, ids, suspected, thumbnails = _copy(old, target, size_of(spec), progress)
                insert_commit(target, Commit(last_seq(target), time.time(), saved, sequence(target, "items")))
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
    """Fill the new file; return the number of items saved, ids lost, rows suspected, and thumbnails lost.

    Args:
        size: bytes of a vector.
    """
    ids = _known_ids(old)
    total = _highest([*_numbers(old, _HIGHEST), *([max(ids)] if ids else [])])
    # row ids and changes are never reused. Other processes reload everything, because the new file has no log. If no
    # table shows the last change, each row may have been added and deleted
    last_change = max(_numbers(old, _LAST_CHANGE), default=2 * total)
    target.executemany(
        "UPDATE sqlite_sequence SET seq = ? WHERE name = ?", [(total, "items"), (last_change + 1, "oplog")]
    )
    saved, lost, suspected, thumbnails = 0, [], 0, 0
    for first in range(1, total + 1, CHUNK):
        last = min(first + CHUNK - 1, total)
        items, no_items = _read(old, "items", "id, metadata, crc", first, last)
        vectors, no_vectors = _read(old, "vectors", "vector, crc", first, last)
        jpegs, no_jpegs = _read(old, "thumbnails", "jpeg", first, last)
        target.execute("BEGIN IMMEDIATE")
        for rid in range(first, last + 1):
            whole = (*items.get(rid, ()), *vectors.get(rid, ()), *jpegs.get(rid, (None,)))
            if _is_intact(rid, whole, size, rid in no_jpegs, ids.get(rid)) and _keep(target, rid, whole):
                saved += 1
                thumbnails += rid in no_jpegs
            elif rid in items or rid in vectors or rid in jpegs or rid in ids:
                lost.append(ids.get(rid, f"row {rid}"))
            else:  # if one table is readable and does not have the row, it never existed
                suspected += rid in no_items and rid in no_vectors
        target.execute("COMMIT")
        progress(last, total)
    return saved, lost, suspected, thumbnails


def _read(
    old: sqlite3.Connection, table: str, columns: str, first: int, last: int
) -> tuple[dict[int, tuple[Any, ...]], set[int]]:
    """Return the rows first ... last by row id, and the row ids that cannot be read."""
    # a range scan also reads the row after the last one, which may be on a damaged page
    wanted, numbers = ("rid = ?", [first]) if first == last else ("rid BETWEEN ? AND ?", [first, last])
    try:
        rows = old.execute(f"SELECT rid, {columns} FROM {table} NOT INDEXED WHERE {wanted}", numbers).fetchall()
        return {row[0]: row[1:] for row in rows if first <= row[0] <= last}, set()
    except sqlite3.DatabaseError:
        if first == last:
            return {}, {first}
    middle = (first + last) // 2
    below, above = _read(old, table, columns, first, middle), _read(old, table, columns, middle + 1, last)
    return below[0] | above[0], below[1] | above[1]


def _is_intact(rid: int, row: tuple[Any, ...], size: int, no_jpeg: bool, known_id: str | None) -> bool:
    if len(row) < 6:  # the item or the vector is missing
        return False
    id, metadata, crc, vector, vector_crc, jpeg = row
    if not isinstance(vector, bytes) or len(vector) != size or zlib.crc32(vector) != vector_crc:
        return False
    if no_jpeg:  # which the checksum covers
        return isinstance(id, str) and known_id in (None, id) and is_metadata(metadata)
    return isinstance(jpeg, bytes | None) and row_crc(rid, id, metadata, vector_crc, jpeg) == crc


def _keep(target: sqlite3.Connection, rid: int, row: tuple[Any, ...]) -> bool:
    id, metadata, _, vector, vector_crc, jpeg = row
    try:
        crc = row_crc(rid, id, metadata, vector_crc, jpeg)
        target.execute("INSERT INTO items VALUES (?, ?, ?, ?)", [rid, id, metadata, crc])
    except sqlite3.IntegrityError:  # a damaged page may show an item twice
        return False
    target.execute("INSERT INTO vectors VALUES (?, ?, ?)", [rid, vector, vector_crc])
    if jpeg is not None:
        target.execute("INSERT INTO thumbnails VALUES (?, ?)", [rid, jpeg])
    return True


def _known_ids(old: sqlite3.Connection) -> dict[int, str]:
    """Return ids by row id from the index on ids, read from both ends as far as possible."""
    found: dict[int, str] = {}
    for order in ("ASC", "DESC"):
        try:
            for rid, id in old.execute(f"SELECT rid, CAST(id AS BLOB) FROM items ORDER BY id {order}"):
                if isinstance(id, bytes) and id.isascii():
                    found[rid] = id.decode()
            return found
        except sqlite3.DatabaseError as error:
            log.warning("the index on ids is only partly readable (%s)", error)
    return found


def _numbers(old: sqlite3.Connection, statements: tuple[str, ...]) -> list[int]:
    found = []
    for statement in statements:
        try:
            found += [number for (number,) in old.execute(statement) if isinstance(number, int)]
        except sqlite3.DatabaseError as error:
            log.warning("%s: %s", statement, error)
    return found


def _highest(numbers: list[int]) -> int:
    ascending = sorted(numbers)
    while len(ascending) > 1 and ascending[-1] > IMPLAUSIBLE * max(ascending[-2], CHUNK):
        ascending.pop()
    return ascending[-1] if ascending else 0


def _name(old: sqlite3.Connection) -> str | None:
    try:
        row = old.execute("SELECT value FROM meta WHERE key = 'name'").fetchone()
    except sqlite3.DatabaseError:
        return None  # the root catalog has it as well
    return row[0] if row else None
