"""Read ahead: group items into bounded batches, and work on the next batch while the caller uses the current one.

    for paths, images in read_ahead(batches(paths, 64), decode_image):
        ...                                  # decode_image runs on the next 64 paths in other threads

Decoding images in threads while the network runs is the main use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
WORKERS = 4


def batches(
    items: Iterable[T], size: int, weigh: Callable[[T], int] | None = None, max_weight: int = 0
) -> Iterator[list[T]]:
    """Yield lists of at most `size` items, in order.

    Args:
        weigh: returns the weight of an item, such as its number of bytes.
        max_weight: the total weight of a list, if `weigh` is given. A heavier item is alone in its list.
    """
    if weigh is None:
        rest = iter(items)
        while batch := list(islice(rest, size)):
            yield batch
        return
    batch, total = [], 0
    for item in items:
        weight = weigh(item)
        if batch and (len(batch) == size or total + weight > max_weight):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += weight
    if batch:
        yield batch


def read_ahead(
    batches: Iterable[Sequence[T]], work: Callable[[T], R], workers: int = WORKERS
) -> Iterator[tuple[Sequence[T], list[R]]]:
    """Yield each batch with the results of `work` for its items; results of two batches are in memory at once.

    Args:
        batches: consumed one batch ahead of the caller.
        work: called in `workers` threads; the first exception that it raises is raised here.
    """
    pending: tuple[Sequence[T], list[Future[R]]] | None = None
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        for batch in batches:
            upcoming = (batch, [pool.submit(work, item) for item in batch])
            if pending is not None:
                yield pending[0], [future.result() for future in pending[1]]
            pending = upcoming
        if pending is not None:
            yield pending[0], [future.result() for future in pending[1]]
    finally:  # also if the caller stops early: nobody needs the results of the next batch then
        pool.shutdown(cancel_futures=True)
