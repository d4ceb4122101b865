"""Fold the delta of an index into a new main part, while searches and writes continue.

A few new rows extend a copy of the old main part. Many deleted rows, or another kind of index, require a rebuild from
the live rows. A fold has three steps:

    1. under the lock: note the parts, the live rows, the length of the delta and the change `seq`     (short)
    2. without it: build the new main part from what was noted                            (seconds to minutes)
    3. under the lock: carry over what was added and deleted since step 1, and swap the parts          (short)

Searches that started before step 3 keep the old parts, which nobody changes any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from nnclr_hub.store.ann.build import Stop, build_main, calibrate, extend
from nnclr_hub.store.ann.compare import nearest
from nnclr_hub.store.ann.delta import LIVE, Deletions, positions
from nnclr_hub.store.ann.index import AnnIndex, Fetch, Parts
from nnclr_hub.store.ann.main_index import MainIndex
from nnclr_hub.store.base import Progress
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.index_kinds import FLAT, IndexKind, choose_kind, vector_bytes

DELETED_SHARE = 0.25  # a main part with a larger share of deleted rows is rebuilt
MEASURED_GROWTH = 1.25  # the effort is calibrated again, and the recall measured, when an index has grown so much


@dataclass(frozen=True)
class _Start:
    """The index when the fold began: its parts, the live rows of main, rows of the delta, and the change."""

    parts: Parts
    live: np.ndarray
    count: int
    seq: int


def is_due(index: AnnIndex, idle: bool) -> bool:
    """Return whether a fold is worth its cost; when nothing is written, a small delta is enough."""
    parts, settings = index.parts, index.settings
    rows = len(parts.rids)
    # with more rows a fold costs more, so the delta may grow with them, up to where it slows every search down
    limit = settings.idle_delta if idle else min(max(settings.min_delta, rows // 4), settings.max_delta)
    if parts.delta.count >= limit or parts.deletions.count > max(settings.min_delta, DELETED_SHARE * rows):
        return True
    live = rows - parts.deletions.count + parts.delta.count
    return index.kind is FLAT and choose_kind(index.spec.index, index.spec, live, settings) is not FLAT


def fold(
    index: AnnIndex,
    fetch: Fetch,
    *,
    rebuild: bool = False,
    stop: Stop = lambda: False,
    progress: Progress = lambda done, total: None,
) -> None:
    """Fold the delta into the main part; only one fold may run at a time.

    Args:
        index: to change.
        fetch: reads vectors from the catalog.
        rebuild: remove every deleted row.
        stop: checked every few thousand rows.
        progress: called with (done, total) rows.

    Raises:
        Stopped: `stop` returned True; the index has not changed.
    """
    with index.mutation:
        parts = index.parts
        start = _Start(parts, parts.deletions.live(len(parts.rids)), parts.delta.count, index.seq)
    rids, deleted = (column[: start.count] for column in parts.delta.tail(0))
    fresh = deleted > start.seq  # rows of the delta that are live; what is deleted from here on, step 3 carries over
    rids = rids[fresh]
    live = len(start.live) + len(rids)
    kind = choose_kind(index.spec.index, index.spec, live, index.settings)
    main = parts.main
    if live == 0:
        _swap(index, start, index.new_parts(None, np.zeros(0, np.int64), start.seq))
        return
    if main is not None and not _must_build(index, kind, live, rebuild):
        if start.count == 0:
            return
        new_rows = _counted(parts.delta.batches(start.count, fresh), len(rids), progress)
        main = extend(main, index.spec, new_rows, len(rids), index.settings, stop)
        # the copy still has the deleted rows, because a graph cannot remove nodes: they stay marked
        keep = np.arange(len(parts.rids))
        deletions = Deletions(len(main))
        deletions.delete(np.setdiff1d(keep, start.live, assume_unique=True), start.seq)
    else:
        keep = start.live
        rows = lambda: _counted(_batches(index, start, keep, fresh, fetch), live, progress)  # noqa: E731
        main = build_main(index.spec, kind, live, rows, index.settings, stop)
        deletions = Deletions(live)
    if len(main) >= MEASURED_GROWTH * main.calibrated_rows:
        everything = lambda: _batches(index, start, keep, fresh, fetch)  # noqa: E731
        main = calibrate(main, index.spec, lambda queries, k: nearest(index.spec.metric, everything(), queries, k))
    reached("fold.built")
    new = index.new_parts(main, np.concatenate([parts.rids[keep], rids]), start.seq)
    new.deletions = deletions
    _swap(index, start, new)
    reached("fold.swapped")


def measure(index: AnnIndex, fetch: Fetch) -> bool:
    """Calibrate an index whose recall is unknown, as one that an earlier version saved; return whether it did."""
    with index.mutation:
        parts = index.parts
        start = _Start(parts, np.arange(len(parts.rids)), 0, index.seq)
    main = parts.main
    if main is None or index.recall is not None:
        return False
    everything = lambda: _batches(index, start, start.live, np.zeros(0, bool), fetch)  # noqa: E731
    measured = calibrate(main, index.spec, lambda queries, k: nearest(index.spec.metric, everything(), queries, k))
    with index.mutation:
        if parts.main is main:
            parts.main = measured
    return True


def _must_build(index: AnnIndex, kind: IndexKind, live: int, rebuild: bool) -> bool:
    parts = index.parts
    assert parts.main is not None
    if parts.main.kind is not kind or (rebuild and parts.deletions.count):
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
        yield parts.main.vectors(rows) if parts.main.lossless else np.nan_to_num(fetch(parts.rids[rows]))
    yield from parts.delta.batches(start.count, fresh)


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
        new.delta.append_from(old.delta, start.count)
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
        fits = rows * vector_bytes(spec) <= index.settings.memory
        kind = FLAT if fits else choose_kind(spec.index, spec, rows, index.settings)
        everything = lambda: (vectors for _, vectors in batches())  # noqa: E731
        main = build_main(spec, kind, len(known), everything, index.settings)
        main = calibrate(main, spec, lambda queries, k: nearest(spec.metric, everything(), queries, k))
    with index.mutation:
        index.parts = index.new_parts(main, known, seq)
        index.seq = seq
