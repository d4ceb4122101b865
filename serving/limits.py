"""The limits of every request: the bytes and seconds of its body, its deadline, and permits until its answer is sent.

    budget = current_budget()
    budget.check()                          # in a thread: raises if nobody waits for the answer any more
    budget.hold(admission, queries, size)   # permits, given back when the request is over
    with loading():                         # a model: the time starts again when it is loaded

`RequestLimits` is the ASGI layer around the routes. Bodies are counted and timed while they stream in, whatever
Content-Length claims. Each byte holds a permit until its request is answered. Many slow clients together therefore
cannot fill more memory than the settings allow.

The deadline starts when the body is complete, and again when a model that the request loads is ready. It ends when the
answer starts. At the deadline the client gets 504 at once. Awaited work is cancelled. Work in a thread stops at its
next check, which the store makes all the time (see `nnclr_hub/store/cancellation.py`); a write that has begun is
finished. A read ends in the same way when its client disconnects.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

from anyio import CancelScope
from prometheus_client import Gauge
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import DeadlineExceeded, NNCLRHubError, NotReady, Overloaded, RequestTooLarge, RequestTooSlow
from nnclr_hub.store.cancellation import cancellable

from .keys import WRITE
from .problems import Refused, error_response
from .settings import Settings
from .telemetry import Metrics

LOADING_S = 300.0  # at most, for a model that a request loads
WATCH_AFTER_S = 0.05  # a request that is answered earlier does not pay for watching its connection
RETRY_S = 1.0  # clients that are refused again wait longer by themselves
LARGE = 128 << 10  # bytes
FEW = 4  # large bodies that may arrive at once without a pause
PAUSE_S = 0.002  # longer than the event loop takes for one piece, of at most 256 KiB


# ---- what a request may still use


class Budget:
    """What is left to one request. Safe to use from the thread that works for it.

    droppable: whether its work may be cancelled anywhere if the client disconnects.
    disconnected: whether the client has.

    Args:
        seconds: until the deadline.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.droppable = self.disconnected = False
        self.late: Callable[[], NNCLRHubError] = self._exceeded  # makes the error at the end
        self._end = math.inf
        self._held = ExitStack()

    def start(self) -> None:
        """Start the time of the deadline, or start it again."""
        self.allow(self.seconds, self._exceeded)

    def allow(self, seconds: float, late: Callable[[], NNCLRHubError]) -> None:
        """Let the request end in some seconds, with this error."""
        self._end, self.late = time.monotonic() + seconds, late

    def stop(self) -> None:
        """Let the request take as long as it needs: its answer has started."""
        self._end = math.inf

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self._end - time.monotonic()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Start the time again at the end of the block, which may take LOADING_S."""
        if 0 < self.left < math.inf:
            self._end = time.monotonic() + max(LOADING_S, self.seconds)
        yield
        if 0 < self.left < math.inf:
            self.start()

    def check(self) -> None:
        """Raise DeadlineExceeded or ClientDisconnect if nobody waits for the answer any more."""
        if self.left <= 0:
            raise self.late()
        if self.disconnected and self.droppable:
            raise ClientDisconnect

    def _exceeded(self) -> DeadlineExceeded:
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


@contextmanager
def dropped_if_disconnected() -> Iterator[None]:
    """Drop the work in the block, which writes nothing, if the client disconnects; reads are always dropped.

    Raises:
        ClientDisconnect: the client has disconnected already.
    """
    budget = current_budget()
    if budget.disconnected:
        raise ClientDisconnect
    budget.droppable = True
    try:
        yield
    finally:
        budget.droppable = False


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
        budget.droppable = required is None or required.scope != WRITE
        _budget.set(budget)
        with cancellable(budget.check):
            await Exchange(limits, budget, scope, receive, send).run(self._app)


class Exchange:
    """One request and its answer. Its body is counted and timed, and it ends at its deadline or if nobody waits.

    One timer looks after all of that, as timers for each would take as long as parsing a small request.

    Args:
        limits: limits of its body.
        budget: its deadline and its permits.
    """

    def __init__(self, limits: BodyLimits, budget: Budget, scope: Scope, receive: Receive, send: Send) -> None:
        self._limits, self._budget = limits, budget
        self._scope, self._receive, self._send = scope, receive, send
        headers = Headers(scope=scope)
        self._announced = _length(headers)
        # a body without either header exists only since HTTP/2
        is_framed = scope["http_version"].startswith("1.")
        self._has_body = self._announced > 0 or "transfer-encoding" in headers or not is_framed
        self._whole = self._answered = False
        self._received = 0  # bytes
        self._until: float | None = None  # when the whole body must have arrived
        self._app = CancelScope()
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._refusing: asyncio.Future[None] | None = None

    async def run(self, app: ASGIApp) -> None:
        """Run the app; at the deadline, cancel it and answer 504."""
        self._budget.start()
        self._timer = asyncio.get_running_loop().call_later(min(WATCH_AFTER_S, self._budget.seconds), self._look)
        try:
            with self._app:
                await app(self._scope, self.receive, self.send)
        finally:
            self._timer.cancel()
            if self._watching is not None:
                self._watching.cancel()
            self._limits.give_back(self._received)
            self._budget.close()
            if self._refusing is not None:
                await self._refusing

    async def receive(self) -> Message:
        """Return the next message, and count and time it if it is a part of the body.

        Raises:
            RequestTooLarge, RequestTooSlow, Overloaded.
        """
        if self._whole or self._answered:  # the next message is the disconnect, which may come at any time
            return await self._receive()
        if not self._has_body:  # `_watch` may have received that already
            self._whole = True
            return {"type": "http.request", "body": b"", "more_body": False}
        limits, budget = self._limits, self._budget
        budget.stop()
        if max(self._announced, self._received) > LARGE:
            await limits.take_turn()
        now = time.monotonic()
        self._until = self._until or now + limits.total_s
        seconds = min(limits.idle_s, self._until - now)
        budget.allow(seconds, limits.too_slow)
        budget.check()  # no timer ends a loop over parts that are always here
        if seconds < limits.idle_s:
            self._look()
        message = await self._receive()
        size = len(message.get("body", b""))
        limits.take(self._received, size)
        self._received += size
        self._whole = not message.get("more_body", False)
        budget.start()
        return message

    async def send(self, message: Message) -> None:
        if self._refusing is None:  # otherwise too late
            self._answered = True
            self._budget.stop()
            await self._send(message)

    def _look(self) -> None:
        """Answer with an error if the time is over, else look again; watch the connection once the body is here."""
        assert self._timer is not None
        self._timer.cancel()
        if self._watching is None and (self._whole or not self._has_body):
            self._watching = asyncio.create_task(self._watch())
        budget = self._budget
        if budget.left > 0:
            seconds = min(budget.left, budget.seconds, WATCH_AFTER_S if self._watching is None else self._limits.idle_s)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)
        elif self._refusing is None:
            error = error_response(self._scope["path"], budget.late())
            self._refusing = asyncio.ensure_future(error(self._scope, self._receive, self._send))
            self._app.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._budget.disconnected = True
        if self._budget.droppable and not self._answered:
            self._app.cancel()


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
        self.idle_s, self.total_s = idle_s, total_s
        self._max_bytes = max_bytes
        self._permits = math.inf if permits is None else max(permits, max_bytes)
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

    def take(self, received: int, size: int) -> None:
        """Take permits for the next bytes of a body; raise RequestTooLarge, or Overloaded without enough permits."""
        if received + size > self._max_bytes:
            raise self._too_large()
        if size > self._permits:
            raise Overloaded("The server is receiving too many request bodies; try again in a moment.")
        self._permits -= size

    def give_back(self, size: int) -> None:
        """Return the permits of a body."""
        self._permits += size

    async def take_turn(self) -> None:
        """Wait until this large body may receive its next piece."""
        self._waiting += 1
        try:
            async with self._turn:
                await asyncio.sleep(PAUSE_S if self._waiting > FEW else 0)
        finally:
            self._waiting -= 1

    def too_slow(self) -> RequestTooSlow:
        """Return the error of a body that does not arrive in time."""
        return RequestTooSlow(
            f"The request body did not arrive within {self.total_s:g} s, or paused for {self.idle_s:g} s; "
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
