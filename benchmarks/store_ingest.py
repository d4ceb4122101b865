"""Durable ingest through the store over bare SQLite inserts of the same rows.

The bare one has the same tables, indexes and pragmas (the schema is read from the collection's own file, the
connection is opened by the store's own function), the same rows in the same transactions, and `executemany` for each
table. Its rows are read from the collection's file beforehand, so it neither makes JSON nor checksums nor looks for
an item of the same id: it does nothing but insert and commit. The second figure, "with rows made", lets it serialize
the vectors, the metadata and the checksums from the same items, as any program must.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from store_data import INDEXED, Clusters, Rows
from store_report import Report, cpu_seconds, seconds, spread

from nnclr_hub.store import open_store
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.folder.schema import connect, row_crc
from nnclr_hub.store.spec import CollectionSpec, Precision

NAME = "bench"
# few enough that the store keeps a flat index and builds no other one
SMALL = 40_000


def fill(collection: Collection, data: Clusters, batch: int) -> float:
    """Upsert all rows; return the CPU seconds in `upsert`, without generating vectors and items."""
    taken = 0.0
    for rows in data.chunks():
        items = items_of(rows)
        for start in range(0, len(items), batch):
            request = items[start : start + batch]
            taken += cpu_seconds(lambda request=request: collection.upsert(request))
    return taken


def items_of(rows: Rows) -> list[Item]:
    """Return the rows as items, as a caller has them."""
    return [Item(*one) for one in zip(rows.ids(), rows.vectors, rows.metadata(), strict=True)]


def ingest_small(report: Report, dim: int, items: int, batch: int, turns: int) -> None:
    """Measure store and bare SQLite in turns, in new folders, with so few items that no index is built."""
    data = Clusters(min(items, SMALL), dim)
    ratios, made = [], []
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            with open_store(folder) as store:
                ours = fill(store.create(NAME, CollectionSpec(dim, indexed=INDEXED)), data, batch)
            source = collection_file(Path(folder))
            theirs = bare(source, batch)
            ratios.append(theirs / ours)
            made.append(bare(source, batch, data) / ours)
    report.say(
        f"ingest_{batch}",
        {"ratio": statistics.median(ratios), "ratios": ratios, "with_rows_made": statistics.median(made)},
        f"ingest, {batch} a request, {data.items} x {dim}: store over bare SQLite {spread(ratios)}, median of {turns}; "
        f"over SQLite with rows made from the items {spread(made)}; {data.items / ours:.0f} and "
        f"{data.items / theirs:.0f} items/s the last time",
    )


def collection_file(folder: Path) -> Path:
    """Return the SQLite file of the store's only collection."""
    (path,) = (path for path in folder.rglob("*.sqlite") if path.name != "catalog.sqlite")
    return path


def bare(source: Path, batch: int, data: Clusters | None = None) -> float:
    """Measure the CPU seconds that bare SQLite takes for the rows of `source`.

    Args:
        source: a collection's file, filled in requests of `batch` from `data`, each row once.
        data: None: the rows are inserted as they are; otherwise the measured time includes making their texts, blobs
            and checksums.
    """
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(source)) as made:
        taken = 0.0
        with closing(connect(Path(folder) / "bare.sqlite", create=True)) as connection:
            _copy_schema(made, connection)
            chunks = iter(()) if data is None else data.chunks()
            for tables in _requests(made, batch):
                if data is not None and not (tables["items"][0][0] - 1) % 10_000:
                    items = items_of(next(chunks))
                first = (tables["items"][0][0] - 1) % 10_000
                request = None if data is None else items[first : first + batch]
                taken += cpu_seconds(lambda tables=tables, request=request: _insert(connection, tables, request))
        return taken


def _copy_schema(made: sqlite3.Connection, connection: sqlite3.Connection) -> None:
    statements = made.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'")
    for (sql,) in statements.fetchall():
        connection.execute(sql)
    for pragma in ("page_size", "journal_mode", "synchronous"):
        wanted = "FULL is 2" if pragma == "synchronous" else made.execute(f"PRAGMA {pragma}").fetchone()[0]
        actual = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
        assert actual in (wanted, 2), f"{pragma}: {actual}, the collection has {wanted}"


def _requests(made: sqlite3.Connection, batch: int) -> Iterator[dict[str, list[tuple]]]:
    """Yield the rows of each table that one request wrote."""
    total = made.execute("SELECT max(rid) FROM items").fetchone()[0]
    for first in range(1, total + 1, batch):
        between = (first, first + batch - 1)
        request = {
            table: made.execute(f"SELECT * FROM {table} WHERE rid BETWEEN ? AND ? ORDER BY rid", between).fetchall()
            for table in ("items", "vectors")
        }
        # a snapshot trims the log: its lines are made again, each a row of an item that came
        log = [(rid, "+", rid, id) for rid, id, *_ in request["items"]]
        yield request | {"oplog": log, "commits": [(log[-1][0], time.time(), log[-1][0], 0, 0, 0, 0)]}


def _insert(connection: sqlite3.Connection, tables: dict[str, list[tuple]], items: list[Item] | None) -> None:
    if items is not None:
        tables = tables | _made(tables, items)
    connection.execute("BEGIN IMMEDIATE")
    for table, rows in tables.items():
        connection.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)
    connection.execute("COMMIT")


def _made(tables: dict[str, list[tuple]], items: list[Item]) -> dict[str, list[tuple]]:
    """Return the same rows, made from the items."""
    rids = [row[0] for row in tables["items"]]
    texts = [json.dumps(item.metadata, allow_nan=False, ensure_ascii=False) for item in items]
    blobs = [item.vector.tobytes() for item in items]
    return {
        "items": [
            (rid, item.id, text, row_crc(rid, item.id, text, zlib.crc32(blob), None))
            for rid, item, text, blob in zip(rids, items, texts, blobs, strict=True)
        ],
        "vectors": [(rid, blob, zlib.crc32(blob)) for rid, blob in zip(rids, blobs, strict=True)],
    }


def ingest_large(report: Report, folder: Path, data: Clusters, precision: Precision) -> None:
    """Ingest all items in requests of 1000 while the store builds its index, then bare SQLite alone."""
    with open_store(str(folder)) as store:
        collection = store.create(NAME, CollectionSpec(data.dim, indexed=INDEXED, precision=precision))
        ours = fill(collection, data, 1000)
        began = time.perf_counter()
        collection.compact()
        indexed = time.perf_counter() - began
        written = seconds(collection.snapshot)
        kind = collection.info().index
    theirs = min(bare(collection_file(folder), 1000) for _ in range(2))
    report.say(
        f"ingest_all_{precision}",
        {"ratio": theirs / ours, "seconds": ours, "bare_seconds": theirs, "compact_seconds": indexed, "index": kind},
        f"ingest of all {data.items} x {data.dim} {precision}, while the index is built: store over bare SQLite "
        f"{theirs / ours:.2f}; {data.items / ours:.0f} items/s; then compacting to {kind} took {indexed:.0f} s and "
        f"the snapshot {written:.1f} s",
    )
