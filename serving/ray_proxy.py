"""What Ray's proxy says for itself, said as the server would: our form of problems, and when to ask again.

A replica that dies takes the requests with it that it has; Ray's proxy answers these 500 and no more. Nothing is wrong
with them, so they are told to be sent again. What comes from a replica passes as it is.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import NotReady, Overloaded, ServerUnreachable

from .problems import problem

RAYS_OWN = "/-/"  # where the proxy tells how it is
FULL = (429, Overloaded.code, "All replicas have as much work as they take: try again in a moment.")
NONE = (503, NotReady.code, "No replica is there to answer: try again in a moment.")
LOST = (503, ServerUnreachable.code, "The replica that had this request ended: send it again.")


def middlewares() -> list[Middleware]:
    """What Ray's proxy puts around itself, where RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names this function."""
    return [Middleware(ProxyResponses)]


class ProxyResponses:
    """Goes around Ray's proxy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(RAYS_OWN):
            await self._app(scope, receive, send)
            return
        heard = _Heard(send)
        await self._app(scope, receive, heard)
        if not heard.answered:
            status, code, detail = heard.instead
            answer = problem(scope["path"], status, code, detail, headers={"Retry-After": "1"})
            await answer(scope, receive, send)


class _Heard:
    """`send` that lets a replica's answer pass; instead: what to say where there is none."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.answered = False
        self.instead = LOST

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            self.answered = "server-timing" in headers  # on every answer of ours, see `observing`
            if not self.answered:
                self.instead = FULL if message["status"] == 429 else NONE
            ids = headers.getlist("x-request-id")  # the replica's, and once more the proxy's
            if len(ids) > 1:
                headers["x-request-id"] = ids[0]
        if self.answered:
            await self._send(message)
