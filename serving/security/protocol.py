"""Limits on what the app never sees: the head of a request, and the rest of a body that is answered already.

uvicorn counts neither: one connection could fill the memory with a header that never ends, and many silent
ones could take every socket. A head has 64 KiB and ten seconds. After an early answer (413) what still comes of
the body is thrown away for ten seconds, for a client that is cut off while it sends would not read why.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 * 1024
PATIENCE_S = 10.0
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: 32\r\n"
    b"connection: close\r\n\r\nThe request's head is too large."
)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's own, with a limit and a clock on the head."""

    _head: int | None = 0  # bytes of the head that is coming in; None: it is complete
    _in_body = False
    _clock: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head is None or self.transport.is_closing():
            return
        # the chunk may hold the end of a body as well; a chunk is small beside the limit
        self._head += len(data)
        if self._head > MAX_HEAD:
            self._stop_clock()
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._head = 0
        self._start_clock()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head, self._in_body = None, True
        self._stop_clock()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._stop_clock()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and not self.transport.is_closing():
            self._start_clock()

    def _start_clock(self) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(PATIENCE_S, self.transport.close)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
