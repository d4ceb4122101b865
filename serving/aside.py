"""Work on large bodies, off the event loop.

parsed = await aside(len(body), parse, body)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fastapi.concurrency import run_in_threadpool

P = ParamSpec("P")
R = TypeVar("R")
LARGE = 256 << 10  # bytes; what is smaller is done sooner than a thread is found


async def aside(size: int, work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """What the work gives: done in a thread if it is on many bytes.

    Args:
        size: bytes to work on.
    """
    if size <= LARGE:
        return work(*arguments, **named)
    return await run_in_threadpool(work, *arguments, **named)
