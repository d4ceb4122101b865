"""Sizes and times by which an embedded store decides when to build, fold and save an index."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


def default_index_memory() -> int:
    """Return half of the memory of the machine, or of the container if that has less, in bytes."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [machine]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroup 2 and 1
        with suppress(OSError, ValueError):  # the file does not exist, or contains "max"
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(limits) // 2


@dataclass(frozen=True)
class StoreSettings:
    """The defaults suit collections of any size; tests use smaller values.

    memory: bytes that the index of one collection may use.
    total_memory: bytes that the indexes of all open collections should use; if they use more, those that were not used
        for the longest time are closed, until the next call opens them again.
    close_after: seconds without a call after which a collection is closed in the same way.
    flat_below: collections with fewer items are searched exhaustively, which is fast enough and exact.
    fit_from: the transform of a collection that does not compare raw vectors is fitted on at least so many items: the
        mean and the variances of fewer say little about the next ones.
    points_per_list: k-means of an inverted file samples this many vectors per list.
    delta_chunk: rows per block of the delta.
    batch: rows between two checks whether a build should stop, and rows per read of vectors.
    idle_delta: a delta of this size is folded when nothing is written.
    min_delta: while writes continue, the delta of a small index is folded at this size, and that of a larger one at a
        128th of its rows. A flat index is folded at flat_below rows: its delta is searched like its main part.
    max_delta: a delta of this size is always folded, because every search scans it row by row.
    snapshot_on_close: changes since the last snapshot that justify a new one at closing.
    snapshot_after: the same before closing; a quarter of the rows if that is more. While writes continue, a flat index
        is saved after eight times as many, so one that only grows is saved when nothing is written, and at closing: it
        is read from the catalog as fast as from a snapshot.
    kept_changes: changes that the log keeps, for `Collection.changes`.
    idle_seconds: time without a change after which maintenance does work that is not urgent.
    pause_seconds: time between a failure of maintenance and the next attempt.
    """

    memory: int = field(default_factory=default_index_memory)
    total_memory: int = field(default_factory=lambda: default_index_memory() * 3 // 2)
    close_after: float = 3600.0
    flat_below: int = 50_000
    fit_from: int = 256
    points_per_list: int = 64
    delta_chunk: int = 4096
    batch: int = 10_000
    idle_delta: int = 512
    min_delta: int = 4096
    max_delta: int = 16_384
    snapshot_on_close: int = 1000
    snapshot_after: int = 20_000
    kept_changes: int = 1_000_000
    idle_seconds: float = 3.0
    pause_seconds: float = 30.0
