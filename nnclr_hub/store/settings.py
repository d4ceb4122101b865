"""Sizes and times by which a store in a folder decides when to build, fold and save an index."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


def default_index_memory() -> int:
    """Return half of the memory of the machine, or of the container if that has less, in bytes."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup versions 2 and 1
        with suppress(OSError, ValueError):  # the file does not exist, or contains "max"
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(limits) // 2


@dataclass(frozen=True)
class StoreSettings:
    """The defaults suit collections of any size; tests use smaller values. Recent rows are not in the index yet."""

    # bytes that the index of one collection may use
    memory: int = field(default_factory=default_index_memory)
    # smaller collections are searched exhaustively, which is fast enough and exact
    flat_below: int = 50_000
    # smaller collections have no transform: the mean and the variances of fewer vectors say little about the next ones
    fit_from: int = 256
    # k-means of an inverted file samples this many vectors per list
    points_per_list: int = 64
    # rows between two checks whether a build should stop, and rows per read of vectors
    batch: int = 10_000
    # recent rows that are folded when nothing is written
    idle_recent: int = 512
    # recent rows that are folded while writes continue; more for an index of more than 128 times as many rows
    min_recent: int = 4096
    # recent rows that are always folded, because every search compares with each of them
    max_recent: int = 16_384
    # so many recent rows, if that is more than a quarter of a graph, become an inverted file first, which takes a tenth
    # of the time; the graph is built when nothing is written
    coarse_from: int = 50_000
    # unsaved rows that justify a snapshot at closing, and before: then a quarter of the rows if that is more
    snapshot_on_close: int = 1000
    snapshot_after: int = 20_000
    # changes that the log keeps, for `Collection.changes`
    kept_changes: int = 1_000_000
    # time without a change after which maintenance does work that is not urgent
    idle_seconds: float = 3.0
    # time between a failure of maintenance and the next attempt
    pause_seconds: float = 30.0
