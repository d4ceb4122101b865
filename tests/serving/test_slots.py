"""Slots limit the requests at once and the requests that wait."""

import asyncio

import pytest

from nnclr_hub.errors import DeadlineExceeded, Overloaded
from serving.engine.attention import Slots
from serving.telemetry import Metrics


def test_slots_and_the_queue_in_front_of_them_are_limited():
    waits: list[float] = []

    async def run() -> int:
        slots, inside, most = Slots(2, waiting=3, metrics=Metrics()), 0, 0

        async def one() -> None:
            nonlocal inside, most
            try:
                async with slots.slot(10):
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0.01)
                    inside -= 1
            except Overloaded as error:
                waits.append(error.retry_after)

        await asyncio.gather(*(one() for _ in range(8)))
        async with slots.slot(1):
            pass
        return most

    assert asyncio.run(run()) == 2
    assert len(waits) == 3
    assert min(waits) > 0


def test_a_timeout_or_cancellation_frees_the_queue():
    async def run() -> None:
        slots = Slots(1, waiting=3, metrics=Metrics())
        async with slots.slot(1):
            with pytest.raises(DeadlineExceeded):
                await asyncio.create_task(slots.slot(0.01).__aenter__())
            waiting = asyncio.create_task(slots.slot(10).__aenter__())
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with slots.slot(0.01):
            pass

    asyncio.run(run())
