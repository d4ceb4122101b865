"""The limits of every request: the bytes and seconds of its body, its deadline, and permits until its answer is sent.

    budget = current_budget()
    budget.check()                          # in a thread: raises if nobody waits for the answer any more
    budget.hold(admission, queries, size)   # permits, given back when the request is over
    with loading():                         # a model: the time starts again when it is loaded
    found = await in_thread_while_connected(request, work)

`RequestLimits` is the ASGI layer around the routes. Bodies are counted and timed while they stream in, whatever
Content-Length claims. Each byte holds a permit until its request is answered. Many slow clients together therefore
cannot fill more memory than the settings allow.

The deadline starts when the body is complete, and again when a model that the request loads is ready. It ends when the
answer starts. At the deadline the client gets 504 at once. Awaited work is cancelled. Work in a thread stops at its
next check, which the store makes all the time (see `nnclr_hub/store/cancellation.py`); a write that has begun is
finished.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread
from fastapi import Request
from prometheus_client import Gauge
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import DeadlineExceeded, NNCLRHubError, NotReady, Overloaded, RequestTooLarge, RequestTooSlow
from nnclr_hub.store.cancellation import cancellable

from .problems import Refused, error_response
from .settings import Settings
from .telemetry import Metrics

T = TypeVar("T")
LOADING_S = 300.0  # at most, for a model that a request loads
WATCH_AFTER_S = 0.05  # a request that is answered earlier does not pay for watching its connection
RETRY_S = 1.0  # clients that are refused again wait longer by themselves
LARGE = 128 << 10  # bytes
FEW = 4  # large bodies that may arrive at once without a pause
PAUSE_S = 0.002  # longer than the event loop takes for one piece, of at most 256 KiB


# ---- what a request may still use


class Budget:
    """What is left to one request. Safe to use from the thread that works for it.

    Args:
        seconds: until the deadline.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = math.inf
        self._abandoned = False
        self._held = ExitStack()

    def start(self) -> None:
        """Start the time, or start it again."""
        self._end = time.monotonic() + self.seconds

    def stop(self) -> None:
        """Let the request take as long as it needs: its body is arriving, or its answer has started."""
        self._end = math.inf

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self._end - time.monotonic()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Start the time again at the end of the block, which may take LOADING_S."""
        if 0 < self.left < math.inf:
            self._end = time.monotonic() + max(LOADING_S, self.seconds)
        yield
        if 0 < self.left < math.inf:
            self.start()

    def abandon(self) -> None:
        """Let `check` raise: nobody waits any more."""
        self._abandoned = True

    def check(self) -> None:
        """Raise DeadlineExceeded or ClientDisconnect if nobody waits for the answer any more."""
        if self.left <= 0:
            raise self.exceeded()
        if self._abandoned:
            raise ClientDisconnect

    def exceeded(self) -> DeadlineExceeded:
        """Return the error of a request that takes too long."""
        return DeadlineExceeded(
            f"The request did not finish within {self.seconds:g} s; request less at once, or try again later."
        )

    def hold(self, admission: Admission, count: int, size: int) -> None:
        """Take permits until the request is over; see `Admission.enter` for its errors."""
        admission.enter(count, size)
        self._held.callback(admission.leave, count, size)

    def close(self) -> None:
        """Give everything back."""
        self._held.close()


_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)  # that of the current request


def current_budget() -> Budget:
    """Return the budget of the request that this code works for."""
    budget = _budget.get()
    assert budget is not None
    return budget


@contextmanager
def loading() -> Iterator[None]:
    """Load a model inside the block. The deadline of the request starts again afterwards, as after an upload."""
    with ExitStack() as stack:
        if (budget := _budget.get()) is not None:
            stack.enter_context(budget.loading())
        yield


async def while_connected(
    request: Request, work: Awaitable[T], stop: Callable[[], object] = lambda: None, after_s: float = WATCH_AFTER_S
) -> T:
    """Return the result of `work`; call `stop` and cancel it as soon as the client disconnects.

    Only for work that may be cancelled anywhere, after the whole body was read. Never for a write to the store.

    Raises:
        ClientDisconnect: the client has disconnected.
    """
    watching: list[asyncio.Task[None]] = []

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        stop()
        scope.cancel()

    timer = asyncio.get_running_loop().call_later(after_s, lambda: watching.append(asyncio.create_task(watch())))
    try:
        with CancelScope() as scope:
            return await work
        raise ClientDisconnect
    finally:
        timer.cancel()
        for task in watching:
            task.cancel()
            with CancelScope(shield=True):
                await asyncio.gather(task, return_exceptions=True)


async def in_thread_while_connected(
    request: Request, work: Callable[[], T], limiter: CapacityLimiter | None = None
) -> T:
    """Return the result of `work`, which runs in a thread.

    If the client disconnects, or the deadline passes, the thread stops at its next check. This function waits for
    that, because only then its memory is free.

    Raises:
        ClientDisconnect: the client has disconnected.
        DeadlineExceeded: the deadline has passed.
    """
    budget = current_budget()

    def checked() -> T:
        budget.check()  # it may have waited for the thread
        return work()

    return await while_connected(request, to_thread.run_sync(checked, limiter=limiter), budget.abandon)


# ---- permits


class Admission:
    """Grants permits for what may be in progress at once, and takes them back.

    A request gets permits for all of its images and bytes, or none. Requests that held half of their permits could wait
    for each other for ever.

    Args:
        images: images in progress at once, or whatever else `what` names.
        size: bytes of them, before decoding.
        metrics: counts refusals.
        gauges: gauges of what is in progress, and of its bytes; None: those of images.
    """

    def __init__(
        self,
        images: int,
        size: int,
        metrics: Metrics,
        what: str = "images",
        gauges: tuple[Gauge, Gauge] | None = None,
    ) -> None:
        self.count = self._bytes = 0  # in progress
        self._max_images, self._max_bytes = images, size
        self._metrics, self._what = metrics, what
        self._gauge, self._bytes_gauge = gauges or (metrics.images_in_work, metrics.bytes_in_work)
        self._changed = threading.Condition()
        self._closed = False

    def enter(self, images: int, size: int, *, background: bool = False) -> None:
        """Take permits.

        Args:
            background: leave half of all permits to requests; the caller tries again later, or sends fewer images. An
                image that needs more alone is taken while no request is in progress.

        Raises:
            RequestTooLarge: the request needs more permits than exist, so a retry would not help.
            Overloaded: too much is in progress.
            NotReady: the server is shutting down.
        """
        with self._changed:
            if self._closed:
                raise shutting_down()
            part = 2 if background and (images > 1 or self.count) else 1
            max_images, max_bytes = self._max_images // part, self._max_bytes // part
            if (images > 1 and (images > max_images or size > max_bytes)) or size > self._max_bytes:
                raise RequestTooLarge(
                    f"The request has {images} {self._what} and {size:,} bytes; the limit is {max_images} "
                    f"{self._what} and {max_bytes:,} bytes."
                )
            if self.count + images > max_images or self._bytes + size > max_bytes:
                if not background:
                    self._metrics.refused.labels("overloaded").inc()
                raise Overloaded("The server is overloaded; try again in a moment.", RETRY_S)
            self._change(images, size)

    def leave(self, images: int, size: int) -> None:
        """Return permits."""
        with self._changed:
            self._change(-images, -size)
            self._changed.notify_all()

    def _change(self, images: int, size: int) -> None:
        self.count += images
        self._bytes += size
        self._gauge.inc(images)
        self._bytes_gauge.inc(size)

    def close(self) -> None:
        """Refuse all new requests."""
        with self._changed:
            self._closed = True

    def wait_until_empty(self, timeout: float) -> bool:
        """Return whether all permits came back within the timeout, in seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.count, timeout)


