"""Fold the delta of an index into a new main part, while searches and writes continue.

A few new rows extend a copy of the old main part. Many deleted rows, another kind of index or another transform of the
vectors require a rebuild from the live rows. A fold has three steps:

    1. under the lock: note the parts, the live rows, the length of the delta and the change `seq`     (short)
    2. without it: build the new main part from what was noted                            (seconds to minutes)
    3. under the lock: carry over what was added and deleted since step 1, and swap the parts          (short)

Searches that started before step 3 keep the old parts, which nobody changes any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from nnclr_hub.store.ann.build import Stop, build_main, calibrate, extend
from nnclr_hub.store.ann.compare import nearest
from nnclr_hub.store.ann.delta import LIVE, Deletions, positions
from nnclr_hub.store.ann.index import AnnIndex, Fetch, Parts
from nnclr_hub.store.ann.main_index import MainIndex
from nnclr_hub.store.ann.transform import compared, fit, is_outdated, sample
from nnclr_hub.store.base import Progress
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.index_kinds import FLAT, IndexKind, choose_kind, vector_bytes
from nnclr_hub.store.vector_transform import VectorTransform

COPIED = 128  # rows of the main part that a fold may copy for each new one
DELTA_SHARE = 0.125  # of the memory of the index
DELETED_SHARE = 0.25  # a main part with a larger share of deleted rows is rebuilt
# a smaller old part is freed in less than 10 ms, and few searches take longer than SETTLE_SECONDS
LARGE, SETTLE_SECONDS = 64 << 20, 0.1
MEASURED_GROWTH = 1.25  # the effort is calibrated again, and the recall measured, when an index has grown so much


@dataclass(frozen=True)
class _Start:
    """The index when the fold began: its parts, the live rows of main, rows of the delta, and the change."""

    parts: Parts
    live: np.ndarray
    count: int
    seq: int


def live_count(index: AnnIndex) -> int:
    """Return the number of live rows in the index; deleted rows of the delta count too."""
    return len(index.parts.rids) - index.parts.deletions.count + index.parts.delta.count


def is_due(index: AnnIndex, idle: bool) -> bool:
    """Return whether a fold is worth its cost; when nothing is written, a small delta is enough."""
    parts, settings = index.parts, index.settings
    rows = len(parts.rids)
    # A fold copies the main part. For 128 rows of it per new row, that costs a quarter of adding the row to a graph.
    # Every search compares with each row of the delta.
    limit = settings.idle_delta if idle else min(max(settings.min_delta, rows // COPIED), settings.max_delta)
    if index.kind is FLAT and not idle:
        # the delta is searched like a flat main part, and each fold would copy both
        limit = min(max(settings.max_delta, settings.flat_below), most_delta(index))
    if parts.delta.count >= limit or parts.deletions.count > max(settings.min_delta, DELETED_SHARE * rows):
        return True
    live = live_count(index)
    if is_outdated(index.spec, settings, parts.main, live, idle):
        return True
    return index.kind is FLAT and choose_kind(index.spec.index, index.spec, live, settings) is not FLAT


def most_delta(index: AnnIndex) -> int:
    """Return how many rows the delta may have; more would need too much memory, so writes wait for a fold."""
    settings = index.settings
    return max(2 * settings.max_delta, int(DELTA_SHARE * settings.memory) // (4 * index.spec.dim))


def fold(
    index: AnnIndex,
    fetch: Fetch,
    *,
    newest: Callable[[], int] = lambda: 0,
    rebuild: bool = False,
    settled: bool = False,
    stop: Stop = lambda: False,
    progress: Progress = lambda done, total: None,
) -> None:
    """Fold the delta into the main part; only one fold may run at a time.

    Args:
        index: to change.
        fetch: reads vectors from the catalog.
        newest: returns the number of the catalog's last change.
        rebuild: remove every deleted row, and fit the transform again.
        settled: whether nothing is written now, see `is_outdated`.
        stop: checked every few thousand rows.
        progress: called with (done, total) rows.

    Raises:
        Stopped: `stop` returned True; the index has not changed.
    """
    with index.mutation:
        parts = index.parts
        start = _Start(parts, parts.deletions.live(len(parts.rids)), parts.delta.count, index.seq)
        parts.untransformed = None if index.spec.vectors == "raw" else index.new_delta()
    try:
        _fold(index, start, fetch, newest, rebuild, settled, stop, progress)
    finally:
        with index.mutation:
            parts.untransformed = None
    if index.parts is not parts and len(parts.rids) * vector_bytes(index.spec) > LARGE:
        # the last user of the old parts frees them, which takes 0.1 s per gigabyte: let searches that run now end first
        time.sleep(SETTLE_SECONDS)


def _fold(
    index: AnnIndex,
    start: _Start,
    fetch: Fetch,
    newest: Callable[[], int],
    rebuild: bool,
    settled: bool,
    stop: Stop,
    progress: Progress,
) -> None:
    """Do steps 2 and 3 of `fold`."""
    parts = start.parts
    rids, deleted = (column[: start.count] for column in parts.delta.tail(0))
    fresh = deleted > start.seq  # rows of the delta that are live; what is deleted from here on, step 3 carries over
    rids = rids[fresh]
    live = len(start.live) + len(rids)
    kind = choose_kind(index.spec.index, index.spec, live, index.settings)
    main = parts.main
    if live == 0:
        _swap(index, start, index.new_parts(None, np.zeros(0, np.int64), start.seq))
        return
    if main is not None and not _must_build(index, kind, live, rebuild, settled):
        if start.count == 0:
            return
        new_rows = _counted(parts.delta.batches(start.count, fresh), len(rids), progress)
        main = extend(main, index.spec, new_rows, len(rids), index.settings, stop)
        # the copy still has the deleted rows, because a graph cannot remove nodes: they stay marked
        keep = np.arange(len(parts.rids))
        deletions = Deletions(len(main))
        deletions.delete(np.setdiff1d(keep, start.live, assume_unique=True), start.seq)
        everything = lambda: _batches(index, start, keep, fresh, fetch)  # noqa: E731
    else:
        keep = start.live
        everything = lambda: _batches(index, start, keep, fresh, fetch)  # noqa: E731
        known = np.concatenate([parts.rids[keep], rids])
        transform = fit(index.spec, index.settings, lambda: fetch(sample(index.spec, known)), live)
        if transform is not parts.transform:
            everything = lambda: _transformed(known, transform, fetch, index.settings.batch)  # noqa: E731
        rows = lambda: _counted(everything(), live, progress)  # noqa: E731
        main = build_main(index.spec, kind, live, rows, index.settings, stop)
        main = replace(main, transform=transform, fitted_rows=live)
        deletions = Deletions(live)
    if len(main) >= MEASURED_GROWTH * main.calibrated_rows:
        main = calibrate(main, index.spec, lambda queries, k: nearest(index.spec.metric, everything(), queries, k))
    reached("fold.built")
    new = index.new_parts(main, np.concatenate([parts.rids[keep], rids]), start.seq)
    new.deletions = deletions
    if new.transform is not parts.transform:
        # rows that were deleted during the fold were perhaps read too late; views that have them are refused
        new.floor = max(start.seq, newest())
    _swap(index, start, new)
    reached("fold.swapped")


def _must_build(index: AnnIndex, kind: IndexKind, live: int, rebuild: bool, settled: bool) -> bool:
    parts = index.parts
    assert parts.main is not None
    if parts.main.kind is not kind or (rebuild and parts.deletions.count):
        return True
    if is_outdated(index.spec, index.settings, parts.main, live, settled):
        return True
    if rebuild and index.spec.vectors != "raw" and parts.main.fitted_rows != live:
        return True
    if parts.deletions.count > DELETED_SHARE * len(parts.rids):
        return True
    return kind.outgrown(parts.main.index, live, index.settings)


def _batches(index: AnnIndex, start: _Start, keep: np.ndarray, fresh: np.ndarray, fetch: Fetch) -> Iterator[np.ndarray]:
    """Yield the vectors of rows `keep` of the main part and then the `fresh` ones of the delta, without a copy."""
    parts, step = start.parts, index.settings.batch
    for first in range(0, len(keep), step):
        rows = keep[first : first + step]
        assert parts.main is not None
        if parts.main.lossless:
            yield parts.main.vectors(rows)
        else:
            yield from _transformed(parts.rids[rows], parts.transform, fetch, step)
    yield from parts.delta.batches(start.count, fresh)


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


def _swap(index: AnnIndex, start: _Start, new: Parts) -> None:
    """Replace the parts, including what was added and deleted since the fold began."""
    with index.mutation:
        old = index.parts
        if old is not start.parts:  # reloaded during the fold, so the folded rows differ from the index
            return
        rids, deleted = old.delta.tail(0)
        if new.transform is old.transform:
            new.delta.append_from(old.delta, start.count)
        elif old.untransformed is not None:
            late_rids, vectors, _ = old.untransformed.rows(0, old.untransformed.count)
            new.delta.append(late_rids, compared(new.transform, vectors))
        lost = (deleted > start.seq) & (deleted < LIVE)
        late = [(seq, old.rids[rows]) for seq, rows in old.deletions.since(start.seq)]
        late += [(int(seq), rids[lost & (deleted == seq)]) for seq in np.unique(deleted[lost])]
        for seq, those in sorted(late, key=lambda entry: entry[0]):  # the log of deletions must be in order
            those = np.sort(those)
            new.deletions.delete(positions(new.rids, those), seq)
            new.delta.delete(those, seq)
        index.parts = new


def load(index: AnnIndex, batches: Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]], rows: int, seq: int) -> None:
    """Load the index from the catalog.

    It becomes flat if that fits into memory: a flat index is exact at once, and the next fold builds its final kind.

    Args:
        index: to fill.
        batches: returns an iterator over rids (n,) and vectors (n, D), ascending; called again for a trained kind.
        rows: their number.
        seq: the change that they are up to.
    """
    known = np.concatenate([np.zeros(0, np.int64), *(rids for rids, _ in batches())])
    main: MainIndex | None = None
    if len(known):
        spec = index.spec
        wanted = sample(spec, known)
        chosen = lambda: np.concatenate([vectors[np.isin(rids, wanted)] for rids, vectors in batches()])  # noqa: E731
        transform = fit(spec, index.settings, chosen, len(known))
        fits = rows * vector_bytes(spec) <= index.settings.memory
        kind = FLAT if fits else choose_kind(spec.index, spec, rows, index.settings)
        everything = lambda: (compared(transform, vectors) for _, vectors in batches())  # noqa: E731
        main = build_main(spec, kind, len(known), everything, index.settings)
        main = replace(main, transform=transform, fitted_rows=len(known))
        main = calibrate(main, spec, lambda queries, k: nearest(spec.metric, everything(), queries, k))
    index.load(index.new_parts(main, known, seq), seq)
