"""HEAD for every GET: the same status and headers, without the body.

    app.add_middleware(HeadRequests)

It is a pure ASGI layer, so that it also covers an app that is mounted later, such as the web page.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
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
        complete = False

        async def head(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
            elif message.get("more_body", False):  # the body may be an endless stream, such as the events of a job
                complete = True
                working.cancel()

        working = asyncio.ensure_future(self._app({**scope, "method": "GET"}, receive, head))
        try:
            await working
        except asyncio.CancelledError:
            own_task = asyncio.current_task()
            if not complete or (own_task is not None and own_task.cancelling()):
                raise
