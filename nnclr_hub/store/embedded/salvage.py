"""What can still be read of a damaged SQLite file, into a new one."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import zlib
from pathlib import Path

import numpy as np

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store.base import Progress
from nnclr_hub.store.embedded.catalog import connect, create_collection, fsync_folder, read_spec
from nnclr_hub.store.embedded.rows import stored_type

log = logging.getLogger(__name__)
CHUNK = 64
_ROW = (
    "SELECT rid, id, metadata, vector, crc, jpeg FROM items JOIN vectors USING (rid) LEFT JOIN thumbnails USING (rid) "
    "WHERE rid BETWEEN ? AND ?"
)


def salvage(path: Path, lost: Path, progress: Progress = lambda done, total: None) -> int:
    """Puts a new file with every item that can be read whole in the place of a damaged one, which moves to `lost`.

    Args:
        path: of a collection's SQLite file, open nowhere.
        lost: folder for the damaged file and its index snapshots.
        progress: called with (row ids looked at, row ids in all).

    Returns:
        How many items were saved.

    Raises:
        StoreCorrupt: not even the collection's specification can be read; nothing was changed.
    """
    new = path.with_name(f"{path.stem}.salvage")
    new.unlink(missing_ok=True)
    old: sqlite3.Connection | None = None
    try:
        old = connect(path)
        spec = read_spec(old)
        last = old.execute("SELECT seq FROM sqlite_sequence WHERE name = 'items'").fetchone()
        total = last[0] if last else 0
        target = connect(new, create=True)
        try:
            create_collection(target, spec)
            size = spec.dim * np.dtype(stored_type(spec)).itemsize
            saved = 0
            for start in range(1, total + 1, CHUNK):
                target.execute("BEGIN IMMEDIATE")
                for row in _readable(old, start, min(start + CHUNK - 1, total)):
                    saved += _keep(target, row, size)
                target.execute("COMMIT")
                progress(min(start + CHUNK - 1, total), total)
        finally:
            target.close()  # folds its log into the file
    except (sqlite3.DatabaseError, StoreCorrupt) as error:
        raise StoreCorrupt(
            f"{path} is damaged beyond reading ({error}): import the collection from an export, or index it anew."
        ) from error
    finally:
        if old is not None:
            old.close()
    _exchange(path, new, lost)
    return saved


def _readable(connection: sqlite3.Connection, first: int, last: int) -> list[tuple]:
    """Rows first ... last, without those that cannot be read."""
    try:
        return connection.execute(_ROW, [first, last]).fetchall()
    except sqlite3.DatabaseError as error:
        if first == last:
            log.warning("row %d cannot be read (%s)", first, error)
            return []
    middle = (first + last) // 2
    return _readable(connection, first, middle) + _readable(connection, middle + 1, last)


def _keep(target: sqlite3.Connection, row: tuple, size: int) -> bool:
    """Writes a row under its old number if it is whole and its id is new."""
    rid, id, metadata, vector, crc, jpeg = row
    if not isinstance(vector, bytes) or len(vector) != size or zlib.crc32(vector) != crc:
        return False
    try:
        target.execute("INSERT INTO items (rid, id, metadata) VALUES (?, ?, ?)", [rid, id, metadata])
    except sqlite3.IntegrityError:  # a damaged page may show an item twice
        return False
    target.execute("INSERT INTO vectors VALUES (?, ?, ?)", [rid, vector, crc])
    if jpeg is not None:
        target.execute("INSERT INTO thumbnails VALUES (?, ?)", [rid, jpeg])
    target.execute("INSERT INTO oplog (op, rid) VALUES ('+', ?)", [rid])
    return True


def _exchange(path: Path, new: Path, lost: Path) -> None:
    """The damaged file is whole in `lost` before it is touched, and there is a file under its name at any moment."""
    lost.mkdir(exist_ok=True)
    number = sum(1 for file in lost.iterdir() if file.name.startswith(f"{path.stem}-damaged"))
    beside = [Path(f"{path}{suffix}") for suffix in ("-wal", "-shm")]
    for file in (path, *beside):
        if file.exists():
            shutil.copy2(file, lost / file.name.replace(path.stem, f"{path.stem}-damaged{number}"))
    fsync_folder(lost)
    for file in beside:
        file.unlink(missing_ok=True)
    if path.with_suffix("").is_dir():
        shutil.move(path.with_suffix(""), lost / f"{path.stem}-damaged{number}-index")
    os.replace(new, path)
    fsync_folder(path.parent)
