"""How an index is restored when its collection is opened, and follows what another process writes.

The snapshot has the main part. The catalog has the rows: those of the main part that still exist, and those that were
added since. If they do not fit together, the index is built from the catalog. A damaged or missing file therefore costs
time and nothing else.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import numpy as np

from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder.catalog import last_seq
from nnclr_hub.store.folder.rows import all_vectors, fetch_vectors
from nnclr_hub.store.index.fold import load
from nnclr_hub.store.index.main_index import MainIndex
from nnclr_hub.store.index.snapshot import Saved, load_snapshot
from nnclr_hub.store.index.state import NO_ROWS, State, States, empty_state
from nnclr_hub.store.index_kinds import FLAT
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec

log = logging.getLogger(__name__)
MAX_FOLLOWED = 50_000  # changes; of more, not all vectors are read at once


def recover(
    connection: sqlite3.Connection, spec: CollectionSpec, settings: StoreSettings, folder: Path
) -> tuple[State, MainIndex | None]:
    """Return the state of the catalog that a read transaction sees, and the main part that is on disk."""
    saved = load_snapshot(connection, spec, folder)
    if saved is not None:
        reached("recover.loaded")
    if saved is not None and saved.main.kind is not FLAT:
        state = _with_snapshot(connection, spec, settings, saved)
        if state is not None:
            reached("recover.replayed")
            return state, state.main
        log.warning("the index in %s does not agree with the catalog; building it again", folder)
    state = rebuild(connection, spec, settings, saved)
    if saved is not None:
        reached("recover.replayed")
    return state, state.main if saved is not None and saved.main.kind is FLAT else None


def rebuild(
    connection: sqlite3.Connection, spec: CollectionSpec, settings: StoreSettings, saved: Saved | None = None
) -> State:
    """Return a state that is built from the catalog in the caller's read transaction, with a saved transform."""
    total = connection.execute("SELECT count(*) FROM vectors").fetchone()[0]
    known = None if saved is None else (saved.main.transform, saved.main.fitted_rows)
    return load(spec, settings, lambda: all_vectors(connection, spec), total, last_seq(connection), known)


def follow(
    connection: sqlite3.Connection, states: States, spec: CollectionSpec, settings: StoreSettings, folder: Path
) -> None:
    """Bring states to the view of a read transaction: by the log, or from the catalog if the log was trimmed.

    A file that was salvaged from a damaged one may restart its numbers; then, too, everything is read again.
    """
    before, last = states.latest.seq, last_seq(connection)
    if last - before > MAX_FOLLOWED:  # the snapshot of the process that writes is newer
        state, _ = recover(connection, spec, settings, folder)
        states.replace(lambda latest: state if latest.seq < state.seq else None)
        return
    changes = connection.execute("SELECT op, rid FROM oplog WHERE seq > ? ORDER BY seq", [before]).fetchall()
    if last < before or len(changes) != last - before:
        state, _ = recover(connection, spec, settings, folder)
        states.replace(lambda _: state)
        return
    deleted = np.array(sorted(rid for op, rid in changes if op == "-"), np.int64)
    added = np.array(sorted(rid for op, rid in changes if op == "+"), np.int64)
    added = np.setdiff1d(added, deleted, assume_unique=True)  # rows that were added and deleted are in no table
    added, vectors = _read(connection, spec, added)
    states.advance(last, deleted, added, vectors, since=before)


def _with_snapshot(
    connection: sqlite3.Connection, spec: CollectionSpec, settings: StoreSettings, saved: Saved
) -> State | None:
    """Return a state with a saved main part; None if the catalog has rows that it should have and lacks."""
    truth = np.fromiter((row[0] for row in connection.execute("SELECT rid FROM items ORDER BY rid")), np.int64)
    place = int(np.searchsorted(truth, saved.rids[-1], "right"))
    flags = np.isin(saved.rids, truth[:place], assume_unique=True)
    if np.count_nonzero(flags) != place:
        return None
    state = empty_state(spec, settings.delta_chunk)
    live = None if flags.all() else np.packbits(flags, bitorder="little")
    dead = len(flags) - place
    state = State(0, spec, saved.main, saved.rids, state.recent, live, dead)
    for start in range(place, len(truth), settings.batch):
        state = state.after(0, NO_ROWS, *_read(connection, spec, truth[start : start + settings.batch]))
    return State(last_seq(connection), spec, saved.main, saved.rids, state.recent, live, dead, state.count)


def _read(connection: sqlite3.Connection, spec: CollectionSpec, rids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows (n,) whose vectors are not damaged, and these (n, D)."""
    vectors = fetch_vectors(connection, spec, rids)
    intact = ~np.isnan(vectors).any(axis=1)
    return (rids, vectors) if intact.all() else (rids[intact], vectors[intact])
