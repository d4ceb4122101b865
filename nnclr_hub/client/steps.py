"""The client's work as generators: each yields the next step and receives its outcome.

    def ready() -> Steps[bool]:
        answer = yield from perform(Call("GET", "/readyz", lambda answer: answer))
        return answer.status == 200

A driver of `transport.py` executes the steps, in a thread or in an event loop. So everything but the sending is written
once for both clients.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from nnclr_hub.errors import InvalidRequest, NNCLRHubError, ServiceError

T = TypeVar("T")
J = TypeVar("J")
Steps = Generator["Step", Any, T]
File = tuple[str, tuple[str, bytes]]  # name of the part, (name of the file, content)


@dataclass(frozen=True)
class Answer:
    """A complete response; header names in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body's JSON.

        Raises:
            ServiceError: if the body is not JSON.
        """
        try:
            return json.loads(self.body)
        except ValueError as error:
            kind = self.headers.get("content-type", "no content type")
            raise ServiceError(
                f"{self.url} answers {self.status} with {kind} instead of JSON; check the address, and any proxy in "
                "front of the server."
            ) from error


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request and how to read its answer. Every call may be repeated: it changes nothing, or carries a key.

    read: makes the result from an answer.
    json, content, files, fields: the body: JSON, bytes, or a form.
    takes: whether `read` can handle an answer; all others are errors.
    patience: seconds, beyond the client's timeout, to wait for a busy or restarting server.
    once: never repeat it.
    gone: the error which, after an attempt without an answer, means that this attempt succeeded.
    """

    method: str
    path: str
    read: Callable[[Answer], T]
    params: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    files: Sequence[File] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    takes: Callable[[Answer], bool] = lambda answer: answer.status < 300
    patience: float = 0.0
    once: bool = False
    gone: type[NNCLRHubError] | None = None


@dataclass(frozen=True)
class Attempt:
    """Send a call once; the outcome is its Answer.

    Raises:
        ServerUnreachable, DeadlineExceeded: if there is none.
    """

    call: Call[Any]
    seconds: float


@dataclass(frozen=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True)
class InThread:
    """Read files or compute, without blocking the event loop; the outcome is what `work` returns."""

    work: Callable[[], Any]


@dataclass(frozen=True)
class Together:
    """Run several generators at once. After the first error, `stop` is called and the others finish their item."""

    several: Sequence[Steps[None]]
    stop: Callable[[], None]


Step = Call[Any] | Attempt | Pause | InThread | Together


def to_json(value: Any) -> str:
    """Return compact JSON.

    Raises:
        InvalidRequest: if the value has no JSON form.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"The request cannot be written as JSON ({error}); metadata and filters must hold JSON values."
        ) from error
    return text


def perform(call: Call[T]) -> Steps[T]:
    """Return the result of a call, repeated as often as necessary."""
    return (yield call)


def in_thread(work: Callable[[], T]) -> Steps[T]:
    """Return what `work` returns."""
    return (yield InThread(work))


def for_each(jobs: Iterator[J], work: Callable[[J], Steps[None]], workers: int) -> Steps[None]:
    """Run `work` on each job, `workers` at a time, in approximate order."""
    queue = _Queue(jobs)

    def worker() -> Steps[None]:
        while (job := (yield from in_thread(queue.take))) is not None:
            yield from work(job[0])

    yield Together([worker() for _ in range(workers)], queue.close)


class _Queue(Generic[J]):
    """Hands the members of an iterator to several threads."""

    def __init__(self, jobs: Iterator[J]) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> tuple[J] | None:
        with self._lock:
            if self._closed:
                return None
            for job in self._jobs:
                return (job,)
            return None

    def close(self) -> None:
        self._closed = True
