"""Work on the next batch while the caller uses this one: decoding images beside embedding them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
WORKERS = 4
MOST_BYTES = 32_000_000  # of files; decoded they have some ten times as many, and two batches are in memory at once


def batches(things: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of at most `size`, in order."""
    left = iter(things)
    while batch := list(islice(left, size)):
        yield batch


def batches_of_files(things: Iterable[T], size: int, weigh: Callable[[T], int]) -> Iterator[list[T]]:
    """The same, of image files that have at most MOST_BYTES together; a larger one comes alone.

    Args:
        weigh: a file's bytes.
    """
    batch: list[T] = []
    total = 0
    for one in things:
        weight = weigh(one)
        if batch and (len(batch) == size or total + weight > MOST_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(one)
        total += weight
    if batch:
        yield batch


def ahead(every: Iterable[Sequence[T]], work: Callable[[T], R]) -> Iterator[tuple[Sequence[T], list[R]]]:
    """Each batch with the results of `work` for its members, one batch ahead of the caller, in a few threads."""
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        waiting = None
        for batch in every:
            upcoming = (batch, [pool.submit(work, one) for one in batch])
            if waiting is not None:
                yield waiting[0], [future.result() for future in waiting[1]]
            waiting = upcoming
        if waiting is not None:
            yield waiting[0], [future.result() for future in waiting[1]]
