"""Precedence: on the event loop that requests and the page share, requests go first.

    config = uvicorn.Config(app, loop=f"{__package__}.precedence:Loop")
    app = Precedence(app, behind="/ui")

The page's steps stand in a line of their own. They run one by one, each after whatever else is ready; while a request
is being answered they stand still, but for a short turn now and then, so that no stream of requests stops the page.
What else runs on the loop runs as it always did: where the page is not mounted, nothing waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

import uvloop
from starlette.types import ASGIApp, Message, Receive, Scope, Send

STILL_S = 0.012  # how long the page stands still beside requests, which most do not last
TURN_S = 0.003  # and how long its turn is then: a fifth of the time is the page's whatever comes
STEPS_ASIDE: ContextVar[bool] = ContextVar("steps_aside", default=False)  # set by what is to let requests go first


class Loop(uvloop.Loop):
    """An event loop that knows whose the steps are: by STEPS_ASIDE, in the context that they run in."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = 0
        self._line: deque[tuple[asyncio.Handle, Callable[..., Any], tuple[Any, ...], Context]] = deque()
        self._next: asyncio.Handle | None = None  # the line's next step, or its next turn
        self._turn_ends = 0.0
        self._own = Context()  # the line itself never steps aside

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """As of any loop; also here, what comes first in the line runs first."""
        if not (STEPS_ASIDE.get() if context is None else context.get(STEPS_ASIDE, False)):
            return super().call_soon(callback, *args, context=context)
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._line.append((handle, callback, args, context))
        if self._next is None:
            self._next = super().call_soon(self._step, context=self._own)
        return handle

    def request_begins(self) -> None:
        """From now on the line stands still."""
        self._requests += 1

    def request_ends(self) -> None:
        """Each call undoes one of `request_begins`."""
        self._requests -= 1
        if not self._requests and self._next is not None:
            self._next.cancel()
            self._next = super().call_soon(self._step, context=self._own)

    def _step(self) -> None:
        """One step of the line's, if it may."""
        if self._requests and time.monotonic() >= self._turn_ends:
            self._next = self.call_later(STILL_S, self._turn, context=self._own)
            return
        handle, callback, args, context = self._line.popleft()
        try:
            if not handle.cancelled():
                context.run(callback, *args)
        finally:
            self._next = super().call_soon(self._step, context=self._own) if self._line else None

    def _turn(self) -> None:
        self._turn_ends = time.monotonic() + TURN_S
        self._step()


class Precedence:
    """Goes around the whole app, and tells the loop whose steps are whose.

    On a loop of another kind it does nothing.

    Args:
        app: what answers.
        behind: path below which requests step aside.
    """

    def __init__(self, app: ASGIApp, behind: str) -> None:
        self._app = app
        self._behind = behind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        if scope["type"] != "http" or not isinstance(loop, Loop):
            await self._app(scope, receive, send)
        elif scope["path"].startswith(self._behind):
            STEPS_ASIDE.set(True)
            await asyncio.sleep(0)  # what follows is in the line
            await self._app(scope, receive, send)
        else:
            await self._answer(loop, scope, receive, send)

    async def _answer(self, loop: Loop, scope: Scope, receive: Receive, send: Send) -> None:
        """A request is being answered until its answer begins: some then last for hours."""
        answered = False

        async def sent(message: Message) -> None:
            nonlocal answered
            if not answered and message["type"] == "http.response.start":
                answered = True
                loop.request_ends()
            await send(message)

        loop.request_begins()
        try:
            await self._app(scope, receive, sent)
        finally:
            if not answered:
                loop.request_ends()
