"""Fold the recent rows of an index into a new main part, while searches and writes continue.

A few new rows extend a copy of the old main part. Many deleted rows, another kind of index or another transform
require a rebuild from the rows that exist. Either takes seconds to minutes and works on one state, which never changes.
Then the newest state is replaced by one with the new main part, with what was added and deleted while it was built.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.index.build import Stop, build_main, calibrate, extend
from nnclr_hub.store.index.compare import nearest
from nnclr_hub.store.index.main_index import MainIndex
from nnclr_hub.store.index.state import NO_ROWS, Fetch, Recent, State, States, empty_state
from nnclr_hub.store.index.transform import compared, fit, is_outdated, sample
from nnclr_hub.store.index_kinds import COARSE, FLAT, HNSW, IndexKind, choose_kind, vector_bytes
from nnclr_hub.store.items import Progress
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import VectorTransform

COPIED = 128  # rows of the main part that a fold may copy for each new one
RECENT_SHARE = 0.125  # of the memory of the index
DELETED_SHARE = 0.25  # a main part with a larger share of deleted rows is rebuilt
MEASURED_GROWTH = 1.25  # the effort is calibrated again, and the recall measured, when an index has grown so much
SETTLE_SECONDS = 0.1  # for searches that still use the old main part, which takes 0.1 s per gigabyte to free
LARGE = 64 << 20


def is_due(state: State, settings: StoreSettings, idle: bool) -> bool:
    """Return whether a fold is worth its cost; when nothing is written, few recent rows are enough."""
    rows = len(state.rids)
    # A fold copies the main part. For 128 rows of it per new row, that costs a quarter of adding the row to a graph.
    # Every search compares with each recent row.
    limit = settings.idle_delta if idle else min(max(settings.min_delta, rows // COPIED), settings.max_delta)
    if state.kind is FLAT and not idle:
        # recent rows are searched like a flat main part, and each fold would copy both
        limit = min(max(settings.max_delta, settings.flat_below), most_recent(state, settings))
    if state.count >= limit or state.deleted > max(settings.min_delta, DELETED_SHARE * rows):
        return True
    live = state.live_count
    if is_outdated(state.spec, settings, state.main, live, idle):
        return True
    if state.kind is FLAT and choose_kind(state.spec.index, state.spec, live, settings) is not FLAT:
        return True
    return idle and state.kind is COARSE


def most_recent(state: State, settings: StoreSettings) -> int:
    """Return how many recent rows there may be; more would need too much memory, so writes wait for a fold."""
    return max(2 * settings.max_delta, int(RECENT_SHARE * settings.memory) // (4 * state.spec.dim))


def kind_of_next(state: State, settings: StoreSettings, *, idle: bool = True) -> IndexKind:
    """Return the kind of the next main part.

    An inverted file takes the place of a graph as long as there are many new rows: it is built in seconds, so the rows
    of a bulk load are found quickly from its end on. The graph follows when nothing is written.
    """
    wanted = choose_kind(state.spec.index, state.spec, state.live_count, settings)
    many = state.count >= max(settings.coarse_from, len(state.rids) // 4 if state.kind is HNSW else 0)
    return COARSE if wanted is HNSW and (many or (state.kind is COARSE and not idle)) else wanted


def fold(
    states: States,
    settings: StoreSettings,
    fetch: Fetch,
    *,
    rebuild: bool = False,
    idle: bool = True,
    stop: Stop = lambda: False,
    progress: Progress = lambda done, total: None,
) -> None:
    """Fold the recent rows into the main part; only one fold may run at a time.

    Args:
        states: to change.
        settings: of the store.
        fetch: reads vectors from the catalog.
        rebuild: remove every deleted row, and fit the transform again.
        idle: whether nothing is written now.
        stop: checked every few thousand rows.
        progress: called with (done, total) rows.

    Raises:
        Stopped: `stop` returned True; the index has not changed.
    """
    start = states.latest
    spec, main, live = start.spec, start.main, start.live_count
    kind = choose_kind(spec.index, spec, live, settings) if rebuild else kind_of_next(start, settings, idle=idle)
    recent = np.arange(start.count) if start.recent_live is None else np.flatnonzero(start.recent_live)
    if not live:
        new = empty_state(spec, settings.delta_chunk, start.seq)
    elif main is not None and not _must_build(start, settings, kind, rebuild, idle):
        if not start.count:
            return
        rows = _recent_batches(start, recent)
        main = extend(main, spec, _counted(rows, len(recent), progress), len(recent), settings, stop)
        # a graph cannot remove nodes: deleted rows stay in the copy, and stay marked
        rids = np.concatenate([start.rids, start.recent_rids[recent]])
        main = _calibrated(main, start, lambda: _batches(start, np.arange(len(start.rids)), recent, settings, fetch))
        bitmap = None if start.live is None else _extended(start.live, len(start.rids), len(rids))
        new = replace(empty_state(spec, settings.delta_chunk), main=main, rids=rids, live=bitmap, deleted=start.deleted)
    else:
        rids = start.live_rids()
        keep = start.live_rows()
        everything = lambda: _batches(start, keep, recent, settings, fetch)  # noqa: E731
        transform = fit(spec, settings, lambda: fetch(sample(spec, rids)), live)
        if transform is not start.transform:
            everything = lambda: _transformed(rids, transform, fetch, settings.batch)  # noqa: E731
        main = build_main(spec, kind, live, lambda: _counted(everything(), live, progress), settings, stop)
        main = _calibrated(replace(main, transform=transform, fitted_rows=live), start, everything)
        new = replace(empty_state(spec, settings.delta_chunk), main=main, rids=rids)
    reached("fold.built")
    while states.latest.main is start.main and states.latest.recent is start.recent:  # otherwise it was replaced
        if new.transform is not start.transform:
            new = _with_late_rows(states.latest, start, new, fetch)
        if states.replace(lambda latest: _carried(start, latest, new)):  # noqa: B023 - called at once
            reached("fold.swapped")
            if len(start.rids) * vector_bytes(spec) > LARGE:
                time.sleep(SETTLE_SECONDS)
            return


def _must_build(state: State, settings: StoreSettings, kind: IndexKind, rebuild: bool, idle: bool) -> bool:
    assert state.main is not None
    if state.main.kind is not kind or (rebuild and state.deleted):
        return True
    if is_outdated(state.spec, settings, state.main, state.live_count, idle):
        return True
    if rebuild and state.spec.vectors != "raw" and state.main.fitted_rows != state.live_count:
        return True
    if state.deleted > DELETED_SHARE * len(state.rids):
        return True
    return kind.outgrown(state.main.index, state.live_count, settings)


def _calibrated(main: MainIndex, state: State, everything: Callable[[], Iterator[np.ndarray]]) -> MainIndex:
    if len(main) < MEASURED_GROWTH * main.calibrated_rows:
        return main
    return calibrate(main, state.spec, lambda queries, k: nearest(state.spec.metric, everything(), queries, k))


def _batches(
    state: State, keep: np.ndarray, recent: np.ndarray, settings: StoreSettings, fetch: Fetch
) -> Iterator[np.ndarray]:
    """Yield the vectors of rows `keep` of the main part and then of `recent` ones, without a copy of all."""
    for first in range(0, len(keep), settings.batch):
        rows = keep[first : first + settings.batch]
        assert state.main is not None
        if state.main.lossless:
            yield state.main.vectors(rows)
        else:
            yield from _transformed(state.rids[rows], state.transform, fetch, settings.batch)
    yield from _recent_batches(state, recent)


def _recent_batches(state: State, wanted: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the vectors of recent rows at places (n,) int64 ascending, one block at a time."""
    for place, vectors in state.recent.blocks(state.count):
        first, last = np.searchsorted(wanted, [place.start, place.stop])
        if last > first:
            yield vectors[wanted[first:last] - place.start]


