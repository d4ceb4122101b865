"""EdgeLimits: the ASGI layer that limits request rates and request bodies."""

from __future__ import annotations

import math
from functools import partial

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import RateLimited

from ..security.refusal import Refusal
from ..security.token_buckets import TokenBuckets
from ..settings import Settings
from .body_limits import BodyLimits
from .rate_limits import Allowance, use


class EdgeLimits:
    """Apply the rate of the caller, then the limits of the body.

    Access control runs before it, and leaves the caller in `scope["user"]` and whether the route counts against
    rates in `scope["state"]["counted"]`.

    Args:
        app: the app behind this layer.
        settings: rates, max_images, and the limits of bodies.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._requests = TokenBuckets(settings.rate_requests)
        self._images = TokenBuckets(settings.rate_images, settings.max_images)
        self._body = BodyLimits(settings.max_bytes, settings.body_idle_s, settings.body_s, settings.bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        allowance = Allowance(scope["user"].display_name, self._requests, self._images)
        state["enter"] = partial(use, allowance)  # for code that continues the request in a thread
        use(allowance)
        send = _with_rate_headers(send, allowance)
        refusal = self._refusal(Headers(scope=scope), allowance, counted=state.get("counted", True))
        if refusal is not None:
            await refusal.response(scope["path"])(scope, receive, send)
            return
        with self._body.limited(receive) as receive:
            await self._app(scope, receive, send)

    def _refusal(self, headers: Headers, allowance: Allowance, *, counted: bool) -> Refusal | None:
        if counted:
            try:
                allowance.charge_request()
            except RateLimited as error:
                wait = str(max(1, math.ceil(error.retry_after)))
                return Refusal(429, error.code, str(error), {"Retry-After": wait})
        return self._body.refusal(headers)


def _with_rate_headers(send: Send, allowance: Allowance) -> Send:
    """Wrap `send` to add what the caller has left when the response starts."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in allowance.headers().items():
                headers.setdefault(name, value)
        await send(message)

    return with_headers
