"""How an index is restored when its collection is opened.

First the newest intact snapshot, or the one before, or none. Then the log of changes since. Then a comparison with the
catalog, row by row. On any difference the index is rebuilt from the catalog. A damaged or missing file therefore costs
time and nothing else.
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnclr_hub.store.ann.fold import load
from nnclr_hub.store.ann.index import AnnIndex, State
from nnclr_hub.store.embedded.catalog import last_seq
from nnclr_hub.store.embedded.rows import all_vectors, fetch_vectors
from nnclr_hub.store.embedded.snapshots import load_snapshot
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.sqlite import reading
from nnclr_hub.store.vector_transform import VectorTransform

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """How much of an index is in a snapshot: the change it is up to, rows of its main part, and their transform."""

    seq: int = 0
    rows: int = 0
    transform: VectorTransform | None = None

    @classmethod
    def of(cls, state: State) -> Saved:
        """Return what a snapshot of this state has."""
        return cls(state.seq, len(state.rids), None if state.main is None else state.main.transform)


def recover(connection: sqlite3.Connection, index: AnnIndex, folder: Path) -> Saved:
    """Fill the index from the best snapshot, the log and the catalog; return how much the snapshot had."""
    with reading(connection):
        return _recover(connection, index, folder)


def follow(connection: sqlite3.Connection, index: AnnIndex, folder: Path) -> None:
    """Update an index to the view of a read transaction: by the log, or entirely if the log was trimmed too far.

    A file that was salvaged from a damaged one may restart its numbers; then, too, everything is read again.
    """
    if last_seq(connection) < index.seq or not replay(connection, index):
        _recover(connection, index, folder)


def _recover(connection: sqlite3.Connection, index: AnnIndex, folder: Path) -> Saved:
    state = load_snapshot(connection, index.spec, folder)
    if state is not None:
        index.restore(state)
        reached("recover.loaded")
        if replay(connection, index) and agrees(connection, index):
            reached("recover.replayed")
            return Saved.of(state)
        log.warning("the index in %s does not agree with the catalog; rebuilding it", folder)
    rebuild(connection, index)
    return Saved()


def replay(connection: sqlite3.Connection, index: AnnIndex) -> bool:
    """Apply the changes after the index, in the caller's read transaction; return False if the log lacks some."""
    last = last_seq(connection)
    operations = connection.execute("SELECT op, rid FROM oplog WHERE seq > ? ORDER BY seq", [index.seq]).fetchall()
    if len(operations) != last - index.seq:
        return False
    deleted = np.array(sorted(rid for op, rid in operations if op == "-"), np.int64)
    added = np.array(sorted(rid for op, rid in operations if op == "+"), np.int64)
    added = np.setdiff1d(added, deleted, assume_unique=True)  # rows that were added and deleted are in no table
    for start in range(0, len(added), index.settings.batch):
        some = added[start : start + index.settings.batch]
        vectors = fetch_vectors(connection, index.spec, some)
        if np.isnan(vectors).any():
            return False
        index.apply(index.seq, np.zeros(0, np.int64), some, vectors)
    index.apply(last, deleted, np.zeros(0, np.int64), np.zeros((0, index.spec.dim), np.float32))
    # every deletion now has the number of the last change, so older views would see rows that were deleted before them
    index.refuse_older_views()
    return True


def agrees(connection: sqlite3.Connection, index: AnnIndex) -> bool:
    """Return whether the index holds exactly the catalog's rows."""
    truth = np.fromiter((row[0] for row in connection.execute("SELECT rid FROM items ORDER BY rid")), np.int64)
    return np.array_equal(truth, index.live_rids())


def rebuild(connection: sqlite3.Connection, index: AnnIndex) -> None:
    """Rebuild the index from the catalog, in the caller's read transaction."""
    total = connection.execute("SELECT count(*) FROM vectors").fetchone()[0]
    load(index, lambda: all_vectors(connection, index.spec), total, last_seq(connection))
