"""Checks of a collection: its file, its vectors, and its index against an exhaustive search."""

from __future__ import annotations

import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store.disk import fsync_folder
from nnclr_hub.store.folder.integrity import check_meta, check_totals, row_crc
from nnclr_hub.store.folder.resources import Resources
from nnclr_hub.store.folder.rows import all_vectors, delete_rows, id_of, is_metadata, size_of, to_vector
from nnclr_hub.store.folder.search import search
from nnclr_hub.store.index.compare import nearest
from nnclr_hub.store.index.state import RowSet, State
from nnclr_hub.store.index.transform import compared
from nnclr_hub.store.items import Match, Progress, SearchOptions
from nnclr_hub.store.reports import VerifyReport
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.sqlite import HINT, quick_check, translated
from nnclr_hub.store.vector_transform import VectorTransform

SAMPLE = 50
NEIGHBORS = 10
BATCH = 1000
TOLERANCE = 1e-3  # between the index's scores and exhaustive ones


def verify(files: Resources, path: Path, progress: Progress) -> VerifyReport:
    """See `Collection.verify`; `path` is that of the file."""
    damaged = _damaged(files, path, progress)
    known = {item.rid for item in damaged}

    def compare(connection: sqlite3.Connection, state: State) -> VerifyReport:
        """Compare the index with the rows, and with an exhaustive search in the very same transaction."""
        rids = np.fromiter((row[0] for row in connection.execute("SELECT rid FROM items ORDER BY rid")), np.int64)
        missing = [id_of(connection, rid) for rid in np.setxor1d(rids, state.live_rids()).tolist()]
        ids, vectors = choose_sample(connection, files.spec, known)
        intact = RowSet.of(np.setdiff1d(state.live_rids(), np.array(sorted(known), np.int64)), state.rids)
        chosen = intact if known else None  # damaged rows would make the search fail
        found = search(connection, state, vectors, NEIGHBORS, SearchOptions(), chosen) if ids else []
        truth = exhaustive(connection, files.spec, ids, vectors, known, state.transform)
        disagreements, recall = truth.compare(found)
        names, parts = tuple(item.id for item in damaged), tuple(item.part for item in damaged)
        return VerifyReport(len(rids), names, tuple(disagreements), tuple(missing), recall, parts)

    return files.read(compare)


def repair(files: Resources, path: Path, lost: Path, progress: Progress) -> tuple[tuple[str, ...], str | None]:
    """See `Collection.repair`; return the ids that were removed, and the file with their metadata."""
    writer = files.writer
    assert writer is not None
    damaged = _damaged(files, path, progress)
    kept_in = keep_metadata(lost, path.stem, damaged)
    # by row id: the id may by now belong to a sound item
    rids = [item.rid for item in damaged]
    removed = set(writer.submit(lambda connection, changes: delete_rows(connection, changes, rids)) if rids else ())
    files.maintenance.rebuild()
    files.maintenance.snapshot()
    return tuple(item.id for item in damaged if item.rid in removed), kept_in


def _damaged(files: Resources, path: Path, progress: Progress) -> list[Damaged]:
    recorded = files.record.read()  # before the transaction: another process may write
    with files.connections.reader() as connection:
        check_file(connection, path, recorded)
        return damaged_items(connection, files.spec, progress)


# ------------------------------------------------------------------------------ parts of it


@dataclass(frozen=True)
class Sample:
    """The result of an exhaustive search for some stored vectors.

    ids: (n,) of the vectors.
    vectors: (n, D) float32.
    nearest: for each, the scores of its true nearest neighbors by id.
    """

    ids: list[str]
    vectors: np.ndarray
    nearest: list[dict[str, float]]

    def compare(self, found: list[list[Match]]) -> tuple[list[str], float]:
        """Return the ids for which a match has a wrong score, and the share of the true neighbors found."""
        disagreements, hits = [], 0
        for id, matches, truth in zip(self.ids, found, self.nearest, strict=True):
            worst = min(truth.values())
            # a match that is not among the nearest may score as high as the last of them
            wrong = [match for match in matches if match.score - truth.get(match.id, worst) > _within(worst)]
            wrong += [match for match in matches if match.score - truth.get(match.id, -np.inf) < -_within(worst)]
            if wrong or not matches:
                disagreements.append(id)
            # an equally near item in a neighbor's place is as good: copies of an image are equal
            hits += sum(match.score >= worst - _within(worst) for match in matches)
        return disagreements, hits / max(1, sum(map(len, self.nearest))) if self.ids else 1.0


def _within(score: float) -> float:
    return TOLERANCE * max(1.0, abs(score))


@dataclass(frozen=True)
class Damaged:
    """A row that is not what was written; its id and metadata as far as they are text, and what is damaged."""

    rid: int
    id: str
    metadata: str
    part: str = "vector"


