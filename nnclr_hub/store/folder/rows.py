"""Conversion between items and the rows of a collection's tables."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.folder.catalog import without_indexes
from nnclr_hub.store.folder.integrity import row_crc, sequence
from nnclr_hub.store.items import Item
from nnclr_hub.store.spec import CollectionSpec

# parameters per statement, below SQLite's limit
MAX_IN = 10_000
PARSED = 64  # metadata that are parsed in one call, which keeps all other threads waiting
BATCH = 10_000
Matched = tuple[str, dict[str, Any], bytes | None]  # id, metadata, vector
Row = tuple[int, str, str, bytes | None, bytes | None]  # row id, id, JSON of the metadata, vector, thumbnail
_HINT = "remove it with `nnclr store repair COLLECTION`, then index it again"


@dataclass
class Changes:
    """What a request changed: row ids deleted and added, and the vectors of the added ones."""

    deleted: list[int] = field(default_factory=list)
    added: list[np.ndarray] = field(default_factory=list)
    vectors: list[np.ndarray] = field(default_factory=list)

    @property
    def difference(self) -> int:
        """By how much the number of items changed."""
        return sum(map(len, self.added)) - len(self.deleted)


# ------------------------------------------------------------------------------ writing


def write_items(
    connection: sqlite3.Connection,
    changes: Changes,
    items: Sequence[Item],
    metadata: Sequence[str],
    vectors: np.ndarray,
    spec: CollectionSpec,
) -> None:
    """Write items with distinct ids under new row ids, replacing those with the same ids.

    Args:
        connection: in a transaction.
        changes: extended by what was written.
        items: with distinct ids.
        metadata: their JSON.
        vectors: (n, D) float32, as the collection compares them.
        spec: of the collection.
    """
    ids = [item.id for item in items]
    thumbnails = [item.thumbnail for item in items]
    delete_items(connection, changes, ids)
    first = sequence(connection, "items") + 1
    rids = range(first, first + len(items))
    stored = np.ascontiguousarray(vectors, stored_type(spec))
    blobs = stored.view(f"V{size_of(spec)}").ravel().tolist()
    vector_crcs = list(map(zlib.crc32, blobs))
    crcs = list(map(row_crc, rids, ids, metadata, vector_crcs, thumbnails))
    _insert(connection, "items", 50, rids, ids, metadata, crcs)
    _insert(connection, "vectors", 250, rids, blobs, vector_crcs)
    with_thumbnail = [(rid, jpeg) for rid, jpeg in zip(rids, thumbnails, strict=True) if jpeg is not None]
    connection.executemany("INSERT INTO thumbnails VALUES (?, ?)", with_thumbnail)
    connection.execute(
        "INSERT OR FAIL INTO oplog (op, rid, id) SELECT '+', rid, id FROM items WHERE rid >= ? ORDER BY rid", [first]
    )
    changes.added.append(np.arange(first, first + len(items)))
    changes.vectors.append(stored.astype(np.float32, copy=False))


def _insert(connection: sqlite3.Connection, table: str, together: int, *columns: Sequence[Any]) -> None:
    """Insert rows, given by their columns, `together` at a time, which takes half the CPU time of one by one.

    The writer undoes the whole request if a row fails. With OR FAIL, SQLite need not prepare for undoing one statement,
    for which it would write each page that changes to a temporary file. It does so for tables with foreign keys anyway.
    """
    width, rows = len(columns), len(columns[0])
    values: list[Any] = [None] * (width * rows)
    for place, column in enumerate(columns):
        values[place::width] = column
    row = f"({','.join('?' * width)})"
    statement = f"INSERT OR FAIL INTO {table} VALUES {row}"
    several = ",".join([statement, *[row] * (together - 1)])
    size = width * together
    whole = len(values) - len(values) % size
    for start in range(0, whole, size):
        connection.execute(several, values[start : start + size])
    connection.executemany(statement, zip(*[iter(values[whole:])] * width, strict=True))


def delete_items(connection: sqlite3.Connection, changes: Changes, ids: Sequence[str]) -> int:
    """Delete the items with these ids that exist; return how many."""
    found: list[tuple[int, str]] = []
    for start in range(0, len(ids), MAX_IN):
        some = ids[start : start + MAX_IN]
        statement = f"SELECT rid, id FROM items WHERE id IN ({_placeholders(some)})"
        found += connection.execute(statement, some).fetchall()
    if found:
        connection.executemany("DELETE FROM items WHERE rid = ?", ((rid,) for rid, _ in found))
        _log_deleted(connection, changes, found)
    return len(found)


def edit_items(connection: sqlite3.Connection, edits: Sequence[tuple[int, str]]) -> None:
    """Replace the JSON of the metadata of rows (row id, text) that exist; vectors and thumbnails stay."""
    for start in range(0, len(edits), MAX_IN):
        texts = dict(edits[start : start + MAX_IN])
        rows = connection.execute(
            "SELECT rid, id, vectors.crc, jpeg FROM items JOIN vectors USING (rid) LEFT JOIN thumbnails USING (rid) "
            f"WHERE rid IN ({_placeholders(texts)}) ORDER BY rid",
            list(texts),
        ).fetchall()
        edited = [(texts[rid], row_crc(rid, id, texts[rid], vector, jpeg), rid) for rid, id, vector, jpeg in rows]
        connection.executemany("UPDATE items SET metadata = ?, crc = ? WHERE rid = ?", edited)
        connection.executemany("INSERT INTO oplog (op, rid, id) VALUES ('=', ?, ?)", (row[:2] for row in rows))


def _log_deleted(connection: sqlite3.Connection, changes: Changes, rows: Sequence[tuple[int, str]]) -> None:
    """Record the deletion of rows (row id, id)."""
    connection.executemany("INSERT INTO oplog (op, rid, id) VALUES ('-', ?, ?)", rows)
    changes.deleted += [rid for rid, _ in rows]


def delete_rows(connection: sqlite3.Connection, changes: Changes, rids: Sequence[int]) -> list[int]:
    """Delete rows by their ids, whatever they contain; return those that still existed."""
    ids = {rid: _readable_id(connection, rid) for rid in rids}
    with without_indexes(connection):  # SQLite cannot remove metadata that are not JSON from an index on them
        deleted = [rid for rid in rids if connection.execute("DELETE FROM items WHERE rid = ?", [rid]).rowcount]
    _log_deleted(connection, changes, [(rid, ids[rid]) for rid in deleted])
    return deleted


def _readable_id(connection: sqlite3.Connection, rid: int) -> str:
    """Return the id of a row that may be damaged; "" if it is not text."""
    row = connection.execute("SELECT CAST(id AS BLOB) FROM items WHERE rid = ?", [rid]).fetchone()
    return row[0].decode(errors="replace") if row else ""


# ------------------------------------------------------------------------------ reading


def matched_rows(
    connection: sqlite3.Connection, rids: Sequence[int], spec: CollectionSpec | None
) -> dict[int, Matched]:
    """Look rows up in the catalog, which decides what exists; with their vectors if `spec` says how to read them.

    Raises:
        StoreCorrupt: a row is damaged.
    """
    found: list[tuple[int, str, str, bytes | None]] = []
    for start in range(0, len(rids), MAX_IN):
        some = rids[start : start + MAX_IN]
        rows = checked_rows(connection, f"rid IN ({_placeholders(some)})", some, vectors=spec is not None)
        found += [row[:4] for row in rows]  # without thumbnails, which only the checksum needs
    metadata = parse_metadata([row[1:3] for row in found])
    return {row[0]: (row[1], about, row[3]) for row, about in zip(found, metadata, strict=True)}


def checked_rows(
    connection: sqlite3.Connection, chosen: str, parameters: Sequence[Any], *, vectors: bool = True
) -> Iterator[Row]:
    """Yield rows after their checksums were compared.

    Args:
        connection: in a read transaction.
        chosen: SQL after WHERE.
        parameters: of it.
        vectors: read the vectors, too.

    Raises:
        StoreCorrupt: a row is damaged.
    """
    statement = (
        f"SELECT rid, id, metadata, {'vector' if vectors else 'NULL'}, jpeg, items.crc, vectors.crc FROM items "
        f"LEFT JOIN vectors USING (rid) LEFT JOIN thumbnails USING (rid) WHERE {chosen}"
    )
    for rid, id, metadata, vector, jpeg, crc, vector_crc in connection.execute(statement, parameters):
        if row_crc(rid, id, metadata, vector_crc, jpeg) != crc or (
            vector is not None and zlib.crc32(vector) != vector_crc
        ):
            raise StoreCorrupt(f"Item {id!r} is damaged (it fails its checksum); {_HINT}.")
        yield rid, id, metadata, vector, jpeg


def rows_by_id(connection: sqlite3.Connection, ids: Sequence[str]) -> list[tuple[int, str, str]]:
    """Return row id, id and JSON of the metadata of the items with these ids that exist."""
    found: list[tuple[int, str, str]] = []
    for start in range(0, len(ids), MAX_IN):
        some = ids[start : start + MAX_IN]
        statement = f"SELECT rid, id, metadata FROM items WHERE id IN ({_placeholders(some)})"
        found += connection.execute(statement, some).fetchall()
    return found


def items_with(connection: sqlite3.Connection, ids: Sequence[str], spec: CollectionSpec) -> dict[str, Item]:
    """Return the items with these ids that exist, with thumbnails, by id.

    Raises:
        StoreCorrupt: the metadata or the vector of one is damaged.
    """
    found: dict[str, Item] = {}
    for start in range(0, len(ids), MAX_IN):
        some = ids[start : start + MAX_IN]
        rows = checked_rows(connection, f"id IN ({_placeholders(some)})", some)
        found |= {row[1]: to_item(row, spec) for row in rows}
    return found


def to_item(row: Row, spec: CollectionSpec, *, thumbnail: bool = True) -> Item:
    """Return an item from a row.

    Raises:
        StoreCorrupt: the metadata or the vector is damaged.
    """
    _, id, metadata, blob, jpeg = row
    vector = np.zeros(0, np.float32) if blob is None else to_vector(id, blob, spec)
    return Item(id, vector, parse_metadata([(id, metadata)])[0], jpeg if thumbnail else None)


def to_vector(id: str, blob: bytes, spec: CollectionSpec | None) -> np.ndarray:
    """Return a vector (D,) float32 from its bytes.

    Raises:
        StoreCorrupt: the number of bytes is wrong.
    """
    assert spec is not None
    if len(blob) != size_of(spec):
        raise StoreCorrupt(f"The vector of item {id!r} is damaged ({len(blob)} bytes, not {size_of(spec)}); {_HINT}.")
    return np.frombuffer(blob, stored_type(spec)).astype(np.float32)


def is_metadata(text: object) -> bool:
    """Return whether it is the JSON of an object."""
    try:
        return isinstance(json.loads(text), dict)  # pyright: ignore[reportArgumentType] - which is a TypeError
    except (TypeError, ValueError):
        return False


def parse_metadata(found: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Parse the metadata of pairs (id, JSON).

    Raises:
        StoreCorrupt: an item's metadata is not JSON; the message names it.
    """
    metadata: list[dict[str, Any]] = []
    for start in range(0, len(found), PARSED):
        check_cancelled()
        metadata += _parsed_together(found[start : start + PARSED])
    return metadata


