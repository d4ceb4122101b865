"""Turns: so many at once at what takes much memory, and so many who wait for it.

turns = Turns(3, waiting=32, metrics=metrics)
async with turns.taken(seconds=30): ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CapacityLimiter, fail_after

from nnclr_hub.errors import DeadlineExceeded, Overloaded

from .telemetry import Metrics

RETRY_S = 2.0


class Turns:
    """See the module.

    Args:
        at_once: how many have their turn.
        waiting: how many may wait for it; who comes above that is sent away at once.
        metrics: filled.
    """

    def __init__(self, at_once: int, *, waiting: int, metrics: Metrics) -> None:
        self._limiter = CapacityLimiter(at_once)
        self._waiting = waiting
        self._metrics = metrics

    @asynccontextmanager
    async def taken(self, seconds: float) -> AsyncIterator[None]:
        """One's turn, for as long as one is inside.

        Raises:
            Overloaded: as many wait already as may.
            DeadlineExceeded: it did not come within so many seconds.
        """
        if self._limiter.statistics().tasks_waiting >= self._waiting:
            self._metrics.refused.labels("overloaded").inc()
            raise Overloaded(f"Too many wait for an attention map already: try again in {RETRY_S:g} s.", RETRY_S)
        try:
            with fail_after(seconds):
                await self._limiter.acquire()
        except TimeoutError as error:
            raise DeadlineExceeded("The request's turn did not come by its deadline: try again later.") from error
        try:
            yield
        finally:
            self._limiter.release()
