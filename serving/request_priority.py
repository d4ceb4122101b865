"""RequestPriority: on the event loop that requests and the page share, requests run first.

    config = uvicorn.Config(app, loop=f"{__package__}.request_priority:PriorityLoop")
    app = RequestPriority(app, background="/ui/gradio_api/queue/.*")

The page's callbacks wait in a separate low-priority queue and run one by one, after everything else that is ready.
While a request is being answered they are paused, except for a short turn now and then, so that a stream of requests
does not stop them. They must not hold locks that a request may need. All other callbacks run as on any loop.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

import uvloop
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAUSE_S = (
    0.008  # of the low-priority queue while a request runs; shared among concurrent requests, which slow each other
)
TURN_S = 0.001  # how long the queue runs then
CALM_S = 0.002  # after a response: by then a client that has another request has sent it
TICK_S = 0.001  # resolution of the loop's timers
LOW_PRIORITY: ContextVar[bool] = ContextVar("low_priority", default=False)  # set in code that must yield to requests


class PriorityLoop(uvloop.Loop):
    """An event loop with a second, low-priority queue for callbacks whose context has LOW_PRIORITY set."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = 0
        self._calm_at = 0.0  # from then on the low-priority queue runs without limit
        self._turn_ends = 0.0
        self._low: deque[tuple[asyncio.Handle, Callable[..., Any], tuple[Any, ...], Context]] = deque()
        self._next: asyncio.Handle | None = None  # the scheduled step of the low-priority queue
        self._own = Context()  # the queue's own steps have normal priority

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Schedule a callback as on any loop. Low-priority callbacks keep their order among themselves."""
        if not (LOW_PRIORITY.get() if context is None else context.get(LOW_PRIORITY, False)):
            return super().call_soon(callback, *args, context=context)
        if not callable(callback):
            raise TypeError(f"a callable object was expected by call_soon(), got {callback!r}")
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        if not self._low:
            self._schedule_step()
        self._low.append((handle, callback, args, context))
        return handle

    def request_begins(self) -> None:
        """Pause the low-priority queue."""
        self._requests += 1
        self._calm_at = math.inf

    def request_ends(self) -> None:
        """Undo one call of `request_begins`."""
        self._requests -= 1
        if not self._requests:
            self._calm_at = time.monotonic() + CALM_S
            if self._low:
                self._schedule_step()

    def _schedule_step(self) -> None:
        """Schedule the next step of the low-priority queue, and only one."""
        if self._next is not None:
            self._next.cancel()
        self._next = super().call_soon(self._step, context=self._own)

    def _step(self) -> None:
        """Run the first low-priority callback if it may run now."""
        self._next = None
        wait = self._wait(time.monotonic())
        if wait > 0:
            self._next = self.call_later(max(wait, TICK_S), self._step, context=self._own)
            return
        handle, callback, args, context = self._low.popleft()
        if self._low:
            self._schedule_step()
        try:
            if not handle.cancelled():
                context.run(callback, *args)
        except Exception as error:  # noqa: BLE001 - as any loop does
            self.call_exception_handler({"message": f"Exception in {handle!r}", "exception": error, "handle": handle})

    def _wait(self, now: float) -> float:
        """Return the seconds until the queue may run. 0 also begins a turn if it is time for one."""
        turn_begins = self._turn_ends + PAUSE_S / max(1, self._requests)
        if now >= self._calm_at:
            self._turn_ends = now
        elif now >= turn_begins:
            self._turn_ends = now + TURN_S
        elif now >= self._turn_ends:
            return min(turn_begins, self._calm_at) - now
        return 0.0


class RequestPriority:
    """The layer around the whole app that assigns priorities. On a loop of another type it does nothing.

    Args:
        app: the app inside.
        background: regular expression for whole paths whose requests get low priority.
    """

    def __init__(self, app: ASGIApp, background: str) -> None:
        self._app = app
        self._background = re.compile(background)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        if scope["type"] != "http" or not isinstance(loop, PriorityLoop):
            await self._app(scope, receive, send)
            return
        is_low = self._background.fullmatch(scope["path"]) is not None
        LOW_PRIORITY.set(is_low)  # also to False: a pipelined request inherits the context of the previous one
        if is_low:
            await asyncio.sleep(0)  # continues in the low-priority queue
            await self._app(scope, receive, send)
        else:
            await self._answer(loop, scope, receive, send)

    async def _answer(self, loop: PriorityLoop, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and pause the queue from its complete body to the start of its response.

        A slow upload or a long download may take hours, and must not pause the queue.
        """
        paused = whole = answered = over = False

        def pause(should_pause: bool) -> None:
            nonlocal paused
            if should_pause is not paused:
                paused = should_pause
                (loop.request_begins if paused else loop.request_ends)()

        async def received() -> Message:
            nonlocal whole
            if not whole:
                pause(False)
            message = await receive()
            whole = whole or not message.get("more_body", False)
            pause(not (answered or over))
            return message

        async def sent(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                pause(False)
            await send(message)

        pause(True)
        try:
            await self._app(scope, received, sent)
        finally:
            over = True  # code that still waits for the disconnect must not pause again
            pause(False)
