"""Build main parts of an index, and fold its recent rows into them, while searches and writes continue.

A few new rows extend a copy of the old main part. Many deleted rows, another kind of index or another transform
require a rebuild from the rows that exist. Either takes seconds to minutes and works on one state, which never changes.
Then the newest state is replaced by one with the new main part, with what was added and deleted while it was built.

A build never holds a second copy of the vectors: they come in batches from wherever they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.index.state import NO_ROWS, Fetch, Found, Main, State, States, nearest
from nnclr_hub.store.index_kinds import COARSE, FLAT, HNSW, IndexKind, choose_kind, vector_bytes
from nnclr_hub.store.items import Progress
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import VectorTransform, unit_length

log = logging.getLogger(__name__)
ADDED = 2000  # rows that are added between two checks whether to stop
COPIED = 128  # rows of the main part that a fold may copy for each new one
RECENT_SHARE = 0.125  # share of the memory of the index
SAMPLE_SHARE = 0.125  # likewise, for the vectors that k-means learns from
DELETED_SHARE = 0.25  # a main part with a larger share of deleted rows is rebuilt
MEASURED_GROWTH = 1.25  # the effort is calibrated again, and the recall measured, when an index has grown so much
FIT_GROWTH = 2  # a transform is fitted again when the collection has so many times the rows
SETTLED_GROWTH = 1.1  # the same when nothing is written, up to FITTED rows: a fit on the first few rows is worse
FITTED = 20_000  # rows that a transform is fitted on
FITTED_NUMBERS = 1 << 25  # fewer rows of long vectors: 256 MiB in float64
# calibration looks for the smallest effort that finds this share of the ten nearest
WANTED_RECALL = 0.99
CALIBRATION_QUERIES = 200
NEIGHBORHOOD = 64
FURTHER = 1.25  # a new query may be a little further from the stored vectors than these from each other
NO_GAIN = 0.005  # a higher effort that gains less recall is not worth its time
TOLERANCE = 1e-4  # within which two scores are the same

Rows = Iterator[np.ndarray]  # batches (n, D) float32
Exact = Callable[[np.ndarray, int], Found]  # takes queries and k, returns the scores and rows that are truly nearest
Stop = Callable[[], bool]


class Stopped(Exception):
    """Raised when `stop` ends a build."""


# ------------------------------------------------------------------------------ what is due


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
        # recent rows that were replaced or deleted since: searches compare with them, too, and they take memory
        or len(state.recent_rids) - (live - state.alive.count) > max(settings.min_recent, live)
        or is_outdated(main, settings, live, idle)
        or (main.kind is FLAT and choose_kind(main.spec.index, main.spec, live, settings) is not FLAT)
        or (idle and main.kind is COARSE)
    )


def is_outdated(main: Main, settings: StoreSettings, live: int, settled: bool) -> bool:
    """Return whether the transform should be fitted again for `live` rows; `settled`: nothing is written now."""
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


# ------------------------------------------------------------------------------ folds


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
        settings: settings of the store.
        fetch: reads vectors from the catalog.
        rebuild: remove every deleted row, and fit the transform again.
        idle: whether nothing is written now.
        stop: checked every few thousand rows; Stopped is raised if it returns True, and the index has not changed.
        progress: called with (done, total) rows.
    """
    start = states.latest
    main, spec, rids, live = start.main, start.main.spec, start.live_rids(), len(start.alive)
    kind = choose_kind(spec.index, spec, live, settings) if rebuild else kind_of_next(start, settings, idle=idle)
    must_build = (
        not len(main)
        or main.kind is not kind
        or len(main) - start.alive.count > (0 if rebuild else DELETED_SHARE * len(main))
        or is_outdated(main, settings, live, idle)
        or (rebuild and spec.vectors != "raw" and main.fitted_rows != live)
        or kind.outgrown(main.index, live, settings)
        or not kind.covers(main.index, start.recent)
    )
    if not live:
        main = Main.empty(spec)
    elif must_build:
        transform = fit(spec, settings, rids, fetch)

        def everything() -> Rows:
            if transform is start.main.transform:
                return _batches(start, start.alive.rows, settings, fetch)
            return _transformed(rids, transform, fetch, settings.batch)

        built = _build(spec, kind, rids, lambda: _counted(everything(), live, progress), settings, stop)
        built = replace(built, transform=transform, fitted_rows=live)
        main = _calibrate(built, everything)
    elif not len(start.recent_rids):
        return
    else:
        # a graph cannot remove nodes: deleted rows stay in the copy, and stay marked
        added = start.recent_rids[start.alive.recent]
        copy = kind.grow(main.index, spec, len(main) + len(added))  # searches are running on the old index
        main = replace(main, index=copy, rids=np.concatenate([main.rids, added]))
        _add(main, _counted(_batches(start, NO_ROWS, settings, fetch), len(added), progress), settings, stop)
        if len(main) >= MEASURED_GROWTH * main.calibrated_rows:
            rows = np.arange(len(start.main))
            main = _calibrate(main, lambda: _batches(start, rows, settings, fetch))
    reached("fold.built")

    def carry(latest: State) -> State | None:
        if latest.main is not start.main:  # it was replaced
            return None
        done = len(start.recent_rids)
        late, vectors = latest.recent_rids[done:], latest.recent[done:]
        if main.transform is not start.main.transform:
            vectors = np.nan_to_num(main.compared(fetch(late)))
        return State.of(latest.seq, main).with_recent(latest.seq, late, vectors).only(latest.live_rids())

    states.replace(carry)
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
    """Return a main part with the rows (n,) int64 of the catalog.

    It becomes flat if that fits into memory: a flat index is exact at once, and the next fold builds its final kind.
    `known_transform`: a transform, and the number of rows when it was fitted; None: fit one.
    """
    if not len(rids):
        return Main.empty(spec)
    transform, fitted = known_transform or (fit(spec, settings, rids, fetch), len(rids))
    fits = len(rids) * vector_bytes(spec) <= settings.memory
    kind = FLAT if fits else choose_kind(spec.index, spec, len(rids), settings)
    everything = lambda: _transformed(rids, transform, fetch, settings.batch)  # noqa: E731
    main = replace(_build(spec, kind, rids, everything, settings), transform=transform, fitted_rows=fitted)
    return _calibrate(main, everything)


