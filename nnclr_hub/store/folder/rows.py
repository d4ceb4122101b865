"""Items as rows of a collection's tables, and the numbers of changes."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.checks import MAX_LENGTH
from nnclr_hub.store.folder.schema import without_indexes
from nnclr_hub.store.items import Item
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.sqlite import sequence

ONE_OF = "IN (SELECT value FROM json_each(?))"  # whose parameter is `json.dumps` of a list
PARSED = 64  # metadata that are parsed in one call, which keeps all other threads waiting
LONGEST_UNIT = 1.01  # of vectors with metric cosine, which are normalized; f16 rounds
DENSE = 2  # row ids that are so many times fewer than the range they are in are read as a range
Row = tuple[int, str, str, bytes | None, bytes | None]  # row id, id, JSON of the metadata, vector, thumbnail
_HINT = "remove it with `nnclr store repair COLLECTION`, then index it again"


@dataclass
class Changes:
    """What a transaction changes: row ids deleted and added, and the vectors of the added ones."""

    deleted: list[int] = field(default_factory=list)
    added: list[np.ndarray] = field(default_factory=list)
    vectors: list[np.ndarray] = field(default_factory=list)

    @property
    def difference(self) -> int:
        """By how much the number of items changes."""
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
    """Write items with distinct ids, their JSON and vectors (n, D), under new row ids; replace those with these ids."""
    ids = [item.id for item in items]
    thumbnails = [item.thumbnail for item in items]
    before = find_rows(connection, f"id {ONE_OF}", [json.dumps(ids)])
    delete_rows(connection, changes, [row[:2] for row in before])
    first = sequence(connection, "items") + 1
    rids = range(first, first + len(items))
    stored = np.ascontiguousarray(vectors, stored_type(spec))
    blobs = stored.view(f"V{size_of(spec)}").ravel().tolist()
    vector_crcs = list(map(zlib.crc32, blobs))
    crcs = list(map(row_crc, rids, ids, metadata, vector_crcs, thumbnails))
    connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", zip(rids, ids, metadata, crcs, strict=True))
    connection.executemany("INSERT INTO vectors VALUES (?, ?, ?)", zip(rids, blobs, vector_crcs, strict=True))
    with_thumbnail = [(rid, jpeg) for rid, jpeg in zip(rids, thumbnails, strict=True) if jpeg is not None]
    connection.executemany("INSERT INTO thumbnails VALUES (?, ?)", with_thumbnail)
    # One statement takes a third of the time. The writer undoes the whole request if a row fails: with OR FAIL, SQLite
    # need not prepare for undoing the statement, for which it would copy each page that changes to a temporary file.
    connection.execute(
        "INSERT OR FAIL INTO oplog (op, rid, id) SELECT '+', rid, id FROM items WHERE rid >= ? ORDER BY rid", [first]
    )
    changes.added.append(np.arange(first, first + len(items)))
    changes.vectors.append(stored.astype(np.float32, copy=False))


def delete_rows(connection: sqlite3.Connection, changes: Changes, rows: Sequence[tuple[int, str]]) -> int:
    """Delete rows (row id, id) that exist; return how many."""
    if rows:  # one by one: for many in one statement, SQLite copies each page that changes to a temporary file
        connection.executemany("DELETE FROM items WHERE rid = ?", ((rid,) for rid, _ in rows))
        connection.executemany("INSERT INTO oplog (op, rid, id) VALUES ('-', ?, ?)", rows)
        changes.deleted += [rid for rid, _ in rows]
    return len(rows)


def delete_damaged(connection: sqlite3.Connection, changes: Changes, rids: Sequence[int]) -> set[int]:
    """Delete rows whatever they contain; return those that still existed."""
    statement = f"SELECT rid, CAST(id AS BLOB) FROM items NOT INDEXED WHERE rid {ONE_OF}"
    rows = [(rid, id.decode(errors="replace")) for rid, id in connection.execute(statement, [json.dumps(rids)])]
    with without_indexes(connection):  # SQLite cannot remove metadata that are not JSON from an index on them
        delete_rows(connection, changes, rows)
    return {rid for rid, _ in rows}


def edit_items(connection: sqlite3.Connection, texts: dict[int, str]) -> None:
    """Replace the JSON of the metadata of rows, by row id, that exist; vectors and thumbnails stay."""
    rows = connection.execute(
        "SELECT rid, id, vectors.crc, jpeg FROM items JOIN vectors USING (rid) LEFT JOIN thumbnails USING (rid) "
        f"WHERE rid {ONE_OF} ORDER BY rid",
        [json.dumps(list(texts))],
    ).fetchall()
    edited = [(texts[rid], row_crc(rid, id, texts[rid], vector, jpeg), rid) for rid, id, vector, jpeg in rows]
    connection.executemany("UPDATE items SET metadata = ?, crc = ? WHERE rid = ?", edited)
    connection.executemany("INSERT INTO oplog (op, rid, id) VALUES ('=', ?, ?)", (row[:2] for row in rows))


# ------------------------------------------------------------------------------ reading


def read_rows(
    connection: sqlite3.Connection, condition: str, parameters: Sequence[Any], *, vectors: bool = True
) -> Iterator[Row]:
    """Yield rows that meet an SQL condition, with or without vectors, after their checksums were compared."""
    statement = (
        f"SELECT rid, id, metadata, {'vector' if vectors else 'NULL'}, jpeg, items.crc, vectors.crc FROM items "
        f"LEFT JOIN vectors USING (rid) LEFT JOIN thumbnails USING (rid) WHERE {condition}"
    )
    for rid, id, metadata, vector, jpeg, crc, vector_crc in connection.execute(statement, parameters):
        if row_crc(rid, id, metadata, vector_crc, jpeg) != crc or (
            vector is not None and zlib.crc32(vector) != vector_crc
        ):
            raise StoreCorrupt(f"Item {id!r} is damaged (it fails its checksum); {_HINT}.")
        yield rid, id, metadata, vector, jpeg


def find_rows(connection: sqlite3.Connection, condition: str, parameters: Sequence[Any]) -> list[tuple[int, str, str]]:
    """Return row id, id and JSON of the metadata of the items that meet an SQL condition."""
    return connection.execute(f"SELECT rid, id, metadata FROM items WHERE {condition}", parameters).fetchall()


def to_items(rows: Sequence[Row], spec: CollectionSpec, *, thumbnails: bool = True) -> list[Item]:
    """Return items from rows."""
    metadata = parse_metadata([row[1:3] for row in rows])
    items = []
    for (_, id, _, blob, jpeg), values in zip(rows, metadata, strict=True):
        vector = np.zeros(0, np.float32) if blob is None else to_vector(id, blob, spec)
        items.append(Item(id, vector, values, jpeg if thumbnails else None))
    return items


def to_vector(id: str, blob: bytes, spec: CollectionSpec) -> np.ndarray:
    """Return a vector (D,) float32 from its bytes."""
    if len(blob) != size_of(spec):
        raise StoreCorrupt(f"The vector of item {id!r} is damaged ({len(blob)} bytes, not {size_of(spec)}); {_HINT}.")
    return np.frombuffer(blob, stored_type(spec)).astype(np.float32)


def parse_object(text: object) -> dict[str, Any] | None:
    """Return the object of a JSON text; None if it is something else."""
    try:
        value = orjson.loads(text)  # pyright: ignore[reportArgumentType] - which is a TypeError
    except (TypeError, ValueError):
        return None
    return value if type(value) is dict else None


def parse_metadata(rows: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Parse the metadata of pairs (id, JSON); StoreCorrupt names an item whose metadata is not an object."""
    metadata: list[dict[str, Any]] = []
    for start in range(0, len(rows), PARSED):
        check_cancelled()
        part = rows[start : start + PARSED]
        try:
            parsed = orjson.loads(f"[{','.join([text for _, text in part])}]")  # faster than one by one
        except (TypeError, ValueError):
            parsed = []
        if len(parsed) != len(part) or set(map(type, parsed)) != {dict}:
            id = next(id for id, text in part if parse_object(text) is None)
            raise StoreCorrupt(f"The metadata of item {id!r} is damaged; {_HINT}.")
        metadata += parsed
    return metadata