def check_file(connection: sqlite3.Connection, path: Path, recorded: tuple[int, int] | None) -> None:
    """Run SQLite's check, and compare the tables with each other, with the last commit and with its record."""
    try:
        quick_check(connection, path, "integrity_check")
    except StoreCorrupt as error:
        if not isinstance(error.__cause__, sqlite3.OperationalError):
            raise
        quick_check(connection, path)  # metadata that is not JSON is in no index on its keys; `damaged_items` names it
    with translated(path):
        for table in ("vectors", "thumbnails"):
            lone = f"SELECT count(*) FROM {table} WHERE rid NOT IN (SELECT rid FROM items)"
            if connection.execute(lone).fetchone()[0]:
                raise StoreCorrupt(f"{path} is damaged (its tables disagree; nothing was changed); {HINT}.")
        check_meta(connection, path, recorded)
        check_totals(connection, path)


def damaged_items(connection: sqlite3.Connection, spec: CollectionSpec, progress: Progress) -> list[Damaged]:
    """Return items that fail their checksum, lack a vector, or whose metadata is not a JSON object."""
    total = connection.execute("SELECT count(*) FROM items").fetchone()[0]
    size = size_of(spec)
    # as bytes: a damaged text may not be valid UTF-8
    rows = connection.execute(
        "SELECT rid, CAST(id AS BLOB), CAST(metadata AS BLOB), vector, vectors.crc, items.crc, jpeg "
        "FROM items NOT INDEXED LEFT JOIN vectors USING (rid) LEFT JOIN thumbnails USING (rid) ORDER BY rid"
    )
    damaged, done = [], 0
    while batch := rows.fetchmany(BATCH):
        for rid, id, metadata, blob, crc, sum_, jpeg in batch:
            if blob is None or len(blob) != size or zlib.crc32(blob) != crc:
                part = "vector"
            elif not _is_text(id):
                part = "id"
            elif not _is_text(metadata) or not is_metadata(metadata):
                part = "metadata"
            elif row_crc(rid, id.decode(), metadata.decode(), crc, jpeg) != sum_:
                part = "id, metadata or thumbnail"
            else:
                continue
            damaged.append(Damaged(rid, _text(id), _text(metadata), part))
        done += len(batch)
        progress(done, total)
    return damaged


def _is_text(written: bytes) -> bool:
    try:
        written.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(written: bytes) -> str:
    return written.decode(errors="backslashreplace")


def choose_sample(
    connection: sqlite3.Connection, spec: CollectionSpec, damaged: set[int]
) -> tuple[list[str], np.ndarray]:
    """Return ids and vectors (n, D) of some items, scattered over the collection and the same ones each time.

    Args:
        connection: in a read transaction.
        spec: of the collection.
        damaged: row ids to leave out.
    """
    scattered = f"SELECT rid FROM items ORDER BY rid * 2654435761 % 4294967296 LIMIT {SAMPLE + len(damaged)}"
    chosen = connection.execute(
        f"SELECT rid, id, vector FROM items JOIN vectors USING (rid) WHERE rid IN ({scattered}) ORDER BY rid"
    )
    pairs = [(id, to_vector(id, blob, spec)) for rid, id, blob in chosen if rid not in damaged]
    vectors = np.stack([vector for _, vector in pairs]) if pairs else np.zeros((0, spec.dim), np.float32)
    return [id for id, _ in pairs], vectors


def exhaustive(
    connection: sqlite3.Connection,
    spec: CollectionSpec,
    ids: list[str],
    queries: np.ndarray,
    damaged: set[int],
    transform: VectorTransform | None,
) -> Sample:
    """Find the true neighbors of some vectors after the transform, in one pass over all that are not damaged."""
    if not ids:
        return Sample([], queries, [])
    order: list[np.ndarray] = []
    left_out = np.array(sorted(damaged), np.int64)

    def intact() -> Iterator[np.ndarray]:
        for rids, vectors in all_vectors(connection, spec):
            kept = ~np.isin(rids, left_out)
            order.append(rids[kept])
            yield compared(transform, vectors[kept])

    scores, rows = nearest(spec.metric, intact(), compared(transform, queries), NEIGHBORS)
    known = np.concatenate(order)[rows].tolist()
    truth = [
        {id_of(connection, rid): score for rid, score in zip(*those, strict=True)}
        for those in zip(known, scores.tolist(), strict=True)
    ]
    return Sample(ids, queries, truth)


def keep_metadata(lost: Path, stem: str, items: list[Damaged]) -> str | None:
    """Write ids and metadata of items that will be removed, one line of JSON each; return the file's path.

    Metadata that is not JSON is written as text.
    """
    if not items:
        return None
    lost.mkdir(exist_ok=True)
    file = lost / f"{stem}-damaged-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    with file.open("a", encoding="utf-8") as handle:
        for item in items:
            metadata = json.loads(item.metadata) if is_metadata(item.metadata) else item.metadata
            handle.write(json.dumps({"id": item.id, "metadata": metadata}) + "\n")
        handle.flush()
        os.fsync(handle.fileno())
    fsync_folder(lost)
    return str(file)