# ------------------------------------------------------------------------------ vectors


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


def _counted(batches: Rows, total: int, progress: Progress) -> Rows:
    """Yield the batches and report how many rows were used."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch)
        progress(done, total)


# ------------------------------------------------------------------------------ build and calibrate


def _build(
    spec: CollectionSpec,
    kind: IndexKind,
    rids: np.ndarray,
    batches: Callable[[], Rows],
    settings: StoreSettings,
    stop: Stop = lambda: False,
) -> Main:
    """Build an index over at least one row; `batches` is called twice for a kind that is trained."""
    index = kind.create(spec, len(rids), settings)
    if not index.is_trained:
        lists = getattr(index, "nlist", 1)
        # faiss needs a point per list, however little memory there is
        most = max(lists, int(SAMPLE_SHARE * settings.memory) // (4 * spec.dim))
        step = max(1, len(rids) // max(min(most, settings.points_per_list * lists), 256))
        taken, start = [], 0
        for batch in batches():  # rows that are evenly spread
            taken.append(batch[(-start) % step :: step].copy())  # a view would keep the whole batch in memory
            start += len(batch)
        index.train(np.ascontiguousarray(np.concatenate(taken)))
    main = Main(spec, kind, index, rids)
    _add(main, batches(), settings, stop)
    return main


def _add(main: Main, batches: Rows, settings: StoreSettings, stop: Stop) -> None:
    size = min(ADDED, settings.batch)
    for batch in batches:
        for start in range(0, len(batch), size):
            if stop():
                raise Stopped
            main.index.add(np.ascontiguousarray(batch[start : start + size]))


def _calibrate(main: Main, batches: Callable[[], Rows]) -> Main:
    """Return the index with the effort that finds WANTED_RECALL of the ten nearest of synthetic queries.

    If no effort does, it is the one above which nothing more is found, as for vectors that are compressed too much. The
    index knows its recall afterwards. A neighbor counts as found if another one at the same distance is found instead:
    copies of an image are equal. `batches` returns the vectors of the rows.
    """
    if not main.kind.efforts:
        return main
    exact: Exact = lambda queries, k: nearest(main.spec.metric, batches(), queries, k)  # noqa: E731
    if main.kind is COARSE:  # it is temporary: its codes are exact enough, and reading every vector takes seconds
        exact = partial(main.search, exhaustive=True)
    queries, k = _synthetic_queries(main, exact), min(10, len(main))
    scores, truth = exact(queries, k)
    worst = scores[:, -1:] - TOLERANCE * np.maximum(1, np.abs(scores[:, -1:]))
    effort, recall = 0, 0.0
    for tried in main.kind.efforts:
        found, rows = main.search(queries, main.kind.candidates(k), effort=tried)
        if main.kind.lossless:
            share = float(((found >= worst) & (rows >= 0)).mean())
        else:  # scores of compressed vectors are approximate, so rows are compared instead
            share = float((truth[:, :, None] == rows[:, None, :]).any(axis=2).mean())
            if effort and share < recall + NO_GAIN and share < WANTED_RECALL:
                break
        effort, recall = tried, share
        if recall >= WANTED_RECALL:
            break
    if recall < WANTED_RECALL and main.kind is not COARSE:
        log.warning("the %s index finds %.3f of the ten nearest at its highest effort", main.kind.name, recall)
    return replace(main, effort=effort, calibrated_rows=len(main), recall=recall)


def _synthetic_queries(main: Main, exact: Exact) -> np.ndarray:
    """Return queries (n, D) float32 that are about as far from the stored vectors as these from each other.

    A stored vector itself would be too easy, because the graph leads straight to it; so would one of its copies.
    """
    rng = np.random.default_rng(0)
    wanted = CALIBRATION_QUERIES // 4 if main.kind is COARSE else CALIBRATION_QUERIES
    stored = main.vectors(rng.choice(len(main), min(wanted, len(main)), replace=False))
    rows = exact(stored, min(NEIGHBORHOOD, len(main)))[1]
    around = main.vectors(rows.ravel()).reshape(*rows.shape, -1)
    gaps = np.linalg.norm(around - stored[:, None], axis=2)
    # the nearest neighbor that is not a copy
    apart = gaps > TOLERANCE * np.linalg.norm(stored, axis=1, keepdims=True)
    distances = np.where(apart.any(axis=1), gaps[np.arange(len(gaps)), apart.argmax(axis=1)], gaps.max())
    noise = rng.normal(size=stored.shape) / np.sqrt(main.spec.dim)
    queries = (stored + FURTHER * noise * distances[:, None]).astype(np.float32)
    return unit_length(queries) if main.spec.metric == "cosine" else queries
