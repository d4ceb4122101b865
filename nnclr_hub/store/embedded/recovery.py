"""How an index comes back when its collection is opened.

The newest snapshot that is whole, or the one before, or none; then the log of changes since; then a
comparison with the catalog, row by row; and on any difference everything anew from the catalog. So a
damaged or missing file costs time and nothing else.
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnclr_hub.store.ann.fold import load
from nnclr_hub.store.ann.index import AnnIndex
from nnclr_hub.store.embedded.catalog import last_seq, reading
from nnclr_hub.store.embedded.rows import all_vectors, fetch_vectors
from nnclr_hub.store.embedded.snapshots import load_snapshot
from nnclr_hub.store.failpoints import reached

log = logging.getLogger(__name__)
# rows read back at a time while the log is replayed
CHUNK = 10_000


@dataclass(frozen=True)
class Written:
    """How much of an index lies in a snapshot: the change it is up to, and rows of its main part."""

    seq: int
    rows: int


def recover(connection: sqlite3.Connection, index: AnnIndex, folder: Path) -> Written:
    """Fills the index from the best snapshot, the log and the catalog; returns what the snapshot had of it."""
    with reading(connection):
        return _recover(connection, index, folder)


def follow(connection: sqlite3.Connection, index: AnnIndex, folder: Path) -> None:
    """Brings an index up to the view of a read transaction: by the log, or anew if the log no longer reaches back.

    A file that was saved from a damaged one may count from another number; then, too, everything is read anew.
    """
    if last_seq(connection) < index.seq or not replay(connection, index):
        _recover(connection, index, folder)


def _recover(connection: sqlite3.Connection, index: AnnIndex, folder: Path) -> Written:
    state = load_snapshot(connection, index.spec, folder)
    if state is not None:
        index.restore(state)
        reached("recover.loaded")
        if replay(connection, index) and agrees(connection, index):
            reached("recover.replayed")
            return Written(state.seq, len(state.rids))
        log.warning("the index in %s does not agree with the catalog; building it anew", folder)
    rebuild(connection, index)
    return Written(0, 0)


def replay(connection: sqlite3.Connection, index: AnnIndex) -> bool:
    """Applies what came after the index, in the caller's read transaction; False if the log no longer reaches back."""
    last = last_seq(connection)
    operations = connection.execute("SELECT op, rid FROM oplog WHERE seq > ? ORDER BY seq", [index.seq]).fetchall()
    if len(operations) != last - index.seq:
        return False
    died = np.array(sorted(rid for op, rid in operations if op == "-"), np.int64)
    came = np.array(sorted(rid for op, rid in operations if op == "+"), np.int64)
    came = np.setdiff1d(came, died, assume_unique=True)  # what came and died since is in no table
    for start in range(0, len(came), CHUNK):
        some = came[start : start + CHUNK]
        vectors = fetch_vectors(connection, index.spec, some)
        if np.isnan(vectors).any():
            return False
        index.apply(index.seq, np.zeros(0, np.int64), some, vectors)
    index.apply(last, died, np.zeros(0, np.int64), np.zeros((0, index.spec.dim), np.float32))
    index.forget()  # of what came and died since there is nothing, and every death seems to be of the last change
    return True


def agrees(connection: sqlite3.Connection, index: AnnIndex) -> bool:
    """Whether the index holds exactly the catalog's rows."""
    truth = np.fromiter((row[0] for row in connection.execute("SELECT rid FROM items ORDER BY rid")), np.int64)
    return np.array_equal(truth, index.live_rids())


def rebuild(connection: sqlite3.Connection, index: AnnIndex) -> None:
    """The index anew from the catalog, within the caller's read transaction."""
    total = connection.execute("SELECT count(*) FROM vectors").fetchone()[0]
    load(index, lambda: all_vectors(connection, index.spec), total, last_seq(connection))
