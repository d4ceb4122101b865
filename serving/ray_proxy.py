"""Error responses of Ray's proxy, in the server's error format and with Retry-After.

When a replica dies, Ray's proxy answers its requests with a bare 500. Nothing is wrong with those requests, so the
response tells clients to repeat them. Responses of replicas pass unchanged.

The HTTP parser of Ray's proxy would read the body of a request with `Upgrade` as the next request. Such a request is
refused, and its connection is closed.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import InvalidRequest, NotReady, Overloaded, ServerUnreachable

from .problems import problem

RAY_PATHS = "/-/"  # the proxy's own health routes
FULL = (429, Overloaded.code, "All replicas are overloaded; try again in a moment.")
NONE = (503, NotReady.code, "No replica is available; try again in a moment.")
LOST = (503, ServerUnreachable.code, "The replica that processed this request ended; repeat the request.")


def middlewares() -> list[Middleware]:
    """Return the middleware of Ray's proxy. RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names this function."""
    return [Middleware(ProxyResponses)]


class ProxyResponses:
    """The layer around Ray's proxy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(RAY_PATHS):
            await self._app(scope, receive, send)
            return
        if "upgrade" in Headers(scope=scope):
            detail = "Upgrade is not supported here; repeat the request without this header."
            error = problem(scope["path"], 400, InvalidRequest.code, detail, headers={"Connection": "close"})
            await error(scope, receive, send)
            return
        response = _Response(send)
        await self._app(scope, receive, response)
        if not response.from_replica:
            status, code, detail = response.replacement
            error = problem(scope["path"], status, code, detail, headers={"Retry-After": "1"})
            await error(scope, receive, send)


class _Response:
    """A `send` that passes the response of a replica, and withholds the proxy's own.

    replacement: status, code and detail to send in place of the proxy's own response.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.from_replica = False
        self.replacement = LOST

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            self.from_replica = "server-timing" in headers  # RequestLog adds it to every response of a replica
            if not self.from_replica:
                self.replacement = FULL if message["status"] == 429 else NONE
            ids = headers.getlist("x-request-id")  # one of the replica and one of the proxy
            if len(ids) > 1:
                headers["x-request-id"] = ids[0]
        if self.from_replica:
            await self._send(message)
