"""Limits on what the app never sees: heads, trailers, blank lines, and the rest of a body that is answered already.

uvicorn counts none of these: one connection could fill the memory with a head or with trailers that never end, and
many silent ones could take every socket. All that is no body has 64 KiB, and a head ten seconds. After an early
answer (413) what still comes of the body is thrown away for ten seconds, for a client that is cut off while it sends
would not read why. What nobody reads of an answer has a clock of its own (`unread.py`). Connections are counted too:
whoever comes above the limit is told 503, and soon cut off.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..problems import problem
from .access import LIVENESS
from .unread import Unread

MAX_HEAD = 64 * 1024
MAX_WASTE = 128 * 1024 * 1024  # bytes of a body that is answered already
PATIENCE_S = 10.0
TOLD = 64  # connections above the limit that still hear why
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: 32\r\n"
    b"connection: close\r\n\r\nThe request's head is too large."
)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's own, with a limit and a clock on what is no body, and with its limit_concurrency said properly."""

    _beside = 0  # bytes since the last of a body, or since a head or a message was complete
    _waste = 0  # bytes since the answer, of a message that goes on
    _in_body = False
    _clock: TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread = Unread(self.loop, transport)
        self._start_clock()
        above = len(self.connections) - self._most if self._most is not None else 0
        if above > TOLD:
            transport.abort()
        elif above > 0:
            self.app = cast(Any, self._full)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._unread.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.taken()

    def data_received(self, data: bytes) -> None:
        self._beside += len(data)
        answered = self.cycle is None or self.cycle.response_complete
        self._waste = self._waste + len(data) if answered and self._in_body else 0
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._beside > MAX_HEAD or self._waste > MAX_WASTE:
            self._stop_clock()
            if answered and not self._in_body:  # no half of an answer is out there
                self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif answered and self._clock is None and (self.cycle is None or self.cycle.response_complete):
            self._start_clock()  # whatever came has stopped the one of uvicorn, and is no request yet

    def on_message_begin(self) -> None:
        self._start_clock()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # or it is a trailer, which nobody reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._beside, self._in_body = 0, True
        self._stop_clock()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._beside, self._in_body = 0, False
        self._stop_clock()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unread.watch()
        if self._in_body and not self.transport.is_closing():
            self._start_clock()

    async def _full(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers for the app; a server that has much to do is no ill one."""
        if scope["path"] == LIVENESS:
            app = cast(ASGIApp, self.config.loaded_app)
            await app(scope, receive, send)
            return
        detail = f"The server has the {self._most} connections that it takes: try again in a moment."
        headers = {"Retry-After": "1", "Connection": "close"}
        await problem(scope["path"], 503, "too_many_connections", detail, headers=headers)(scope, receive, send)

    def _start_clock(self) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(PATIENCE_S, self.transport.close)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
