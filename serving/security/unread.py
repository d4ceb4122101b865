"""A clock on answers that nobody reads: whoever takes nothing of one for a while is cut off.

    unread = Unread(loop, transport)
    unread.watch()      # there is something to be read
    unread.taken()      # some of it was

An answer that waits to be read holds its memory, and the connection one of those that the server takes.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle, Transport

UNREAD_S = 20.0


class Unread:
    """See the module. A client that reads slowly is let read, for as long as it takes.

    Args:
        transport: of the connection.
    """

    def __init__(self, loop: AbstractEventLoop, transport: Transport) -> None:
        self._loop, self._transport = loop, transport
        self._timer: TimerHandle | None = None
        self._left, self._taken = 0, False

    def watch(self) -> None:
        """Begins to look, if something is to be read and nobody looks yet."""
        left = self._transport.get_write_buffer_size()
        if left and self._timer is None:
            self._begin(left)

    def taken(self) -> None:
        """The client has read; for answers that come in parts, of which there may be as much as before."""
        self._taken = True

    def stop(self) -> None:
        """The connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, left: int) -> None:
        self._left, self._taken = left, False
        self._timer = self._loop.call_later(UNREAD_S, self._look)

    def _look(self) -> None:
        self._timer = None
        left = self._transport.get_write_buffer_size()
        if left and left >= self._left and not self._taken:
            self._transport.abort()  # closing would wait for what is not read
        elif left:
            self._begin(left)
