"""RequestPriority: on the event loop that requests and the page share, requests go first.

    config = uvicorn.Config(app, loop=f"{__package__}.request_priority:PriorityLoop")
    app = RequestPriority(app, behind="/ui/gradio_api/queue/.*")

The steps of what is behind stand in a line of their own. They run one by one, each after whatever else is ready; while
a request is being answered they stand still, but for a short turn now and then, so that no stream of requests stops
them. They must hold nothing that a request may wait for. What else runs on the loop runs as it always did.
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

STILL_S = 0.008  # how long the line stands still beside a request; where there are several, they wait for each other
TURN_S = 0.001  # how long it goes on then
NEXT_S = 0.002  # after an answer: by then a client that has more to ask has asked
TICK_S = 0.001  # the loop's clock
LOW_PRIORITY: ContextVar[bool] = ContextVar("steps_aside", default=False)  # set by what is to let requests go first


class PriorityLoop(uvloop.Loop):
    """An event loop that knows whose the steps are: by LOW_PRIORITY, in the context that they run in."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = 0
        self._calm_at = 0.0  # when the line goes on for as long as it likes
        self._turn_ends = 0.0
        self._line: deque[tuple[asyncio.Handle, Callable[..., Any], tuple[Any, ...], Context]] = deque()
        self._next: asyncio.Handle | None = None  # the line's next step
        self._own = Context()  # the line itself never steps aside

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """As of any loop; also here, what comes first in the line runs first."""
        if not (LOW_PRIORITY.get() if context is None else context.get(LOW_PRIORITY, False)):
            return super().call_soon(callback, *args, context=context)
        if not callable(callback):
            raise TypeError(f"a callable object was expected by call_soon(), got {callback!r}")
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        if not self._line:
            self._go_on()
        self._line.append((handle, callback, args, context))
        return handle

    def request_begins(self) -> None:
        """From now on the line stands still."""
        self._requests += 1
        self._calm_at = math.inf

    def request_ends(self) -> None:
        """Each call undoes one of `request_begins`."""
        self._requests -= 1
        if not self._requests:
            self._calm_at = time.monotonic() + NEXT_S
            if self._line:
                self._go_on()

    def _go_on(self) -> None:
        """Has the line take its next step soon, and no other one beside."""
        if self._next is not None:
            self._next.cancel()
        self._next = super().call_soon(self._step, context=self._own)

    def _step(self) -> None:
        """The line's next step, if it may."""
        self._next = None
        wait = self._wait(time.monotonic())
        if wait > 0:
            self._next = self.call_later(max(wait, TICK_S), self._step, context=self._own)
            return
        handle, callback, args, context = self._line.popleft()
        if self._line:
            self._go_on()
        try:
            if not handle.cancelled():
                context.run(callback, *args)
        except Exception as error:  # noqa: BLE001 - as any loop does
            self.call_exception_handler({"message": f"Exception in {handle!r}", "exception": error, "handle": handle})

    def _wait(self, now: float) -> float:
        """Seconds that the line stands still from now on; 0 begins a turn if it is time for one."""
        turn_begins = self._turn_ends + STILL_S / max(1, self._requests)
        if now >= self._calm_at:
            self._turn_ends = now
        elif now >= turn_begins:
            self._turn_ends = now + TURN_S
        elif now >= self._turn_ends:
            return min(turn_begins, self._calm_at) - now
        return 0.0


class RequestPriority:
    """Goes around the whole app, and tells the loop whose steps are whose.

    On a loop of another kind it does nothing.

    Args:
        app: what answers.
        behind: regular expression for whole paths, whose requests step aside.
    """

    def __init__(self, app: ASGIApp, behind: str) -> None:
        self._app = app
        self._behind = re.compile(behind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        if scope["type"] != "http" or not isinstance(loop, PriorityLoop):
            await self._app(scope, receive, send)
            return
        aside = self._behind.fullmatch(scope["path"]) is not None
        LOW_PRIORITY.set(aside)  # also to False: a pipelined request has the context of the one before it
        if aside:
            await asyncio.sleep(0)  # what follows is in the line
            await self._app(scope, receive, send)
        else:
            await self._answer(loop, scope, receive, send)

    async def _answer(self, loop: PriorityLoop, scope: Scope, receive: Receive, send: Send) -> None:
        """A request is in work from when its body is there until its answer begins: either may last for hours."""
        held = whole = answered = over = False

        def hold(the_line: bool) -> None:
            nonlocal held
            if the_line is not held:
                held = the_line
                (loop.request_begins if held else loop.request_ends)()

        async def received() -> Message:
            nonlocal whole
            if not whole:
                hold(False)
            message = await receive()
            whole = whole or not message.get("more_body", False)
            hold(not (answered or over))
            return message

        async def sent(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                hold(False)
            await send(message)

        hold(True)
        try:
            await self._app(scope, received, sent)
        finally:
            over = True  # whoever still waits for the end of the connection
            hold(False)