def _parsed_together(found: list[tuple[str, str]]) -> list[dict[str, Any]]:
    try:
        metadata = json.loads(f"[{','.join([text for _, text in found])}]")  # much faster than one by one
        if len(metadata) == len(found) and all(type(one) is dict for one in metadata):
            return metadata
    except (TypeError, ValueError):
        pass  # the loop below finds which one is not JSON
    for id, text in found:
        if not is_metadata(text):
            raise StoreCorrupt(f"The metadata of item {id!r} is damaged; {_HINT}.")
    return [json.loads(text) for _, text in found]


def fetch_vectors(connection: sqlite3.Connection, spec: CollectionSpec, rids: np.ndarray) -> np.ndarray:
    """Return vectors (n, D) float32 of rows (n,) int64; NaN for rows that do not exist or have the wrong size."""
    found = np.full((len(rids), spec.dim), np.nan, np.float32)
    size = size_of(spec)
    order = np.argsort(rids, kind="stable")
    ascending = rids[order]
    for start in range(0, len(rids), MAX_IN):
        some = ascending[start : start + MAX_IN].tolist()
        rows = connection.execute(
            f"SELECT rid, vector FROM vectors WHERE rid IN ({_placeholders(some)}) ORDER BY rid", some
        )
        for rid, blob in rows:
            if len(blob) == size:
                found[order[np.searchsorted(ascending, rid)]] = np.frombuffer(blob, stored_type(spec))
    return found


