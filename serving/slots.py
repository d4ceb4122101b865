"""Slots: bounded concurrency for work that needs much memory, with a bounded queue in front of it.

slots = Slots(3, waiting=32, metrics=metrics)
async with slots.slot(seconds=30): ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CapacityLimiter, fail_after

from nnclr_hub.errors import DeadlineExceeded, Overloaded

from .telemetry import Metrics

RETRY_S = 2.0


class Slots:
    """See the module.

    Args:
        count: requests that hold a slot at once.
        waiting: requests that may wait for one; any above that are refused at once.
        metrics: counts the refusals.
    """

    def __init__(self, count: int, *, waiting: int, metrics: Metrics) -> None:
        self._limiter = CapacityLimiter(count)
        self._waiting = waiting
        self._metrics = metrics

    @asynccontextmanager
    async def slot(self, seconds: float) -> AsyncIterator[None]:
        """Hold a slot inside the block.

        Raises:
            Overloaded: too many requests wait already.
            DeadlineExceeded: no slot became free within so many seconds.
        """
        if self._limiter.statistics().tasks_waiting >= self._waiting:
            self._metrics.refused.labels("overloaded").inc()
            raise Overloaded(f"Too many requests wait for an attention map; retry in {RETRY_S:g} s.", RETRY_S)
        try:
            with fail_after(seconds):
                await self._limiter.acquire()
        except TimeoutError as error:
            raise DeadlineExceeded("The request did not start before its deadline; retry later.") from error
        try:
            yield
        finally:
            self._limiter.release()
