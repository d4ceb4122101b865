"""Limits on what the app never sees: request heads, trailers, discarded bodies, unread responses, connections.

uvicorn limits none of these. One connection could fill the memory with an endless head or endless trailers, and
many silent ones could take every socket. The limits:

- everything that is not a body: 64 KiB; a head must be complete after ten seconds;
- after an early response such as 413, the rest of the body is discarded for ten seconds. Closing at once would
  reset the connection, and the client would not read the response;
- a response of which the client takes nothing for 20 seconds: the connection is aborted;
- connections above the setting get 503 and are closed; /healthz is still answered. Of these, the oldest that wait for
  a request are aborted to make space for new ones, so that idle connections cannot take the place of a health check.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle, Transport
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..problems import problem
from ..security.access import LIVENESS
from .request_parser import RequestParser

MAX_HEAD = 64 * 1024
MAX_DISCARDED = 128 * 1024 * 1024  # bytes of a body whose request is already answered
HEAD_S = 10.0
UNREAD_S = 20.0
EXPLAINED = 64  # connections above the limit, which get a 503, or the answer of /healthz
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: 31\r\n"
    b"connection: close\r\n\r\nThe request head is too large.\n"
)


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits, and with a proper response to too many connections."""

    _outside_body = 0  # bytes since the last byte of a body, or since a head or a message was complete
    _discarded = 0  # bytes since the response, of a message that continues
    _in_body = False
    _timer: TimerHandle | None = None
    _surplus: ClassVar[WeakKeyDictionary[Any, dict[LimitedProtocol, None]]] = WeakKeyDictionary()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = cast(Any, RequestParser(self))
        # uvicorn's own check answers plain text, and also refuses /healthz
        self._max_connections, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unread = _UnreadResponseTimer(self.loop, transport)
        self._start_timer()
        if self._max_connections is not None and len(self.connections) > self._max_connections:
            self.app = cast(Any, self._refuse_connection)
            surplus = self._surplus.setdefault(self.server_state, {})
            surplus[self] = None
            if len(surplus) > EXPLAINED:
                oldest = next((one for one in surplus if one.cycle is None or one.cycle.response_complete), self)
                del surplus[oldest]
                oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._unread.stop()
        self._surplus.get(self.server_state, {}).pop(self, None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.note_read()

    def data_received(self, data: bytes) -> None:
        self._outside_body += len(data)
        answered = self.cycle is None or self.cycle.response_complete
        self._discarded = self._discarded + len(data) if answered and self._in_body else 0
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._outside_body > MAX_HEAD or self._discarded > MAX_DISCARDED:
            self._stop_timer()
            if answered and not self._in_body:  # no response is half sent
                self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif answered and self._timer is None and (self.cycle is None or self.cycle.response_complete):
            # these bytes stopped uvicorn's keep-alive timer, and are not a request yet
            self._start_timer()

    def on_message_begin(self) -> None:
        self._start_timer()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # a trailer must not become a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.is_offer():
            return
        self._outside_body, self._in_body = 0, True
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._outside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.is_offer():
            return
        self._outside_body, self._in_body = 0, False
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unread.watch()
        if self._in_body and not self.transport.is_closing():
            self._start_timer()

    async def _refuse_connection(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in place of the app. A busy server is still alive, so /healthz works."""
        if scope["path"] == LIVENESS:
            app = cast(ASGIApp, self.config.loaded_app)
            await app(scope, receive, send)
            return
        detail = f"The server has reached its limit of {self._max_connections} connections; try again in a moment."
        headers = {"Retry-After": "1", "Connection": "close"}
        await problem(scope["path"], 503, "too_many_connections", detail, headers=headers)(scope, receive, send)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _UnreadResponseTimer:
    """Abort a connection whose client takes nothing of a response for UNREAD_S. Slow readers may finish.

    An unread response holds its memory and one of the connections.
    """

    def __init__(self, loop: AbstractEventLoop, transport: Transport) -> None:
        self._loop, self._transport = loop, transport
        self._timer: TimerHandle | None = None
        self._left, self._was_read = 0, False

    def watch(self) -> None:
        """Start the timer if bytes are waiting to be read and it does not run yet."""
        left = self._transport.get_write_buffer_size()
        if left and self._timer is None:
            self._start(left)

    def note_read(self) -> None:
        """Record that the client read something. A streamed response may refill the buffer to the same size."""
        self._was_read = True

    def stop(self) -> None:
        """Stop the timer: the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, left: int) -> None:
        self._left, self._was_read = left, False
        self._timer = self._loop.call_later(UNREAD_S, self._check)

    def _check(self) -> None:
        self._timer = None
        left = self._transport.get_write_buffer_size()
        if left and left >= self._left and not self._was_read:
            self._transport.abort()  # close() would wait for the unread bytes
        elif left:
            self._start(left)
