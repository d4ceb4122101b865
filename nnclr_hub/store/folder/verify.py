"""Checks of a collection: its file, its vectors, and its index against an exhaustive search."""

from __future__ import annotations

import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store.disk import fsync_folder
from nnclr_hub.store.folder.resources import Resources
from nnclr_hub.store.folder.rows import all_rids, delete_damaged, fetch_vectors, parse_object, row_crc, size_of
from nnclr_hub.store.folder.schema import check_meta, check_totals
from nnclr_hub.store.index.state import RowSet, State, nearest, score
from nnclr_hub.store.items import Progress
from nnclr_hub.store.reports import VerifyReport
from nnclr_hub.store.sqlite import quick_check, translated

SAMPLE = 50
NEIGHBORS = 10
BATCH = 1000
TOLERANCE = 1e-3  # between the index's scores and exhaustive ones


class Damaged(NamedTuple):
    """A row that is not what was written."""

    rid: int
    id: str  # as far as it is text
    metadata: str
    part: str  # what is damaged


def verify(files: Resources, path: Path, progress: Progress) -> VerifyReport:
    """See `Collection.verify`; `path` is that of the file."""
    damaged = find_damaged(files, path, progress)
    return files.read(lambda connection, state: _compare(connection, state, damaged))


def repair(files: Resources, path: Path, lost: Path, progress: Progress) -> tuple[tuple[str, ...], str | None]:
    """See `Collection.repair`; return the ids that were removed, and the file with their metadata."""
    assert files.writer is not None
    damaged = find_damaged(files, path, progress)
    kept_in, removed = None, set()
    if damaged:
        kept_in = _keep_metadata(lost, path.stem, damaged)
        # by row id: the id may by now belong to a sound item
        rids = [row.rid for row in damaged]
        removed = files.writer.submit(lambda connection, changes: delete_damaged(connection, changes, rids))
    files.maintenance.rebuild()
    files.maintenance.snapshot()
    return tuple(row.id for row in damaged if row.rid in removed), kept_in


def find_damaged(files: Resources, path: Path, progress: Progress) -> list[Damaged]:
    """Check the file; return the rows that fail their checksum, lack a vector, or have metadata that is not an object.

    StoreCorrupt is raised if SQLite's check fails, or if the tables disagree with one another or with the commits.
    """
    recorded = files.record.read()  # before the transaction: another process may write
    with files.connections.reader() as connection:
        try:
            quick_check(connection, path, "integrity_check")
        except StoreCorrupt as error:
            if not isinstance(error.__cause__, sqlite3.OperationalError):
                raise
            quick_check(connection, path)  # metadata that is not JSON is in no index on its keys, and is named below
        with translated(path):
            check_meta(connection, path, recorded)
            check_totals(connection, path)
        return list(damaged_rows(connection, size_of(files.spec), progress))


def damaged_rows(connection: sqlite3.Connection, size: int, progress: Progress) -> Iterator[Damaged]:
    """Yield the rows that are not what was written; `size` is that of a vector in bytes."""
    total, done = connection.execute("SELECT count(*) FROM items").fetchone()[0], 0
    # as bytes: a damaged text may not be valid UTF-8
    rows = connection.execute(
        "SELECT rid, CAST(id AS BLOB), CAST(metadata AS BLOB), vector, vectors.crc, items.crc, jpeg "
        "FROM items NOT INDEXED LEFT JOIN vectors USING (rid) LEFT JOIN thumbnails USING (rid) ORDER BY rid"
    )
    while batch := rows.fetchmany(BATCH):
        for rid, *texts, vector, vector_crc, crc, jpeg in batch:
            id, metadata = (text.decode(errors="backslashreplace") for text in texts)
            part = ""
            if vector is None or len(vector) != size or zlib.crc32(vector) != vector_crc:
                part = "vector"
            elif id.encode() != texts[0]:
                part = "id"
            elif metadata.encode() != texts[1] or parse_object(metadata) is None:
                part = "metadata"
            elif row_crc(rid, id, metadata, vector_crc, jpeg) != crc:
                part = "id, metadata or thumbnail"
            if part:
                yield Damaged(rid, id, metadata, part)
        done += len(batch)
        progress(done, total)


def _compare(connection: sqlite3.Connection, state: State, damaged: list[Damaged]) -> VerifyReport:
    """Compare the index with the rows, and with an exhaustive search in the very same transaction."""
    main, spec, all_rows = state.main, state.main.spec, all_rids(connection)
    fetch = lambda rids: fetch_vectors(connection, spec, rids)  # noqa: E731
    missing = np.setxor1d(all_rows, state.live_rids())
    intact = np.setdiff1d(all_rows, np.array([row.rid for row in damaged], np.int64))
    # scattered over the collection, and the same ones each time
    sample = np.sort(intact[np.argsort(intact * 2654435761 % 2**32, kind="stable")[:SAMPLE]])
    wrong, recall = np.zeros(len(sample), bool), 1.0
    if len(sample):
        queries = fetch(sample)
        chosen = RowSet(state.flags(intact) & state.alive.flags, len(main)) if damaged else None
        found_scores, found = state.search(queries, NEIGHBORS, fetch, chosen)
        starts = range(0, len(intact), BATCH)
        batches = (main.compared(fetch(intact[start : start + BATCH])) for start in starts)
        compared = main.compared(queries)
        # an equally near item in a neighbor's place is as good: copies of an image are equal
        worst = nearest(spec.metric, batches, compared, NEIGHBORS)[0][:, -1:]
        allowed = TOLERANCE * np.maximum(1.0, np.abs(worst))
        recall = float((found_scores >= worst - allowed).sum() / (len(sample) * min(NEIGHBORS, len(intact))))
        for i, rids in enumerate(found):
            true = score(compared[i], main.compared(fetch(rids[rids >= 0])), spec.metric)
            wrong[i] = not len(true) or bool((np.abs(true - found_scores[i][rids >= 0]) > allowed[i]).any())

    def ids(rids: np.ndarray) -> tuple[str, ...]:
        query = "SELECT id FROM items WHERE rid = ?"
        rows = ((rid, connection.execute(query, [rid]).fetchone()) for rid in rids.tolist())
        return tuple(row[0] if row else f"row {rid}" for rid, row in rows)

    names, parts = tuple(row.id for row in damaged), tuple(row.part for row in damaged)
    return VerifyReport(len(all_rows), names, ids(sample[wrong]), ids(missing), recall, parts)


def _keep_metadata(lost: Path, stem: str, rows: list[Damaged]) -> str:
    """Write ids and metadata of rows that will be removed, one line of JSON each; return the file's path."""
    lost.mkdir(exist_ok=True)
    file = lost / f"{stem}-damaged-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    with file.open("a", encoding="utf-8") as handle:
        for row in rows:
            metadata = parse_object(row.metadata)
            handle.write(json.dumps({"id": row.id, "metadata": row.metadata if metadata is None else metadata}) + "\n")
        handle.flush()
        os.fsync(handle.fileno())
    fsync_folder(lost)
    return str(file)
