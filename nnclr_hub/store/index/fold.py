"""Fold the recent rows of an index into a new main part, while searches and writes continue.

A few new rows extend a copy of the old main part. Many deleted rows, another kind of index or another transform
require a rebuild from the rows that exist. Either takes seconds to minutes and works on one state, which never changes.
Then the newest state is replaced by one with the new main part, with what was added and deleted while it was built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.index.build import Rows, Stop, build_main, calibrate, extend
from nnclr_hub.store.index.main import NO_ROWS, Main, nearest
from nnclr_hub.store.index.state import Fetch, State, States
from nnclr_hub.store.index_kinds import COARSE, FLAT, HNSW, IndexKind, choose_kind, vector_bytes
from nnclr_hub.store.items import Progress
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import VectorTransform

COPIED = 128  # rows of the main part that a fold may copy for each new one
RECENT_SHARE = 0.125  # of the memory of the index
DELETED_SHARE = 0.25  # a main part with a larger share of deleted rows is rebuilt
MEASURED_GROWTH = 1.25  # the effort is calibrated again, and the recall measured, when an index has grown so much
FIT_GROWTH = 2  # a transform is fitted again when the collection has so many times the rows
SETTLED_GROWTH = 1.1  # the same when nothing is written, up to FITTED rows: a fit on the first few rows is worse
FITTED = 20_000  # rows that a transform is fitted on
FITTED_NUMBERS = 1 << 25  # fewer rows of long vectors: 256 MiB in float64


def is_due(state: State, settings: StoreSettings, idle: bool) -> bool:
    """Return whether a fold is worth its cost; when nothing is written, few recent rows are enough."""
    main, rows, live = state.main, len(state.main), len(state.alive)
    # A fold copies the main part. For 128 rows of it per new row, that costs a quarter of adding the row to a graph.
    # Every search compares with each recent row.
    limit = settings.idle_recent if idle else min(max(settings.min_recent, rows // COPIED), settings.max_recent)
    if main.kind is FLAT and not idle:
        # recent rows are searched like a flat main part, and each fold would copy both
        limit = min(max(settings.max_recent, settings.flat_below), most_recent(state, settings))
    return (
        len(state.recent_rids) >= limit
        or rows - state.alive.count > max(settings.min_recent, DELETED_SHARE * rows)
        or is_outdated(main, settings, live, idle)
        or (main.kind is FLAT and choose_kind(main.spec.index, main.spec, live, settings) is not FLAT)
        or (idle and main.kind is COARSE)
    )


def is_outdated(main: Main, settings: StoreSettings, live: int, settled: bool) -> bool:
    """Return whether the transform should be fitted, or fitted again, for a collection with `live` rows.

    Args:
        settled: whether nothing is written now, so that the collection may stay as it is.
    """
    fitted = 0 if main.transform is None else main.fitted_rows
    growth = SETTLED_GROWTH if settled and live <= FITTED else FIT_GROWTH
    return main.spec.vectors != "raw" and live >= max(settings.fit_from, growth * fitted)


def most_recent(state: State, settings: StoreSettings) -> int:
    """Return how many recent rows there may be; more would need too much memory, so writes wait for a fold."""
    return max(2 * settings.max_recent, int(RECENT_SHARE * settings.memory) // (4 * state.main.spec.dim))


def kind_of_next(state: State, settings: StoreSettings, *, idle: bool = True) -> IndexKind:
    """Return the kind of the next main part.

    An inverted file takes the place of a graph as long as there are many new rows: it is built in seconds, so the rows
    of a bulk load are found quickly from its end on. The graph follows when nothing is written.
    """
    main = state.main
    wanted = choose_kind(main.spec.index, main.spec, len(state.alive), settings)
    many = len(state.recent_rids) >= max(settings.coarse_from, len(main) // 4 if main.kind is HNSW else 0)
    return COARSE if wanted is HNSW and (many or (main.kind is COARSE and not idle)) else wanted


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
        stop: checked every few thousand rows; Stopped is raised if it returns True, and the index has not changed.
        progress: called with (done, total) rows.
    """
    start = states.latest
    main, spec, rids = start.main, start.main.spec, start.live_rids()
    kind = choose_kind(spec.index, spec, len(rids), settings) if rebuild else kind_of_next(start, settings, idle=idle)
    if not len(rids):
        main = Main.empty(spec)
    elif _must_build(start, settings, kind, rebuild, idle):
        transform = fit(spec, settings, rids, fetch)
        if transform is main.transform:
            everything = lambda: _batches(start, start.alive.rows, settings, fetch)  # noqa: E731
        else:
            everything = lambda: _transformed(rids, transform, fetch, settings.batch)  # noqa: E731
        counted = lambda: _counted(everything(), len(rids), progress)  # noqa: E731
        main = replace(build_main(spec, kind, rids, counted, settings, stop), transform=transform)
        main = calibrate(replace(main, fitted_rows=len(rids)), lambda q, k: nearest(spec.metric, everything(), q, k))
    elif not len(start.recent_rids):
        return
    else:
        # a graph cannot remove nodes: deleted rows stay in the copy, and stay marked
        added = start.recent_rids[start.alive.recent]
        recent = _batches(start, NO_ROWS, settings, fetch)
        main = extend(main, added, _counted(recent, len(added), progress), settings, stop)
        if len(main) >= MEASURED_GROWTH * main.calibrated_rows:
            rows = np.arange(len(start.main))
            main = calibrate(main, lambda q, k: nearest(spec.metric, _batches(start, rows, settings, fetch), q, k))
    reached("fold.built")
    states.replace(lambda latest: _carried(start, latest, main, fetch))
    reached("fold.swapped")


