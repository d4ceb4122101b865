"""The head of a request: at most 64 KiB, within ten seconds.

uvicorn counts neither, so one connection could fill the memory with a header that never ends, and many
silent ones could take every socket. What comes after the head is the door's to count (body.py).
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 * 1024
HEAD_S = 10.0
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: 32\r\n"
    b"connection: close\r\n\r\nThe request's head is too large."
)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's own, with a limit and a clock on the head."""

    _head: int | None = 0  # bytes of the head that is coming in; None: it is complete
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
        self._head = None
        self._stop_clock()
        super().on_headers_complete()

    def _start_clock(self) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
