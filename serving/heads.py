"""HEAD for every GET: the same status and headers, and no body.

    app.add_middleware(Heads)

A pure ASGI layer, so that it holds for whatever is ever put behind it, the page too.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Heads:
    """See the module.

    Args:
        app: answers GET.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        enough = False

        async def head(message: Message) -> None:
            nonlocal enough
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
            elif message.get("more_body", False):  # it may be a stream without an end
                enough = True
                working.cancel()

        working = asyncio.ensure_future(self._app({**scope, "method": "GET"}, receive, head))
        try:
            await working
        except asyncio.CancelledError:
            asked = asyncio.current_task()
            if not enough or (asked is not None and asked.cancelling()):
                raise
