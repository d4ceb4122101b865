"""Limits of request bodies, and of the requests and images per minute of each caller.

A caller is the name of a key, or the client's address if the server has no keys. Bodies are counted and timed while
they stream in, whatever Content-Length claims. Each byte holds a permit until its request is answered. Many slow
clients together therefore cannot fill more memory than the settings allow.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import Overloaded, RateLimited, RequestTooLarge, RequestTooSlow

from ..security.access import Refusal
from ..security.authentication import TokenBuckets
from ..settings import Settings

LARGE = 128 << 10  # bytes
FEW = 4  # large bodies that may arrive at once without a pause
PAUSE_S = 0.002  # longer than the event loop takes for one piece, of at most 256 KiB


class BodyLimits:
    """Limits that apply to every body.

    Large bodies take turns: one of them receives a piece in each cycle of the event loop. If many arrive at once, the
    loop pauses between two pieces. Otherwise an ordinary request would wait for a piece of each body in each of the ten
    cycles that it takes.

    Args:
        max_bytes: size of one body.
        idle_s: seconds that a client may stay silent within a body.
        total_s: seconds until the whole body must have arrived.
        permits: bytes of all bodies whose requests are not answered yet. One body always fits. None: no limit, for
            bodies that are written to disk as they arrive.
    """

    def __init__(self, max_bytes: int, idle_s: float, total_s: float, permits: int | None) -> None:
        self._max_bytes = max_bytes
        self._permits = math.inf if permits is None else max(permits, max_bytes)
        self._idle_s = idle_s
        self._total_s = total_s
        self._turn = asyncio.Lock()
        self._waiting = 0  # for the turn, or have it

    def refusal(self, headers: Headers) -> Refusal | None:
        """Return why the body is rejected by its headers, or None."""
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            # a few hundred compressed bytes can expand a thousandfold
            return Refusal(
                415,
                "unsupported_encoding",
                f"Content-Encoding {encoding!r:.40} is not supported; send the body uncompressed.",
            )
        if _length(headers) > self._max_bytes:
            return Refusal(413, RequestTooLarge.code, self._too_large())
        return None

    @contextmanager
    def limited(self, receive: Receive, headers: Headers) -> Iterator[Receive]:
        """Wrap `receive` to count and time the body. The received bytes hold permits until the context ends.

        Raises:
            RequestTooLarge: (from the wrapper) the body exceeds max_bytes.
            RequestTooSlow: (from the wrapper) the body is late or the client is silent.
            Overloaded: (from the wrapper) all bodies together exceed the permits.
        """
        total, complete = 0, False
        deadline: float | None = None
        expected = _length(headers)

        async def counted() -> Message:
            nonlocal total, complete, deadline
            if complete:  # the next message is the disconnect, which may come at any time
                return await receive()
            if max(expected, total) > LARGE:
                await self._take_turn()
            now = asyncio.get_running_loop().time()
            deadline = deadline or now + self._total_s
            if now > deadline:  # a timeout ends only a `receive` that waits; a part may be here whenever it is called
                raise RequestTooSlow(self._too_slow())
            try:
                async with asyncio.timeout(min(self._idle_s, deadline - now)):  # `wait_for` would start a task
                    message = await receive()
            except TimeoutError as error:
                raise RequestTooSlow(self._too_slow()) from error
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                if total + size > self._max_bytes:
                    raise RequestTooLarge(self._too_large())
                if size > self._permits:
                    raise Overloaded("The server is receiving too many request bodies; try again in a moment.")
                self._permits -= size
                total += size
                complete = not message.get("more_body", False)
            return message

        try:
            yield counted
        finally:
            self._permits += total

    async def _take_turn(self) -> None:
        """Wait until this large body may receive its next piece."""
        self._waiting += 1
        try:
            async with self._turn:
                await asyncio.sleep(PAUSE_S if self._waiting > FEW else 0)
        finally:
            self._waiting -= 1

    def _too_slow(self) -> str:
        return (
            f"The request body did not arrive within {self._total_s:g} s, or paused for {self._idle_s:g} s; "
            "send fewer images at once."
        )

    def _too_large(self) -> str:
        return f"The request body exceeds the limit of {self._max_bytes / 1e6:g} MB; send fewer images at once."


def _length(headers: Headers) -> int:
    """Return the length of the body that the client announces, 0 without one."""
    length = headers.get("content-length", "0")
    return int(length[:20]) if length.isdecimal() else 0


@dataclass(frozen=True)
class Allowance:
    """The rates of one caller."""

    caller: str
    requests: TokenBuckets
    images: TokenBuckets

    def charge_request(self) -> None:
        """Count one request.

        Raises:
            RateLimited: the caller sent too many in the last minute.
        """
        self._charge(self.requests, 1, "requests")

    def charge_images(self, count: int) -> None:
        """Count images.

        Raises:
            RateLimited: the caller sent too many in the last minute; none of these is counted.
        """
        self._charge(self.images, count, "images")

    def headers(self) -> dict[str, str]:
        """Return the x-ratelimit headers of a response; none if there is no limit."""
        return self.requests.headers(self.caller, "requests") | self.images.headers(self.caller, "images")

    def _charge(self, buckets: TokenBuckets, count: int, what: str) -> None:
        wait = buckets.take(self.caller, count)
        if wait > 0:
            raise RateLimited(
                f"{self.caller} exceeded {buckets.size} {what} per minute; try again in {math.ceil(wait)} s.", wait
            )


# of the current request: set by EdgeLimits, and by the page in the threads that continue a request
_current: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


def use(allowance: Allowance) -> None:
    """Make it the allowance of the current request."""
    _current.set(allowance)


def charge_images(count: int) -> None:
    """Count images of the current request. Outside a request, as in a job, this does nothing.

    Raises:
        RateLimited: the caller sent too many in the last minute.
    """
    allowance = _current.get()
    if allowance is not None:
        allowance.charge_images(count)


class EdgeLimits:
    """The ASGI layer that applies the rate of the caller, then the limits of the body.

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
        self._streamed = BodyLimits(settings.import_bytes, settings.body_idle_s, math.inf, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        allowance = Allowance(scope["user"].display_name, self._requests, self._images)
        state["enter"] = partial(use, allowance)  # for code that continues the request in a thread
        use(allowance)
        if self._requests.enabled or self._images.enabled:
            send = _with_rate_headers(send, allowance)
        body = self._streamed if state.get("streamed") else self._body
        headers = Headers(scope=scope)
        refusal = self._refusal(headers, allowance, body, counted=state.get("counted", True))
        if refusal is not None:
            await refusal.response(scope["path"])(scope, receive, send)
            return
        with body.limited(receive, headers) as receive:
            await self._app(scope, receive, send)

    def _refusal(self, headers: Headers, allowance: Allowance, body: BodyLimits, *, counted: bool) -> Refusal | None:
        if counted:
            try:
                allowance.charge_request()
            except RateLimited as error:
                wait = str(max(1, math.ceil(error.retry_after)))
                return Refusal(429, error.code, str(error), {"Retry-After": wait})
        return body.refusal(headers)


def _with_rate_headers(send: Send, allowance: Allowance) -> Send:
    """Wrap `send` to add what the caller has left when the response starts."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in allowance.headers().items():
                headers.setdefault(name, value)
        await send(message)

    return with_headers
