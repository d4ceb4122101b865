"""Recovery of items from a damaged SQLite file into a new one.

Each table is read separately and in small pieces, so that a damaged page costs only the rows on it. Rows that one table
has and another has lost are counted as lost.
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
from nnclr_hub.store.commit_record import CommitRecord
from nnclr_hub.store.embedded.catalog import connect, create_collection, last_seq, read_spec
from nnclr_hub.store.embedded.integrity import Commit, insert_commit, row_crc, sequence
from nnclr_hub.store.embedded.rows import is_metadata, size_of
from nnclr_hub.store.items import Progress
from nnclr_hub.store.reports import SalvageReport
from nnclr_hub.store.spec import CollectionSpec
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


class DamagedFile:
    """The rows of a damaged file.

    Args:
        connection: to the file.
        spec: of the collection.
    """

    def __init__(self, connection: sqlite3.Connection, spec: CollectionSpec) -> None:
        self._connection = connection
        self._size = size_of(spec)
        self.ids = dict(self._id_index())
        self._unreadable: dict[str, set[int]] = {table: set() for table in ("items", "vectors", "thumbnails")}
        known = [*self._numbers(_HIGHEST), *([max(self.ids)] if self.ids else [])]
        self.total = _highest(known)
        self.thumbnails_lost = 0  # of the rows of the last call of `rows`
        # without a log, assume that each row was added and deleted
        self.last_change = max(self._numbers(_LAST_CHANGE), default=2 * self.total)

    def rows(self, first: int, last: int) -> tuple[dict[int, tuple[str, str, bytes, int, bytes | None]], set[int], int]:
        """Return what is intact of the rows first ... last.

        Returns:
            id, metadata, vector, checksum and thumbnail of intact rows, by row id; the row ids that existed and are
            damaged; and how many others may have existed.
        """
        items = self._read("items", "id, metadata", first, last)
        vectors = self._read("vectors", "vector, crc", first, last)
        thumbnails = self._read("thumbnails", "jpeg", first, last)
        intact = {
            rid: (*item, *vectors[rid], thumbnails.get(rid, (None,))[0])
            for rid, item in items.items()
            if rid in vectors and self._is_intact(rid, *item, *vectors[rid])
        }
        known = {*items, *vectors, *thumbnails, *(rid for rid in range(first, last + 1) if rid in self.ids)}
        # if one table is readable and does not have the row, it never existed
        suspected = (self._unreadable["items"] & self._unreadable["vectors"]) - known
        self.thumbnails_lost = len(self._unreadable["thumbnails"] & intact.keys())
        for numbers in self._unreadable.values():
            numbers.clear()
        return intact, known - intact.keys(), len(suspected)

    def _is_intact(self, rid: int, id: Any, metadata: Any, vector: Any, crc: Any) -> bool:
        if not isinstance(vector, bytes) or len(vector) != self._size or zlib.crc32(vector) != crc:
            return False
        if not isinstance(id, str) or self.ids.get(rid, id) != id:
            return False
        return is_metadata(metadata)

    def _read(self, table: str, columns: str, first: int, last: int) -> dict[int, tuple[Any, ...]]:
        """Return rows first ... last by row id, without those that cannot be read."""
        # a range scan also reads the row after the last one, which may be on a damaged page
        wanted, numbers = ("rid = ?", [first]) if first == last else ("rid BETWEEN ? AND ?", [first, last])
        try:
            rows = self._connection.execute(f"SELECT rid, {columns} FROM {table} NOT INDEXED WHERE {wanted}", numbers)
            return {row[0]: row[1:] for row in rows.fetchall() if first <= row[0] <= last}
        except sqlite3.DatabaseError as error:
            if first == last:
                log.debug("row %d of %s cannot be read (%s)", first, table, error)
                self._unreadable[table].add(first)
                return {}
        middle = (first + last) // 2
        return self._read(table, columns, first, middle) | self._read(table, columns, middle + 1, last)

    def _id_index(self) -> Iterator[tuple[int, str]]:
        for order in ("ASC", "DESC"):
            try:
                for rid, id in self._connection.execute(f"SELECT rid, CAST(id AS BLOB) FROM items ORDER BY id {order}"):
                    if isinstance(id, bytes) and id.isascii():
                        yield rid, id.decode()
                return
            except sqlite3.DatabaseError as error:
                log.warning("the index on ids is only partly readable (%s)", error)

    def _numbers(self, statements: tuple[str, ...]) -> list[int]:
        found = []
        for statement in statements:
            try:
                found += [number for (number,) in self._connection.execute(statement) if isinstance(number, int)]
            except sqlite3.DatabaseError as error:
                log.warning("%s: %s", statement, error)
        return found


def _highest(numbers: list[int]) -> int:
    ascending = sorted(numbers)
    while len(ascending) > 1 and ascending[-1] > IMPLAUSIBLE * max(ascending[-2], CHUNK):
        ascending.pop()
    return ascending[-1] if ascending else 0


def salvage(path: Path, lost: Path, progress: Progress = lambda done, total: None) -> SalvageReport:
    """Replace a damaged file by a new one with every intact item, and move the damaged file to `lost`.

    Args:
        path: of a collection's SQLite file, which nothing has open.
        lost: folder for the damaged file.
        progress: called with (row ids checked, row ids in all).
    """
    new = path.with_name(f"{path.stem}.salvage")
    remove_files(new)  # of an interrupted attempt
    try:
        with closing(connect(path, read_only=True)) as old:
            spec = read_spec(old)
            source = DamagedFile(old, spec)
            with closing(connect(new, create=True)) as target:  # closing merges its log into the file
                create_collection(target, spec, _name(old))
                saved, lost_rows, suspected, thumbnails = _copy(source, target, progress)
                insert_commit(target, Commit(last_seq(target), time.time(), saved, sequence(target, "items")))
    except (sqlite3.DatabaseError, StoreCorrupt) as error:
        reason = error.__cause__ if isinstance(error.__cause__, sqlite3.Error) else error
        if reason is error and isinstance(error, StoreCorrupt):
            raise  # its message names the next step
        raise StoreCorrupt(
            f"{path} cannot be salvaged ({reason}); import the collection from an export, or index its images again."
        ) from error
    # the index snapshots stay: the new file lists none of them, so the next start moves them to lost+found
    kept = replace_damaged(path, new, lost)
    CommitRecord(path.with_suffix("") / "commit").remove()
    ids = tuple(source.ids.get(rid, f"row {rid}") for rid in lost_rows)
    return SalvageReport(saved, ids, suspected, thumbnails, str(kept))


def _copy(source: DamagedFile, target: sqlite3.Connection, progress: Progress) -> tuple[int, list[int], int, int]:
    """Fill the new file; return rows saved, ids of rows lost, how many more may be lost, and thumbnails lost."""
    saved, lost, suspected, thumbnails = 0, [], 0, 0
    # row ids and changes are never reused; without a log of changes, other processes reload everything
    target.executemany(
        "UPDATE sqlite_sequence SET seq = ? WHERE name = ?",
        [(source.total, "items"), (source.last_change + 1, "oplog")],
    )
    for start in range(1, source.total + 1, CHUNK):
        intact, missing, perhaps = source.rows(start, min(start + CHUNK - 1, source.total))
        target.execute("BEGIN IMMEDIATE")
        for rid, row in intact.items():
            if _keep(target, rid, row):
                saved += 1
            else:
                missing.add(rid)
        target.execute("COMMIT")
        lost += sorted(missing)
        suspected += perhaps
        thumbnails += source.thumbnails_lost
        progress(min(start + CHUNK - 1, source.total), source.total)
    return saved, lost, suspected, thumbnails


def _keep(target: sqlite3.Connection, rid: int, row: tuple[str, str, bytes, int, bytes | None]) -> bool:
    id, metadata, vector, crc, jpeg = row
    try:
        sum_ = row_crc(rid, id, metadata, crc, jpeg if isinstance(jpeg, bytes) else None)
        target.execute("INSERT INTO items VALUES (?, ?, ?, ?)", [rid, id, metadata, sum_])
    except sqlite3.IntegrityError:
        return False
    target.execute("INSERT INTO vectors VALUES (?, ?, ?)", [rid, vector, crc])
    if isinstance(jpeg, bytes):
        target.execute("INSERT INTO thumbnails VALUES (?, ?)", [rid, jpeg])
    return True


def _name(old: sqlite3.Connection) -> str | None:
    try:
        row = old.execute("SELECT value FROM meta WHERE key = 'name'").fetchone()
    except sqlite3.DatabaseError:
        return None  # the root catalog has it as well
    return row[0] if row else None
