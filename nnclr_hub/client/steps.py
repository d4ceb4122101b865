"""What the client does, as generators that say what has to happen next and are sent the outcome.

    def ready() -> Steps[bool]:
        answer = yield from ask(Call("GET", "/readyz", lambda answer: answer))
        return answer.status == 200

A driver performs them (`drivers.py`), so that everything but the sending is written once.
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
    """What came back, read to its end; header names in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's JSON.

        Raises:
            ServiceError: it is none.
        """
        try:
            return json.loads(self.body)
        except ValueError as error:
            kind = self.headers.get("content-type", "no content type")
            raise ServiceError(
                f"{self.url} answers {self.status} with {kind}, which is not what `nnclr serve` says there: check the "
                "address, and what stands between."
            ) from error


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and how its answer is read; all of them may be sent again, for they change nothing or carry a key.

    read: makes the result of an answer.
    takes: whether an answer is for `read`; what is not is an error.
    patience: seconds, beyond the client's timeout, that this may wait for a busy or restarting server.
    once: never to be repeated.
    gone: the error that, when it comes after an attempt without an answer, means that this attempt had succeeded.
    """

    method: str
    path: str
    read: Callable[[Answer], T]
    params: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
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
        ServerUnreachable, DeadlineExceeded: there is none.
    """

    call: Call[Any]
    seconds: float


@dataclass(frozen=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True)
class Aside:
    """Read files or compute, without holding up other tasks; the outcome is what `work` returns."""

    work: Callable[[], Any]


@dataclass(frozen=True)
class Together:
    """Perform several at once; the first error stops the others, by `stop`, once they have finished what they do."""

    several: Sequence[Steps[None]]
    stop: Callable[[], None]


Step = Call[Any] | Attempt | Pause | Aside | Together


def to_json(value: Any) -> str:
    """JSON that can be sent.

    Raises:
        InvalidRequest: JSON has no such thing.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"The request cannot be written as JSON ({error}): metadata and filters hold JSON values alone."
        ) from error
    return text


def ask(call: Call[T]) -> Steps[T]:
    """The result of a call, asked as often as it takes."""
    return (yield call)


def aside(work: Callable[[], T]) -> Steps[T]:
    """What `work` returns."""
    return (yield Aside(work))


def spread(jobs: Iterator[J], work: Callable[[J], Steps[None]], workers: int) -> Steps[None]:
    """Does each job, `workers` at a time, in about their order."""
    waiting = _Queue(jobs)

    def worker() -> Steps[None]:
        while (job := (yield from aside(waiting.take))) is not None:
            yield from work(job[0])

    yield Together([worker() for _ in range(workers)], waiting.close)


class _Queue(Generic[J]):
    """Hands an iterator's members to several threads."""

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