def all_vectors(connection: sqlite3.Connection, spec: CollectionSpec) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield all vectors of the right size in batches, ascending: row ids (n,) int64 and vectors (n, D) float32."""
    size = size_of(spec)
    cursor = connection.execute("SELECT rid, vector FROM vectors WHERE length(vector) = ? ORDER BY rid", [size])
    while rows := cursor.fetchmany(BATCH):
        data = b"".join(blob for _, blob in rows)
        vectors = np.frombuffer(data, stored_type(spec)).reshape(len(rows), spec.dim).astype(np.float32)
        yield np.fromiter((rid for rid, _ in rows), np.int64, len(rows)), vectors


def id_of(connection: sqlite3.Connection, rid: int) -> str:
    """Return the id of a row, or its number if it does not exist."""
    row = connection.execute("SELECT id FROM items WHERE rid = ?", [rid]).fetchone()
    return row[0] if row else f"row {rid}"


def stored_type(spec: CollectionSpec) -> str:
    """Return the numpy type in which vectors are stored."""
    return "<f4" if spec.precision == "f32" else "<f2"


def size_of(spec: CollectionSpec) -> int:
    """Return the size of a stored vector in bytes."""
    return spec.dim * np.dtype(stored_type(spec)).itemsize


def _placeholders(values: Sized) -> str:
    return ",".join("?" * len(values))
