"""The delta into a new main part, beside the running searches and writes.

A few new rows extend a copy of the old part; many deaths, or another kind of index, mean building it
anew from what lives. Only taking the old state and putting the new one in its place hold writes up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import faiss
import numpy as np

from nnclr_hub.store.ann.compare import ranked
from nnclr_hub.store.ann.deaths import Deaths
from nnclr_hub.store.ann.delta import ALIVE, Delta, positions
from nnclr_hub.store.ann.index import AnnIndex, Fetch, Parts
from nnclr_hub.store.ann.kinds import FLAT_BELOW, Stop, build_main, choose_kind, extended, flat_bytes, judged
from nnclr_hub.store.ann.main_index import MainIndex
from nnclr_hub.store.base import Progress
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.spec import CollectionSpec

IDLE_DELTA = 512  # rows that are worth folding when there is nothing else to do
SMALLEST_DELTA = 4096  # rows that are not worth folding beside writes
LARGEST_DELTA = 16_384  # rows that a search should not have to look at one by one
DEAD_SHARE = 0.25  # of a main part, from which it is built anew
REBUILD_GROWTH = 4  # lists learned from this many times fewer vectors are learned anew
BATCH = 10_000


@dataclass(frozen=True)
class _Before:
    """The index when the fold began: its parts, the living rows of main, rows of the delta, and the change."""

    parts: Parts
    living: np.ndarray
    count: int
    seq: int


def due(index: AnnIndex, idle: bool) -> bool:
    """Whether folding is worth its while; when nothing is written, a small delta is."""
    parts = index.parts
    rows = len(parts.rids)
    if parts.delta.count >= (IDLE_DELTA if idle else min(max(SMALLEST_DELTA, rows // 4), LARGEST_DELTA)):
        return True
    if parts.deaths.count > max(SMALLEST_DELTA, DEAD_SHARE * rows):
        return True
    live = rows - parts.deaths.count + parts.delta.count
    return live >= FLAT_BELOW and index.kind == "flat" and choose_kind(index.spec, live, index.budget) != "flat"


def fold(
    index: AnnIndex,
    fetch: Fetch,
    *,
    anew: bool = False,
    stop: Stop = lambda: False,
    progress: Progress = lambda done, total: None,
) -> None:
    """Takes the delta into the main part; one fold at a time.

    Args:
        index: whose delta.
        fetch: reads vectors of the catalog.
        anew: forget every dead row.
        stop: looked at every few thousand rows.
        progress: called with (done, total) rows.

    Raises:
        Stopped: `stop` said so; nothing has changed.
    """
    with index.mutation:
        parts = index.parts
        before = _Before(parts, parts.deaths.living(len(parts.rids)), parts.delta.count, index.seq)
    rids, died = (column[: before.count] for column in parts.delta.tail(0))
    fresh = died > before.seq
    rids = rids[fresh]
    live = len(before.living) + len(rids)
    kind = choose_kind(index.spec, live, index.budget)
    main = parts.main
    if live == 0:
        _swap(index, before, Parts(None, np.zeros(0, np.int64), Deaths(0), _delta(index), before.seq))
        return
    if main is not None and not _must_build(index, kind, live, anew):
        new_rows = _told(parts.delta.batches(before.count, fresh), len(rids), progress)
        main = extended(main, index.spec, new_rows, len(rids), stop)
        keep = np.arange(len(parts.rids))
        deaths = Deaths(len(main))
        deaths.kill(np.setdiff1d(keep, before.living, assume_unique=True), before.seq)
    else:
        keep = before.living
        rows = lambda: _told(_batches(before, keep, fresh, fetch), live, progress)  # noqa: E731
        main = build_main(index.spec, kind, live, rows, stop)
        deaths = Deaths(live)
    if len(main) >= 2 * main.judged:
        everything = lambda: _batches(before, keep, fresh, fetch)  # noqa: E731
        main = judged(main, index.spec, lambda queries, k: nearest(index.spec, everything(), queries, k))
    reached("fold.built")
    new = Parts(main, np.concatenate([parts.rids[keep], rids]), deaths, _delta(index), before.seq)
    _swap(index, before, new)
    reached("fold.swapped")


def _must_build(index: AnnIndex, kind: str, live: int, anew: bool) -> bool:
    parts = index.parts
    assert parts.main is not None
    if parts.main.kind != kind or (anew and parts.deaths.count):
        return True
    if parts.deaths.count > DEAD_SHARE * len(parts.rids):
        return True
    return kind in ("ivf", "ivf_pq") and live > REBUILD_GROWTH * max(1, parts.main.judged)


def _delta(index: AnnIndex) -> Delta:
    return Delta(index.spec.dim, index.spec.metric)


def _batches(before: _Before, keep: np.ndarray, fresh: np.ndarray, fetch: Fetch) -> Iterator[np.ndarray]:
    """The vectors of rows `keep` of the main part and then `fresh` ones of the delta, without a second copy of all."""
    parts = before.parts
    for start in range(0, len(keep), BATCH):
        rows = keep[start : start + BATCH]
        assert parts.main is not None
        yield parts.main.vectors(rows) if parts.main.lossless else np.nan_to_num(fetch(parts.rids[rows]))
    yield from parts.delta.batches(before.count, fresh)


def _told(batches: Iterator[np.ndarray], total: int, progress: Progress) -> Iterator[np.ndarray]:
    """The batches, telling how many rows have been taken."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch)
        progress(done, total)


