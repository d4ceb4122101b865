"""The deadline of every route, and the permits that a request keeps until its answer is sent.

    budget: Budget = request.state.budget
    budget.check()                          # in a thread: raises if nobody waits for the answer any more
    budget.hold(admission, queries, size)   # permits, given back when the request is over
    with loading():                         # a model: the time starts again when it is loaded

`Deadline` is the ASGI layer around the routes. The time starts when the body is complete, because uploads have separate
limits (see `body_limits.py`), and again when a model that the request loads is ready. It ends when the answer starts.
At the deadline the client gets 504 at once. Awaited work is cancelled. Work in a thread stops at its next check, which
the store makes all the time (see `nnclr_hub/store/cancellation.py`); a write that has begun is finished. The page has
its own event streams, and no deadline.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

from anyio import CancelScope
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import DeadlineExceeded
from nnclr_hub.store.cancellation import cancellable

from .engine.admission import Admission
from .problems import error_response

LOADING_S = 300.0  # at most, for a model that a request loads


class Budget:
    """What is left to one request. Safe to use from the thread that works for it.

    loaded: whether the request loads a model, or has done so.

    Args:
        seconds: until the deadline.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.loaded = False
        self._end = math.inf
        self._abandoned = False
        self._held = ExitStack()

    def start(self) -> None:
        """Start the time, or start it again."""
        self._end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self._end - time.monotonic()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Start the time again at the end of the block, which may take LOADING_S."""
        if 0 < self.left < math.inf:
            self.loaded = True
            self._end = time.monotonic() + max(LOADING_S, self.seconds)
        yield
        if 0 < self.left < math.inf:
            self.start()

    def stop(self) -> None:
        """Let the request take as long as it needs from here on: its answer has started."""
        self._end = math.inf

    def expire(self) -> None:
        """Let `check` raise: the deadline has passed."""
        self._end = -math.inf

    def abandon(self) -> None:
        """Let `check` raise: nobody waits any more."""
        self._abandoned = True

    def check(self) -> None:
        """Return if somebody still waits for the answer.

        Raises:
            ClientDisconnect: the client has disconnected.
            DeadlineExceeded: the deadline has passed.
        """
        if time.monotonic() >= self._end:
            raise self.exceeded()
        if self._abandoned:
            raise ClientDisconnect

    def exceeded(self) -> DeadlineExceeded:
        """Return the error of a request that takes too long."""
        return DeadlineExceeded(
            f"The request did not finish within {self.seconds:g} s; request less at once, or try again later."
        )

    def hold(self, admission: Admission, count: int, size: int) -> None:
        """Take permits until the request is over.

        Raises:
            Overloaded, RequestTooLarge, NotReady: see `Admission.enter`.
        """
        admission.enter(count, size)
        self._held.callback(admission.leave, count, size)

    def close(self) -> None:
        """Give everything back."""
        self._held.close()


_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)  # of the request that this code works for


@contextmanager
def loading() -> Iterator[None]:
    """Load a model inside the block. The deadline of the request starts again afterwards, as after an upload."""
    budget = _budget.get()
    if budget is None:
        yield
        return
    with budget.loading():
        yield


class Deadline:
    """The layer around the routes.

    Args:
        app: the app inside.
        seconds: until a request without a response is answered with 504.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        budget = Budget(self._seconds)
        scope.setdefault("state", {})["budget"] = budget
        _budget.set(budget)
        try:
            with cancellable(budget.check):
                await _TimedRequest(scope, receive, send, budget).run(self._app)
        finally:
            budget.close()


class _TimedRequest:
    """One request and its timer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, budget: Budget) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._budget = budget
        self._cancel = CancelScope()
        self._stop_timer: Callable[[], None] = lambda: None
        self._whole = self._answered = False
        self._refusing: asyncio.Future[None] | None = None

    async def run(self, app: ASGIApp) -> None:
        self._start()
        try:
            with self._cancel:
                await app(self._scope, self._next_message, self._answer)
        finally:
            self._stop_timer()
            if self._refusing is not None:
                await self._refusing

    def _start(self) -> None:
        if not self._answered:
            self._budget.start()
            self._set_timer(self._budget.seconds)

    def _set_timer(self, seconds: float) -> None:
        self._stop_timer = asyncio.get_running_loop().call_later(seconds, self._expire).cancel

    async def _next_message(self) -> Message:
        """Receive a message; the time starts again when the body is complete."""
        if self._whole:
            return await self._receive()
        self._stop_timer()
        message = await self._receive()
        self._whole = not message.get("more_body", False)
        self._start()
        return message

    async def _answer(self, message: Message) -> None:
        if self._refusing is not None:
            return  # too late
        if not self._answered:
            self._answered = True
            self._stop_timer()
            self._budget.stop()
        await self._send(message)

    def _expire(self) -> None:
        if self._budget.loaded and 0 < self._budget.left < math.inf:
            self._set_timer(min(self._budget.left, self._budget.seconds))
            return
        self._budget.expire()  # uvloop counts whole milliseconds, so its timer may be early by the budget's clock
        self._refusing = asyncio.ensure_future(self._refuse())
        self._cancel.cancel()

    async def _refuse(self) -> None:
        refusal = error_response(self._scope["path"], self._budget.exceeded())
        await refusal(self._scope, self._receive, self._send)
