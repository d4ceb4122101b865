"""Work for a client ends with the client, and otherwise as if nobody had looked."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from serving.responses import while_connected


def request(gone: asyncio.Event) -> Request:
    """A request that was read; its client leaves at the event."""

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "method": "GET", "path": "/", "headers": []}, receive)


def test_the_result_or_error_of_the_work_is_returned():
    async def ask():
        async def fail():
            raise ValueError("its own")

        assert await while_connected(request(asyncio.Event()), asyncio.sleep(0, "done")) == "done"
        with pytest.raises(ValueError, match="its own"):
            await while_connected(request(asyncio.Event()), fail())
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(ask())


def test_work_is_cancelled_when_its_client_disconnects():
    async def ask():
        gone, begun, cancelled = asyncio.Event(), asyncio.Event(), []

        async def work():
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        asked = asyncio.create_task(while_connected(request(gone), work()))
        await begun.wait()
        assert not cancelled
        gone.set()
        with pytest.raises(ClientDisconnect):
            await asked
        assert cancelled
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(ask())


def test_work_is_cancelled_with_the_task_that_awaits_it():
    async def ask():
        work = asyncio.Event()
        asked = asyncio.create_task(while_connected(request(asyncio.Event()), work.wait()))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(ask())
