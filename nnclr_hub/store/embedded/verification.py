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

from nnclr_hub.store.ann.fold import nearest
from nnclr_hub.store.ann.index import AnnIndex
from nnclr_hub.store.base import CollectionSpec, Match, Progress
from nnclr_hub.store.embedded.rows import all_vectors, id_of, stored_type, to_vector

SAMPLE = 50
NEIGHBOURS = 10
BATCH = 1000
TOLERANCE = 1e-3  # between the two ways to a score


@dataclass(frozen=True)
class Sample:
    """What an exhaustive search says of some stored vectors.

    ids: (n,) of the vectors.
    vectors: (n, D) float32.
    nearest: for each, its true nearest neighbours with their scores, by id.
    """

    ids: list[str]
    vectors: np.ndarray
    nearest: list[dict[str, float]]

    def compare(self, found: list[list[Match]]) -> tuple[list[str], float]:
        """Ids for which a match has another score than it truly has, and the share of the true neighbours found."""
        disagreements, hits = [], 0
        for id, matches, truth in zip(self.ids, found, self.nearest, strict=True):
            worst = min(truth.values())
            # one that is not among the nearest may score as the last of them at most
            wrong = [match for match in matches if match.score - truth.get(match.id, worst) > _within(worst)]
            wrong += [match for match in matches if match.score - truth.get(match.id, -np.inf) < -_within(worst)]
            if wrong or not matches:
                disagreements.append(id)
            hits += len({match.id for match in matches} & truth.keys())
        return disagreements, hits / max(1, sum(map(len, self.nearest))) if self.ids else 1.0


def _within(score: float) -> float:
    return TOLERANCE * max(1.0, abs(score))


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


def take_sample(connection: sqlite3.Connection, spec: CollectionSpec, without: set[str]) -> Sample:
    """Some of the vectors with their true neighbours, in one pass over all of them.

    Args:
        without: ids that are damaged.
    """
    # scattered, and yet the same ones each time
    scattered = f"SELECT rid FROM items ORDER BY rid * 2654435761 % 4294967296 LIMIT {SAMPLE + len(without)}"
    chosen = connection.execute(f"SELECT id, vector FROM items JOIN vectors USING (rid) WHERE rid IN ({scattered})")
    pairs = [(id, to_vector(blob, spec)) for id, blob in chosen if id not in without]
    if not pairs:
        return Sample([], np.zeros((0, spec.dim), np.float32), [])
    queries = np.stack([vector for _, vector in pairs])
    order: list[np.ndarray] = []

    def passed() -> Iterator[np.ndarray]:
        for rids, vectors in all_vectors(connection, spec):
            order.append(rids)
            yield vectors

    scores, rows = nearest(spec, passed(), queries, NEIGHBOURS)
    known = np.concatenate(order)[rows].tolist()
    truth = [
        {id_of(connection, rid): score for rid, score in zip(*those, strict=True)}
        for those in zip(known, scores.tolist(), strict=True)
    ]
    return Sample([id for id, _ in pairs], queries, truth)


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