def shutting_down() -> NotReady:
    """Return the error of a request that the shutdown of the engine overtook."""
    return NotReady("The server is shutting down; try another server, or try again later.")


# ---- the layer


class RequestLimits:
    """The ASGI layer around the routes. A route that is `streamed` (see `Access`) has the limits of large bodies."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._seconds = settings.deadline_s
        self._body = BodyLimits(settings.max_bytes, settings.body_idle_s, settings.body_s, settings.bodies_bytes)
        self._streamed = BodyLimits(settings.import_bytes, settings.body_idle_s, math.inf, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        required = scope.get("state", {}).get("required")  # set by `AccessControl`, which may be missing
        limits = self._streamed if required is not None and required.streamed else self._body
        try:
            limits.check(headers)
        except NNCLRHubError as error:
            await error_response(scope["path"], error)(scope, receive, send)
            return
        budget = Budget(self._seconds)
        _budget.set(budget)
        try:
            with limits.limited(receive, headers) as receive, cancellable(budget.check):
                await _until_deadline(self._app, scope, receive, send, budget)
        finally:
            budget.close()


async def _until_deadline(app: ASGIApp, scope: Scope, receive: Receive, send: Send, budget: Budget) -> None:
    """Run the app; at the deadline, cancel it and answer 504."""
    loop, cancel = asyncio.get_running_loop(), CancelScope()
    whole = answered = False
    refusing: asyncio.Future[None] | None = None

    async def next_message() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        budget.stop()
        message = await receive()
        whole = not message.get("more_body", False)
        if not answered:
            budget.start()
        return message

    async def answer(message: Message) -> None:
        nonlocal answered
        if refusing is None:  # otherwise too late
            answered = True
            budget.stop()
            await send(message)

    async def refuse() -> None:
        await error_response(scope["path"], budget.exceeded())(scope, receive, send)

    def expire() -> None:
        nonlocal refusing, timer
        if (left := min(budget.left, budget.seconds)) > 0:  # the time was stopped, or started again
            timer = loop.call_later(left, expire)
            return
        refusing = asyncio.ensure_future(refuse())
        cancel.cancel()

    budget.start()
    timer = loop.call_later(budget.seconds, expire)
    try:
        with cancel:
            await app(scope, next_message, answer)
    finally:
        timer.cancel()
        if refusing is not None:
            await refusing


class BodyLimits:
    """Limits that apply to every body.

    Large bodies take turns: one of them receives a piece in each cycle of the event loop. If many arrive at once, the
    loop pauses between two pieces. Otherwise an ordinary request would wait for a piece of each body in each of the ten
    cycles that it takes.

    Args:
        max_bytes: size of one body.
        idle_s: seconds that a client may stay silent within a body.
        total_s: seconds until the whole body must have arrived.
        permits: bytes of all bodies whose requests are not answered yet. One body always fits. None: no limit, for
            bodies that are written to disk as they arrive.
    """

    def __init__(self, max_bytes: int, idle_s: float, total_s: float, permits: int | None) -> None:
        self._max_bytes = max_bytes
        self._permits = math.inf if permits is None else max(permits, max_bytes)
        self._idle_s = idle_s
        self._total_s = total_s
        self._turn = asyncio.Lock()
        self._waiting = 0  # for the turn, or have it

    def check(self, headers: Headers) -> None:
        """Raise Refused or RequestTooLarge for a body that its headers do not allow."""
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            # a few hundred compressed bytes can expand a thousandfold
            raise Refused(
                "unsupported_encoding",
                f"Content-Encoding {encoding!r:.40} is not supported; send the body uncompressed.",
            )
        if _length(headers) > self._max_bytes:
            raise self._too_large()

    @contextmanager
    def limited(self, receive: Receive, headers: Headers) -> Iterator[Receive]:
        """Wrap `receive` to count and time the body. The received bytes hold permits until the context ends.

        The wrapper raises RequestTooLarge, RequestTooSlow, or Overloaded if all bodies together exceed the permits.
        """
        total, complete = 0, False
        deadline: float | None = None
        expected = _length(headers)

        async def counted() -> Message:
            nonlocal total, complete, deadline
            if complete:  # the next message is the disconnect, which may come at any time
                return await receive()
            if max(expected, total) > LARGE:
                await self._take_turn()
            now = asyncio.get_running_loop().time()
            deadline = deadline or now + self._total_s
            if now > deadline:  # a timeout ends only a `receive` that waits; a part may be here whenever it is called
                raise self._too_slow()
            try:
                async with asyncio.timeout(min(self._idle_s, deadline - now)):  # `wait_for` would start a task
                    message = await receive()
            except TimeoutError as error:
                raise self._too_slow() from error
            size = len(message.get("body", b""))
            if total + size > self._max_bytes:
                raise self._too_large()
            if size > self._permits:
                raise Overloaded("The server is receiving too many request bodies; try again in a moment.")
            self._permits -= size
            total += size
            complete = not message.get("more_body", False)
            return message

        try:
            yield counted
        finally:
            self._permits += total

    async def _take_turn(self) -> None:
        """Wait until this large body may receive its next piece."""
        self._waiting += 1
        try:
            async with self._turn:
                await asyncio.sleep(PAUSE_S if self._waiting > FEW else 0)
        finally:
            self._waiting -= 1

    def _too_slow(self) -> RequestTooSlow:
        return RequestTooSlow(
            f"The request body did not arrive within {self._total_s:g} s, or paused for {self._idle_s:g} s; "
            "send fewer images at once."
        )

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge(
            f"The request body exceeds the limit of {self._max_bytes / 1e6:g} MB; send fewer images at once."
        )


def _length(headers: Headers) -> int:
    """Return the length of the body that the client announces, 0 without one."""
    length = headers.get("content-length", "0")
    return int(length[:20]) if length.isdecimal() else 0
