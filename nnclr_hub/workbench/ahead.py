"""Work on the next batch while the caller uses this one: decoding pictures beside embedding them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
WORKERS = 4


def batches(things: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of at most `size`, in order."""
    left = iter(things)
    while batch := list(islice(left, size)):
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