def nearest(
    spec: CollectionSpec, batches: Iterator[np.ndarray], queries: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """By comparing with everything: scores (n, k) and the numbers (n, k) of the vectors nearest to queries (n, D)."""
    metric = faiss.METRIC_L2 if spec.metric == "l2" else faiss.METRIC_INNER_PRODUCT
    scores, rows, place = [], [], 0
    for batch in batches:
        if not len(batch):
            continue
        found, numbers = faiss.knn(queries, np.ascontiguousarray(batch), min(k, len(batch)), metric=metric)
        scores.append(-np.sqrt(np.maximum(found, 0)) if metric == faiss.METRIC_L2 else found)
        rows.append(numbers + place)
        place += len(batch)
    return ranked(np.concatenate(scores, axis=1), np.concatenate(rows, axis=1), k)


def _swap(index: AnnIndex, before: _Before, new: Parts) -> None:
    """Puts the new parts in place of the old, with what came and died meanwhile."""
    with index.mutation:
        old = index.parts
        if old is not before.parts:  # loaded anew meanwhile, so what was folded is no longer the index
            return
        rids, died = old.delta.tail(0)
        new.delta.append(*old.delta.rows(before.count, old.delta.count)[:2])
        gone = (died > before.seq) & (died < ALIVE)
        late_deaths = [(seq, old.rids[rows]) for seq, rows in old.deaths.since(before.seq)]
        late_deaths += [(int(seq), rids[gone & (died == seq)]) for seq in np.unique(died[gone])]
        for seq, those in sorted(late_deaths, key=lambda death: death[0]):  # the log of deaths must be in order
            those = np.sort(those)
            new.deaths.kill(positions(new.rids, those), seq)
            new.delta.kill(those, seq)
        index.parts = new


def load(index: AnnIndex, batches: Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]], rows: int, seq: int) -> None:
    """The index anew from the catalog: flat, which is exact at once and grows into its kind later, if that fits.

    Args:
        index: to fill.
        batches: called for an iterator over rids (n,) and vectors (n, D), ascending; more than once where it learns.
        rows: how many there are in all.
        seq: the change they are up to.
    """
    rids = [np.zeros(0, np.int64), *(some for some, _ in batches())]
    known = np.concatenate(rids)
    main: MainIndex | None = None
    if len(known):
        spec = index.spec
        kind = "flat" if flat_bytes(spec, rows) <= index.budget else choose_kind(spec, rows, index.budget)
        everything = lambda: (vectors for _, vectors in batches())  # noqa: E731
        main = build_main(spec, kind, len(known), everything)
        main = judged(main, spec, lambda queries, k: nearest(spec, everything(), queries, k))
    with index.mutation:
        index.parts = Parts(main, known, Deaths(len(known)), _delta(index), seq)
        index.seq = seq