def fetch_vectors(connection: sqlite3.Connection, spec: CollectionSpec, rids: np.ndarray) -> np.ndarray:
    """Return vectors (n, D) float32 of rows (n,) int64; NaN for rows that do not exist or are visibly damaged.

    A flipped bit may make a number huge. That would move the lists and the transform of an index, or end the process:
    faiss does not expect it.
    """
    vectors = np.full((len(rids), spec.dim), np.nan, np.float32)
    if not len(rids):
        return vectors
    order = np.argsort(rids, kind="stable")
    ascending, low, high = rids[order], int(rids.min()), int(rids.max())
    where, parameters = f"rid {ONE_OF}", [json.dumps(rids.tolist())]
    if high - low < DENSE * len(rids):
        where, parameters = "rid BETWEEN ? AND ?", [low, high]
    rows = connection.execute(
        f"SELECT rid, vector FROM vectors WHERE {where} AND length(vector) = ?", [*parameters, size_of(spec)]
    ).fetchall()
    read = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    stored = np.frombuffer(b"".join([row[1] for row in rows]), stored_type(spec)).reshape(-1, spec.dim)
    position = np.minimum(np.searchsorted(ascending, read), len(ascending) - 1)
    wanted = ascending[position] == read
    vectors[order[position[wanted]]] = stored[wanted]
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors)
    vectors[squares > (LONGEST_UNIT if spec.metric == "cosine" else MAX_LENGTH) ** 2] = np.nan
    return vectors


def all_rids(connection: sqlite3.Connection) -> np.ndarray:
    """Return the ids of all rows, (n,) int64 ascending."""
    return np.fromiter((row[0] for row in connection.execute("SELECT rid FROM items ORDER BY rid")), np.int64)


def stored_type(spec: CollectionSpec) -> str:
    """Return the numpy type in which vectors are stored."""
    return "<f4" if spec.precision == "f32" else "<f2"


def size_of(spec: CollectionSpec) -> int:
    """Return the size of a stored vector in bytes."""
    return spec.dim * np.dtype(stored_type(spec)).itemsize


def row_crc(rid: int, id: str, metadata: str, vector_crc: int, jpeg: bytes | None) -> int:
    """Return the checksum of a row; the vector is covered by its own checksum. It runs for every row that is stored."""
    thumbnail = -1 if jpeg is None else zlib.crc32(jpeg)
    return zlib.crc32(f"{rid} {id} {vector_crc} {thumbnail} {metadata}".encode())


def last_seq(connection: sqlite3.Connection) -> int:
    """Return the number of the last change; trimming the log does not reset it."""
    return sequence(connection, "oplog")
