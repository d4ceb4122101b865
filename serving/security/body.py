"""The body of a request: counted and timed while it streams in, never believed by its Content-Length.

A byte that has come needs a permit until its request is answered: however many clients send at once, and however
slowly, their bodies fill no more memory than the settings say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from nnclr_hub.errors import Overloaded, RequestTooLarge, RequestTooSlow

from .refusal import Refusal


class BodyLimits:
    """Limits of every body.

    Args:
        max_bytes: of a body.
        idle_s: seconds that a client may stay silent within it.
        total_s: seconds in which it must be here.
        permits: bytes of all bodies whose requests are not answered yet; one body always fits.
    """

    def __init__(self, max_bytes: int, idle_s: float, total_s: float, permits: int) -> None:
        self._max_bytes = max_bytes
        self._permits = max(permits, max_bytes)
        self._idle_s = idle_s
        self._total_s = total_s

    def refusal(self, headers: Headers) -> Refusal | None:
        """Why the body is not read at all, if so."""
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            return Refusal(
                415,
                "unsupported_encoding",
                f"A body with the Content-Encoding {encoding!r:.40} is not read here: send it as it is.",
            )
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._max_bytes:
            return Refusal(413, RequestTooLarge.code, self._too_large())
        return None

    @contextmanager
    def limited(self, receive: Receive) -> Iterator[Receive]:
        """`receive` that raises RequestTooLarge, RequestTooSlow and Overloaded while the body streams in.

        What has come holds its permits to the end of the context.
        """
        total, whole = 0, False
        deadline: float | None = None

        async def counted() -> Message:
            nonlocal total, whole, deadline
            if whole:  # what comes now is the end of the connection, which may take as long as it likes
                return await receive()
            now = asyncio.get_running_loop().time()
            deadline = deadline or now + self._total_s
            try:
                message = await asyncio.wait_for(receive(), min(self._idle_s, deadline - now))
            except TimeoutError as error:
                raise RequestTooSlow(
                    f"The request's body did not come within {self._total_s:g} s, or stopped for {self._idle_s:g} s: "
                    "send fewer images at once."
                ) from error
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                if total + size > self._max_bytes:
                    raise RequestTooLarge(self._too_large())
                if size > self._permits:
                    raise Overloaded("The server has as many bytes of requests in work as it takes: send this again.")
                self._permits -= size
                total += size
                whole = not message.get("more_body", False)
            return message

        try:
            yield counted
        finally:
            self._permits += total

    def _too_large(self) -> str:
        return f"The request is above the limit of {self._max_bytes / 1e6:g} MB: send fewer images at once."
