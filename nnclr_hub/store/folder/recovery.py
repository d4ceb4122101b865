"""How an index is restored when its collection is opened, and follows what another process writes.

The snapshot has the main part. The catalog has the rows: those of the main part that still exist, and those that were
added since. If they do not fit together, the index is built from the catalog. A damaged or missing file therefore costs
time and nothing else.
"""

from __future__ import annotations

import logging
import sqlite3
from functools import partial
from pathlib import Path

import numpy as np

from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder.rows import all_rids, fetch_vectors
from nnclr_hub.store.folder.schema import last_seq
from nnclr_hub.store.index.fold import load
from nnclr_hub.store.index.main import NO_ROWS, Main
from nnclr_hub.store.index.snapshot import load_snapshot
from nnclr_hub.store.index.state import State, States
from nnclr_hub.store.index_kinds import FLAT
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec

log = logging.getLogger(__name__)
MAX_FOLLOWED = 50_000  # changes; of more, not all vectors are read at once


def recover(
    connection: sqlite3.Connection, spec: CollectionSpec, settings: StoreSettings, folder: Path
) -> tuple[State, Main | None]:
    """Return the state of the catalog that a read transaction sees, and the main part that is on disk."""
    saved = load_snapshot(connection, spec, folder)
    if saved is None:
        return rebuild(connection, spec, settings), None
    reached("recover.loaded")
    if saved.kind is FLAT:
        state = rebuild(connection, spec, settings, saved)
        saved = state.main
    else:
        state = _with_snapshot(connection, spec, settings, saved)
    if state is None:
        log.warning("the index in %s does not agree with the catalog; building it again", folder)
        state, saved = rebuild(connection, spec, settings, saved), None
    reached("recover.replayed")
    return state, saved


def rebuild(
    connection: sqlite3.Connection, spec: CollectionSpec, settings: StoreSettings, saved: Main | None = None
) -> State:
    """Return a state that is built from the catalog in the caller's read transaction, with a saved transform."""
    known = None if saved is None else (saved.transform, saved.fitted_rows)
    main = load(spec, settings, all_rids(connection), partial(fetch_vectors, connection, spec), known)
    return State.of(last_seq(connection), main)


def follow(
    connection: sqlite3.Connection, states: States, spec: CollectionSpec, settings: StoreSettings, folder: Path
) -> None:
    """Bring states to the view of a read transaction: by the log, or from the catalog if the log was trimmed.

    A file that was salvaged from a damaged one may restart its numbers; then, too, everything is read again.
    """
    before, last = states.latest.seq, last_seq(connection)
    if 0 <= last - before <= MAX_FOLLOWED:  # of more, the snapshot of the process that writes is newer
        changes = connection.execute("SELECT op, rid FROM oplog WHERE seq > ? ORDER BY seq", [before]).fetchall()
        if len(changes) == last - before:
            deleted = np.unique(np.array([rid for op, rid in changes if op == "-"], np.int64))
            added = np.unique(np.array([rid for op, rid in changes if op == "+"], np.int64))
            added = np.setdiff1d(added, deleted, assume_unique=True)  # others are in no table
            vectors = np.nan_to_num(fetch_vectors(connection, spec, added))
            states.advance(last, deleted, added, vectors, since=before)
            return
    state, _ = recover(connection, spec, settings, folder)
    states.replace(lambda latest: state if last < before or latest.seq < state.seq else None)


def _with_snapshot(
    connection: sqlite3.Connection, spec: CollectionSpec, settings: StoreSettings, saved: Main
) -> State | None:
    """Return a state with a saved main part; None if the catalog has rows that it should have and lacks."""
    truth = all_rids(connection)
    later = int(np.searchsorted(truth, saved.rids[-1], "right"))
    alive = np.isin(saved.rids, truth[:later], assume_unique=True)
    if np.count_nonzero(alive) != later:
        return None
    state = State.of(last_seq(connection), saved, alive)
    for start in range(later, len(truth), settings.batch):
        rids = truth[start : start + settings.batch]
        state = state.after(state.seq, NO_ROWS, rids, np.nan_to_num(fetch_vectors(connection, spec, rids)))
    return state
