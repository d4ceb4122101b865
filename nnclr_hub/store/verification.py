"""Looking whether all is well, and taking out what is not."""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnclr_hub.store.ann import AnnIndex
from nnclr_hub.store.base import CollectionSpec, Match, Progress
from nnclr_hub.store.fold import nearest
from nnclr_hub.store.rows import all_vectors, id_of, stored_type

SAMPLE = 50
NEIGHBOURS = 10
BATCH = 1000
TOLERANCE = 1e-3  # between the two ways to a score


@dataclass(frozen=True)
class Sample:
    """What an exhaustive search says of some stored vectors.

    ids: (n,) of the vectors.
    vectors: (n, D) float32.
    nearest: n sets of the ids of their true nearest neighbours.
    best: (n,) float32, the true best scores.
    """

    ids: list[str]
    vectors: np.ndarray
    nearest: list[set[str]]
    best: np.ndarray

    def compare(self, found: list[list[Match]]) -> tuple[list[str], float]:
        """Ids whose best match is not the true one, and the share of all true neighbours that was found."""
        disagreements, hits = [], 0
        for id, matches, truth, best in zip(self.ids, found, self.nearest, self.best.tolist(), strict=True):
            if not matches or abs(matches[0].score - best) > TOLERANCE * max(1.0, abs(best)):
                disagreements.append(id)
            hits += len({match.id for match in matches} & truth)
        return disagreements, hits / max(1, sum(map(len, self.nearest))) if self.ids else 1.0


def damaged_items(connection: sqlite3.Connection, spec: CollectionSpec, progress: Progress) -> list[tuple[str, str]]:
    """Ids and metadata of the items whose vector no longer has its checksum, or is not there."""
    total = connection.execute("SELECT count(*) FROM items").fetchone()[0]
    size = spec.dim * np.dtype(stored_type(spec)).itemsize
    rows = connection.execute("SELECT id, metadata, vector, crc FROM items LEFT JOIN vectors USING (rid) ORDER BY rid")
    damaged, done = [], 0
    while batch := rows.fetchmany(BATCH):
        for id, metadata, blob, crc in batch:
            if blob is None or len(blob) != size or zlib.crc32(blob) != crc:
                damaged.append((id, metadata))
        done += len(batch)
        progress(done, total)
    return damaged


def missing_items(connection: sqlite3.Connection, index: AnnIndex) -> list[str]:
    """Ids of rows that the index lacks, or has although they are gone; nothing may be written meanwhile."""
    truth = np.fromiter((row[0] for row in connection.execute("SELECT rid FROM items ORDER BY rid")), np.int64)
    return [id_of(connection, rid) for rid in np.setxor1d(truth, index.live_rids()).tolist()]


def take_sample(connection: sqlite3.Connection, spec: CollectionSpec) -> Sample:
    """Some of the vectors with their true neighbours, in one pass over all of them."""
    total = connection.execute("SELECT count(*) FROM vectors").fetchone()[0]
    step = max(1, total // SAMPLE)
    known: list[np.ndarray] = [np.zeros(0, np.int64)]
    chosen: list[np.ndarray] = [np.zeros((0, spec.dim), np.float32)]
    place = 0
    for rids, vectors in all_vectors(connection, spec):
        some = slice((-place) % step, None, step)
        known.append(rids[some])
        chosen.append(vectors[some])
        place += len(rids)
    queries = np.concatenate(chosen)
    order: list[np.ndarray] = []

    def passed() -> Iterator[np.ndarray]:
        for rids, vectors in all_vectors(connection, spec):
            order.append(rids)
            yield np.nan_to_num(vectors)

    ids = [id_of(connection, rid) for rid in np.concatenate(known).tolist()]
    if not len(queries):
        return Sample([], queries, [], np.zeros(0, np.float32))
    scores, rows = nearest(spec, passed(), queries, min(NEIGHBOURS, place))
    known_as = np.concatenate(order)[rows].tolist()
    return Sample(ids, queries, [{id_of(connection, rid) for rid in those} for those in known_as], scores[:, 0])


def write_down(lost: Path, stem: str, items: list[tuple[str, str]]) -> str | None:
    """Keeps ids and metadata of items that have to go, a line of JSON each; returns the file's path."""
    if not items:
        return None
    lost.mkdir(exist_ok=True)
    file = lost / f"{stem}-damaged-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    with file.open("a") as handle:
        for id, metadata in items:
            handle.write(json.dumps({"id": id, "metadata": json.loads(metadata)}) + "\n")
    return str(file)
