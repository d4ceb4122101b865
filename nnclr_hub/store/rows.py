"""Items to rows and back: what one item is in the tables of a collection."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import Item, Match
from nnclr_hub.store.writer import Changes

# parameters a statement, below SQLite's limit
MAX_IN = 10_000


def insert_row(
    connection: sqlite3.Connection, id: str, metadata: str, vector: np.ndarray, thumbnail: bytes | None
) -> int:
    """Writes an item under a new row id, with its line in the log; returns the row id."""
    rid = connection.execute("INSERT INTO items (id, metadata) VALUES (?, ?)", [id, metadata]).lastrowid
    assert rid is not None
    blob = vector.astype("<f4").tobytes()
    connection.execute("INSERT INTO vectors VALUES (?, ?, ?)", [rid, blob, zlib.crc32(blob)])
    if thumbnail is not None:
        connection.execute("INSERT INTO thumbnails VALUES (?, ?)", [rid, thumbnail])
    connection.execute("INSERT INTO oplog (op, rid) VALUES ('+', ?)", [rid])
    return rid


def delete_row(connection: sqlite3.Connection, changes: Changes, id: str) -> bool:
    """Deletes an item, if it is there, with its line in the log."""
    row = connection.execute("DELETE FROM items WHERE id = ? RETURNING rid", [id]).fetchone()
    if row is None:
        return False
    connection.execute("INSERT INTO oplog (op, rid) VALUES ('-', ?)", row)
    if row[0] in changes.came:  # the same id twice in one request: it never was searchable
        place = changes.came.index(row[0])
        del changes.came[place], changes.vectors[place]
    else:
        changes.died.append(row[0])
    return True


def to_matches(
    connection: sqlite3.Connection, scores: np.ndarray, rids: np.ndarray, k: int, with_vector: bool
) -> list[Match]:
    """Rows to matches through the catalog, which decides what exists."""
    vector = "vector" if with_vector else "NULL"
    source = "items JOIN vectors USING (rid)" if with_vector else "items"
    rows: dict[int, tuple[str, str, bytes | None]] = {}
    for start in range(0, len(rids), MAX_IN):
        chunk = rids[start : start + MAX_IN].tolist()
        marks = ",".join("?" * len(chunk))
        found = connection.execute(f"SELECT rid, id, metadata, {vector} FROM {source} WHERE rid IN ({marks})", chunk)
        rows |= {row[0]: row[1:] for row in found}
    matches = []
    for score, rid in zip(scores.tolist(), rids.tolist(), strict=True):
        if rid in rows:
            id, metadata, blob = rows[rid]
            matches.append(Match(id, score, json.loads(metadata), None if blob is None else _vector(blob)))
    return matches[:k]


def to_item(id: str, blob: bytes, metadata: str, jpeg: bytes | None) -> Item:
    """An item from its columns."""
    return Item(id, _vector(blob), json.loads(metadata), jpeg)


def _vector(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, "<f4").astype(np.float32)


def metadata_json(item: Item) -> str:
    """The text that is kept of an item's metadata.

    Raises:
        InvalidRequest: it is no object, or not JSON.
    """
    if not isinstance(item.metadata, Mapping):
        raise InvalidRequest(
            f"The metadata of item {item.id!r} is an object of keys and values; got {item.metadata!r:.80}."
        )
    try:
        return json.dumps(_without_surrogates(item.metadata), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"The metadata of item {item.id!r} is not JSON ({error}).") from error


def _without_surrogates(value: Any) -> Any:
    """SQLite keeps text as UTF-8, which has no half surrogates; the names of files may hold some."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_without_surrogates(key): _without_surrogates(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(one) for one in value]
    return value
