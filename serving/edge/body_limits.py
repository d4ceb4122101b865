"""Limits of request bodies: counted and timed while they stream in, whatever Content-Length claims.

Each byte holds a permit until its request is answered. Many slow clients together therefore cannot fill more
memory than the settings allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from nnclr_hub.errors import Overloaded, RequestTooLarge, RequestTooSlow

from ..security.refusal import Refusal


class BodyLimits:
    """Limits that apply to every body.

    Args:
        max_bytes: size of one body.
        idle_s: seconds that a client may stay silent within a body.
        total_s: seconds until the whole body must have arrived.
        permits: bytes of all bodies whose requests are not answered yet. One body always fits.
    """

    def __init__(self, max_bytes: int, idle_s: float, total_s: float, permits: int) -> None:
        self._max_bytes = max_bytes
        self._permits = max(permits, max_bytes)
        self._idle_s = idle_s
        self._total_s = total_s

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
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._max_bytes:
            return Refusal(413, RequestTooLarge.code, self._too_large())
        return None

    @contextmanager
    def limited(self, receive: Receive) -> Iterator[Receive]:
        """Wrap `receive` to count and time the body. The received bytes hold permits until the context ends.

        Raises:
            RequestTooLarge: (from the wrapper) the body exceeds max_bytes.
            RequestTooSlow: (from the wrapper) the body is late or the client is silent.
            Overloaded: (from the wrapper) all bodies together exceed the permits.
        """
        total, complete = 0, False
        deadline: float | None = None

        async def counted() -> Message:
            nonlocal total, complete, deadline
            if complete:  # the next message is the disconnect, which may come at any time
                return await receive()
            now = asyncio.get_running_loop().time()
            deadline = deadline or now + self._total_s
            try:
                message = await asyncio.wait_for(receive(), min(self._idle_s, deadline - now))
            except TimeoutError as error:
                raise RequestTooSlow(
                    f"The request body did not arrive within {self._total_s:g} s, or paused for {self._idle_s:g} s; "
                    "send fewer images at once."
                ) from error
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

    def _too_large(self) -> str:
        return f"The request body exceeds the limit of {self._max_bytes / 1e6:g} MB; send fewer images at once."