def fit(spec: CollectionSpec, settings: StoreSettings, rids: np.ndarray, fetch: Fetch) -> VectorTransform | None:
    """Return a new transform, fitted on a part of the rows; None if raw vectors are compared, or rows are few."""
    if spec.vectors in ("raw", "auto") or len(rids) < settings.fit_from:
        return None
    # evenly spread: the same for the same rows
    wanted = min(len(rids), FITTED, FITTED_NUMBERS // spec.dim)
    vectors = fetch(rids[np.linspace(0, len(rids) - 1, wanted).astype(np.int64)])
    intact = vectors[~np.isnan(vectors).any(axis=1)]
    return VectorTransform.fit(intact if len(intact) else np.zeros((1, spec.dim)), spec.vectors)


def load(
    spec: CollectionSpec,
    settings: StoreSettings,
    rids: np.ndarray,
    fetch: Fetch,
    known_transform: tuple[VectorTransform | None, int] | None = None,
) -> Main:
    """Return a main part with everything that the catalog has.

    It becomes flat if that fits into memory: a flat index is exact at once, and the next fold builds its final kind.

    Args:
        spec: of the collection.
        settings: of the store.
        rids: (n,) int64 ascending, its rows.
        fetch: reads their vectors.
        known_transform: a transform, and the number of rows when it was fitted; None: fit one.
    """
    if not len(rids):
        return Main.empty(spec)
    transform, fitted = known_transform or (fit(spec, settings, rids, fetch), len(rids))
    fits = len(rids) * vector_bytes(spec) <= settings.memory
    kind = FLAT if fits else choose_kind(spec.index, spec, len(rids), settings)
    everything = lambda: _transformed(rids, transform, fetch, settings.batch)  # noqa: E731
    main = build_main(spec, kind, rids, everything, settings)
    main = replace(main, transform=transform, fitted_rows=fitted)
    return calibrate(main, lambda queries, k: nearest(spec.metric, everything(), queries, k))


def _must_build(state: State, settings: StoreSettings, kind: IndexKind, rebuild: bool, idle: bool) -> bool:
    main, live = state.main, len(state.alive)
    deleted = len(main) - state.alive.count
    return (
        not len(main)
        or main.kind is not kind
        or deleted > (0 if rebuild else DELETED_SHARE * len(main))
        or is_outdated(main, settings, live, idle)
        or (rebuild and main.spec.vectors != "raw" and main.fitted_rows != live)
        or kind.outgrown(main.index, live, settings)
    )


def _batches(state: State, rows: np.ndarray, settings: StoreSettings, fetch: Fetch) -> Rows:
    """Yield the vectors of rows (n,) of the main part, and then of recent ones, without a copy of all."""
    main = state.main
    for first in range(0, len(rows), settings.batch):
        part = rows[first : first + settings.batch]
        if main.kind.lossless:
            yield main.vectors(part)
        else:
            yield from _transformed(main.rids[part], main.transform, fetch, settings.batch)
    for first in range(0, len(state.recent), settings.batch):
        last = first + settings.batch
        yield state.recent[first:last][state.alive.recent[first:last]]


def _transformed(rids: np.ndarray, transform: VectorTransform | None, fetch: Fetch, step: int) -> Rows:
    """Yield the vectors of rows (n,) int64 from the catalog, transformed; 0 for rows that do not exist."""
    for first in range(0, len(rids), step):
        vectors = fetch(rids[first : first + step])
        yield np.nan_to_num(vectors if transform is None else transform(vectors))


def _counted(batches: Iterator[np.ndarray], total: int, progress: Progress) -> Rows:
    """Yield the batches and report how many rows were used."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch)
        progress(done, total)


def _carried(start: State, latest: State, main: Main, fetch: Fetch) -> State | None:
    """Return the newest state with another main part, which has the rows of `start`; None if that was replaced."""
    if latest.main is not start.main:
        return None
    done = len(start.recent_rids)
    late, vectors = latest.recent_rids[done:], latest.recent[done:]
    if main.transform is not start.main.transform:
        vectors = np.nan_to_num(main.compared(fetch(late)))
    return State.of(latest.seq, main).with_recent(latest.seq, late, vectors).only(latest.live_rids())
