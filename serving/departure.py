"""Clients that go away: what is still to be done for them is dropped.

vectors = await while_present(request, model.embed_each_async(images))
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def while_present(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; cancels it as soon as the client has gone.

    For work that may be broken off anywhere, after the whole body was read: never for a write to the store.

    Raises:
        ClientDisconnect: the client has gone; whatever the work raises otherwise.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_departure(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            leaving.result()  # a connection that cannot even be listened to says so
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _departure(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