def _transformed(rids: np.ndarray, transform: VectorTransform | None, fetch: Fetch, step: int) -> Iterator[np.ndarray]:
    """Yield the vectors of rows (n,) int64 from the catalog, transformed; 0 for rows that do not exist."""
    for first in range(0, len(rids), step):
        yield np.nan_to_num(compared(transform, fetch(rids[first : first + step])))


def _counted(batches: Iterator[np.ndarray], total: int, progress: Progress) -> Iterator[np.ndarray]:
    """Yield the batches and report how many rows were used."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch)
        progress(done, total)


def _extended(bitmap: np.ndarray, rows: int, total: int) -> np.ndarray:
    """Return a bitmap of `total` rows, of which those from `rows` on exist."""
    longer = np.full(-(-total // 8), 255, np.uint8)
    longer[: len(bitmap)] = bitmap
    if rows % 8:
        longer[rows // 8] |= np.uint8(0xFF << rows % 8 & 0xFF)
    return longer


# ------------------------------------------------------------------------------ what happened during the fold


def _with_late_rows(latest: State, start: State, new: State, fetch: Fetch) -> State:
    """Return the new state with the rows that were added until now, by its own transform."""
    rids = latest.recent_rids[start.count + new.count :]
    return new.after(0, NO_ROWS, rids, np.nan_to_num(fetch(rids))) if len(rids) else new


def _carried(start: State, latest: State, new: State) -> State | None:
    """Return the new state with everything that was added and deleted since `start`.

    None if `start` was replaced, or if rows were added that the new state lacks and its transform must be applied to:
    they are read without the lock.
    """
    if latest.main is not start.main or latest.recent is not start.recent:
        return None
    done = start.count + new.count
    rids, state = latest.recent_rids[done:], new
    if len(rids):
        if new.transform is not start.transform:
            return None
        state.recent.append(new.count, rids, latest.recent.vectors(done, latest.count))
        state = replace(state, count=new.count + len(rids))
    gone = [NO_ROWS]
    if latest.live is not start.live:
        was = np.arange(len(start.rids)) if start.live is None else start.live_rows()
        gone.append(start.rids[np.setdiff1d(was, latest.live_rows(), assume_unique=True)])
    if latest.recent_live is not None:
        gone.append(latest.recent_rids[~latest.recent_live])
    return replace(state.without(np.concatenate(gone)), seq=latest.seq)


def load(
    spec: CollectionSpec,
    settings: StoreSettings,
    batches: Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]],
    rows: int,
    seq: int,
    known_transform: tuple[VectorTransform | None, int] | None = None,
) -> State:
    """Return a state with everything that the catalog has.

    It becomes flat if that fits into memory: a flat index is exact at once, and the next fold builds its final kind.

    Args:
        spec: of the collection.
        settings: of the store.
        batches: returns an iterator over rids (n,) and vectors (n, D), ascending; called again for a trained kind.
        rows: their number.
        seq: the change that they are up to.
        known_transform: a transform, and the number of rows when it was fitted; None: fit one.
    """
    known = np.concatenate([NO_ROWS, *(rids for rids, _ in batches())])
    if not len(known):
        return empty_state(spec, settings.delta_chunk, seq)
    wanted = sample(spec, known)
    chosen = lambda: np.concatenate([vectors[np.isin(rids, wanted)] for rids, vectors in batches()])  # noqa: E731
    transform, fitted = known_transform or (fit(spec, settings, chosen, len(known)), len(known))
    fits = rows * vector_bytes(spec) <= settings.memory
    kind = FLAT if fits else choose_kind(spec.index, spec, rows, settings)
    everything = lambda: (compared(transform, vectors) for _, vectors in batches())  # noqa: E731
    main = build_main(spec, kind, len(known), everything, settings)
    main = replace(main, transform=transform, fitted_rows=fitted)
    main = calibrate(main, spec, lambda queries, k: nearest(spec.metric, everything(), queries, k))
    return State(seq, spec, main, known, Recent(spec.dim, settings.delta_chunk))
