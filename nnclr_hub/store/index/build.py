"""Build, extend and calibrate the main part of an index.

A build never holds a second copy of the vectors: they come in batches from wherever they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from nnclr_hub.store.index.main import Found, Main
from nnclr_hub.store.index_kinds import IndexKind
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import unit_length

log = logging.getLogger(__name__)
BATCH = 2000  # rows between two checks whether to stop
SAMPLE_SHARE = 0.125  # of the memory of the index, for the vectors that k-means learns from
# calibration looks for the smallest effort that finds this share of the ten nearest
WANTED_RECALL = 0.99
CALIBRATION_QUERIES = 200
NEIGHBORHOOD = 64
FURTHER = 1.25  # a new query may be a little further from the stored vectors than these from each other
NO_GAIN = 0.005  # of recall: a higher effort that gains less is not worth its time
TOLERANCE = 1e-4  # within which two scores are the same

Rows = Iterator[np.ndarray]  # batches (n, D) float32
Exact = Callable[[np.ndarray, int], Found]
Stop = Callable[[], bool]


class Stopped(Exception):
    """Raised when `stop` ends a build."""


def build_main(
    spec: CollectionSpec,
    kind: IndexKind,
    rids: np.ndarray,
    batches: Callable[[], Rows],
    settings: StoreSettings,
    stop: Stop = lambda: False,
) -> Main:
    """Build an index over at least one row.

    Args:
        spec: of the collection.
        kind: of the index.
        rids: (N,) int64 ascending.
        batches: returns an iterator over their vectors; called twice for a kind that is trained.
        settings: of the store.
        stop: checked between batches; Stopped is raised if it returns True.
    """
    index = kind.create(spec, len(rids), settings)
    if not index.is_trained:
        lists = getattr(index, "nlist", 1)
        # faiss needs a point per list, however little memory there is
        most = max(lists, int(SAMPLE_SHARE * settings.memory) // (4 * spec.dim))
        index.train(_sample(batches, len(rids), min(most, settings.points_per_list * lists)))
    return _with_rows(Main(spec, kind, index, rids), batches(), settings, stop)


def extend(main: Main, rids: np.ndarray, batches: Rows, settings: StoreSettings, stop: Stop = lambda: False) -> Main:
    """Return a copy with further rows `rids`; the old index does not change, because searches are running on it."""
    copy = main.kind.grow(main.index, main.spec, len(main) + len(rids))
    return _with_rows(replace(main, index=copy, rids=np.concatenate([main.rids, rids])), batches, settings, stop)


def _with_rows(main: Main, batches: Rows, settings: StoreSettings, stop: Stop) -> Main:
    size = min(BATCH, settings.batch)
    for batch in batches:
        for start in range(0, len(batch), size):
            if stop():
                raise Stopped
            main.index.add(np.ascontiguousarray(batch[start : start + size]))
    return main


def _sample(batches: Callable[[], Rows], rows: int, wanted: int) -> np.ndarray:
    """Return about `wanted` of the vectors, evenly spread."""
    step = max(1, rows // max(wanted, 256))
    taken, start = [], 0
    for batch in batches():
        taken.append(batch[(-start) % step :: step].copy())  # a view would keep the whole batch in memory
        start += len(batch)
    return np.ascontiguousarray(np.concatenate(taken))


def calibrate(main: Main, exact: Exact) -> Main:
    """Return the index with the effort that finds WANTED_RECALL of the ten nearest of synthetic queries.

    If no effort does, it is the one above which nothing more is found, as for vectors that are compressed too much. The
    index knows its recall afterwards. A neighbor counts as found if another one at the same distance is found instead:
    copies of an image are equal.

    Args:
        main: the index; an exact kind is returned as it is.
        exact: takes queries (n, D) and k, returns the scores and rows (n, k) that are truly nearest.
    """
    if not main.kind.efforts:
        return main
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
    if recall < WANTED_RECALL:
        log.warning("the %s index finds %.3f of the ten nearest at its highest effort", main.kind.name, recall)
    return replace(main, effort=effort, calibrated_rows=len(main), recall=recall)


def _synthetic_queries(main: Main, exact: Exact) -> np.ndarray:
    """Return queries (n, D) float32 that are about as far from the stored vectors as these from each other.

    A stored vector itself would be too easy, because the graph leads straight to it; so would one of its copies.
    """
    rng = np.random.default_rng(0)
    stored = main.vectors(rng.choice(len(main), min(CALIBRATION_QUERIES, len(main)), replace=False))
    rows = exact(stored, min(NEIGHBORHOOD, len(main)))[1]
    around = main.vectors(rows.ravel()).reshape(*rows.shape, -1)
    gaps = np.linalg.norm(around - stored[:, None], axis=2)
    # the nearest neighbor that is not a copy
    apart = gaps > TOLERANCE * np.linalg.norm(stored, axis=1, keepdims=True)
    nearest = np.where(apart.any(axis=1), gaps[np.arange(len(gaps)), apart.argmax(axis=1)], gaps.max())
    noise = rng.normal(size=stored.shape) / np.sqrt(main.spec.dim)
    queries = (stored + FURTHER * noise * nearest[:, None]).astype(np.float32)
    return unit_length(queries) if main.spec.metric == "cosine" else queries
