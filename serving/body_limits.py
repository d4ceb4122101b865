"""Limits of request bodies.

Bodies are counted and timed while they stream in, whatever Content-Length claims. Each byte holds a permit until its
request is answered. Many slow clients together therefore cannot fill more memory than the settings allow.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import Overloaded, RequestTooLarge, RequestTooSlow

from .security.access import Refusal
from .settings import Settings

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


class BodyLimitsLayer:
    """The ASGI layer that applies the limits of the body. `scope["state"]["streamed"]` chooses which.

    Args:
        app: the app behind this layer.
        settings: the limits of bodies.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._body = BodyLimits(settings.max_bytes, settings.body_idle_s, settings.body_s, settings.bodies_bytes)
        self._streamed = BodyLimits(settings.import_bytes, settings.body_idle_s, math.inf, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = self._streamed if scope.get("state", {}).get("streamed") else self._body
        headers = Headers(scope=scope)
        refusal = body.refusal(headers)
        if refusal is not None:
            await refusal.response(scope["path"])(scope, receive, send)
            return
        with body.limited(receive, headers) as receive:
            await self._app(scope, receive, send)
