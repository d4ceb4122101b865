"""Send requests to a server: repeat them while that helps, and raise the errors of the library."""

from __future__ import annotations

import copy
import json
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any, Self, TypeVar

import httpx

from nnclr_hub.errors import (
    BY_CODE,
    DeadlineExceeded,
    InvalidRequest,
    MetadataConflict,
    NNCLRHubError,
    NotReady,
    Overloaded,
    RequestTooLarge,
    ServerUnreachable,
    ServiceError,
)
from nnclr_hub.json_text import parse_json, what_is_wrong

log = logging.getLogger(__name__)
CONNECTIONS = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=4.0)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0  # between two attempts
LOST = 5  # attempts without an answer, without patience
# with patience, from the first attempt without an answer on: the limit, and what is not worth a word
OUTAGE_S, MOMENT_S = 120.0, 1.0
J = TypeVar("J")
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """A complete response; header names in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the JSON of the body; anything else is a ServiceError."""
        try:
            return parse_json(self.body)
        except ValueError as error:
            kind = self.headers.get("content-type", "no content type")
            raise ServiceError(
                f"{self.url} answers {self.status} with {kind} instead of JSON; check the address, and any proxy in "
                "front of the server."
            ) from error

    def read(self, read: Callable[[Any], T]) -> T:
        """Return what `read` makes of the JSON; ServiceError is raised if it has another form."""
        body = self.json()
        try:
            return read(body)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ServiceError(
                f"The answer of {self.url} does not have the expected form ({what_is_wrong(error)}); server and client "
                "may have different versions."
            ) from error

    @property
    def failures(self) -> dict[int, NNCLRHubError]:
        """The errors of single parts of a request by position; {} if the answer reports none."""
        parts = (_problem(self) or {}).get("errors", [])
        complete = [part for part in parts if isinstance(part, dict) and {"index", "code", "detail"} <= part.keys()]
        return {int(part["index"]): make_error(part["code"], part["detail"]) for part in complete}


@dataclass(frozen=True)
class Call:
    """A request. Every call may be repeated: it changes nothing, or has the same effect as one.

    json, content, files, fields: the body: JSON, bytes, or a form with parts (name, (file name, bytes)).
    parts: number of images or rows; the answer may report an error for each of them.
    accepts: statuses of results besides 2xx.
    once: never repeat it.
    gone: the error which, after an attempt without an answer, means that this attempt succeeded.
    """

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    files: Sequence[tuple[str, tuple[str, bytes]]] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    parts: int = 0
    accepts: Sequence[int] = ()
    once: bool = False
    gone: type[NNCLRHubError] | None = None

    def takes(self, answer: Answer) -> bool:
        """Return whether the answer is a result, or has an error for each part."""
        if answer.status < 300 or answer.status in self.accepts:
            return True
        return self.parts > 0 and len(answer.failures) == self.parts


class Connection:
    """The connections to a server. Threads may share it.

    Args:
        url: http or https.
        key: the API key, or None.
        timeout: seconds from a call to its result, including retries.
    """

    def __init__(self, url: str, key: str | None, timeout: float) -> None:
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, TypeError) as error:
            raise InvalidRequest(f"{url!r} is not a valid server URL; expected http://HOST:PORT.") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InvalidRequest(f"{url!r} is not a valid server URL; expected http://HOST:PORT.")
        if parsed.path.rstrip("/").endswith("/v1"):
            raise InvalidRequest(f"{url!r} is the URL of the API; give http://HOST:PORT, without /api/v1.")
        if key is not None and not (key.isascii() and key.isprintable() and key.strip()):
            raise InvalidRequest("The API key is empty or has characters that a header cannot carry.")
        if not timeout > 0:
            raise InvalidRequest(f"timeout must be greater than 0 seconds, got {timeout}.")
        headers = {"User-Agent": "nnclr_hub"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
        self.url, self._timeout = url, timeout
        self._http = httpx.Client(base_url=url, headers=headers, limits=CONNECTIONS)
        self._patience, self._afterwards = 0.0, ""
        self._answered = threading.Event()  # whether the server ever has, which patient copies share
        self._interrupted = threading.Event()
        self._lock = threading.Lock()
        # of attempts that found no server, unless one has answered since: the first, whether it was logged, the last
        self._outage: tuple[float, bool, float] | None = None

    def close(self) -> None:
        self._http.close()

    def patient(self, seconds: float, afterwards: str) -> Self:
        """Return this connection with patience for each call of an upload, or of a wait for a job.

        It is patient after the first answer to the client: a server that has never answered probably has another
        address.

        Args:
            seconds: beyond the client's timeout, to wait for a busy server. A server that does not answer has OUTAGE_S
                to restart.
            afterwards: what the user can do if the server does not answer; a sentence.
        """
        if self._patience:  # the calls of one upload share their outage
            return self
        made = copy.copy(self)
        made._patience, made._afterwards, made._outage = seconds, afterwards, None
        return made

    def send(self, call: Call) -> Answer:
        """Return the answer of a call.

        Temporary refusals (429, 503) are repeated after the server's Retry-After, lost connections after an
        exponential pause with jitter. At the deadline the last error is raised. If nothing answers at all, a few
        attempts are enough, since the address is probably wrong. The calls of a `patient` connection share one limit
        for an outage of the server, and report it once.
        """
        deadline = self.clock() + self._timeout + self._patience
        lost = False  # whether an attempt without an answer may have been executed
        for attempt in count():
            after: float | None = None
            try:
                answer = self.attempt(call, min(self._timeout, deadline - self.clock()))
            except (ServerUnreachable, DeadlineExceeded) as error:
                failure: NNCLRHubError = error
                lost = silent = True
            else:
                if call.takes(answer):
                    self._answered.set()
                    self._outage = None
                    return answer
                failure, after = error_of(answer), _retry_after(answer)
                if lost and call.gone is not None and isinstance(failure, call.gone):
                    return answer
                silent = isinstance(failure, ServerUnreachable)  # from a proxy: the server may have died
                lost = lost or silent
                if not silent:  # a refusal is an answer, too, such as that a collection does not exist yet
                    self._answered.set()
                    self._outage = None
            if call.once or (after is None and not self._is_temporary(failure, attempt)):
                raise failure
            left = deadline - self.clock()
            if self._answered.is_set() and self._patience and isinstance(failure, ServerUnreachable):
                left = min(left, self._left_of_outage(failure))
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt) * (0.5 + self.jitter() / 2)
            if (pause := max(after or 0.0, pause)) >= left:
                raise type(failure)(f"{failure} {self._afterwards}") if silent and self._afterwards else failure
            self.pause(pause)
        raise AssertionError("count() does not end")

    def _left_of_outage(self, failure: NNCLRHubError) -> float:
        """Return for how many seconds an outage is waited for; log it once, unless it is over in a moment."""
        with self._lock:
            now = self.clock()
            begun, is_logged, last = self._outage or (now, False, now)
            if now > last + OUTAGE_S:  # another one: nobody has asked for long
                begun, is_logged = now, False
            left = begun + OUTAGE_S - now
            if now > begun + MOMENT_S and not is_logged:
                log.warning("%s Retrying for another %.0f s. %s", failure, left, self._afterwards)
                is_logged = True
            self._outage = begun, is_logged, now
            return left

    def _is_temporary(self, failure: NNCLRHubError, attempt: int) -> bool:
        if isinstance(failure, ServerUnreachable):
            return (self._patience > 0 and self._answered.is_set()) or attempt + 1 < LOST
        return isinstance(failure, Overloaded | NotReady) or (
            isinstance(failure, DeadlineExceeded) and self._patience > 0
        )

    def attempt(self, call: Call, seconds: float) -> Answer:
        """Send a call once; ServerUnreachable or DeadlineExceeded is raised if there is no answer."""
        if self._http.is_closed:
            raise InvalidRequest("The client is closed; create a new one.")
        headers, options = dict(call.headers), {}
        if call.json is not None:
            headers["Content-Type"], options["content"] = "application/json", to_json(call.json).encode()
        if call.content is not None:
            options["content"] = call.content
        if call.files:
            options = {"files": list(call.files), "data": dict(call.fields)}
        params, limit = dict(call.params) or None, max(0.001, seconds)
        request = self._http.build_request(
            call.method, call.path, params=params, headers=headers, timeout=limit, **options
        )
        url, end = str(request.url.copy_with(query=None)), time.monotonic() + seconds
        with _translated(url, seconds):
            response = self._http.send(request, stream=True)
            try:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    if time.monotonic() > end:  # httpx limits only the time between two chunks
                        raise _too_late(url, seconds)
            finally:
                response.close()
        return Answer(url, response.status_code, response.headers, bytes(body))

    def for_each(self, jobs: Iterable[J], work: Callable[[J], None], workers: int) -> None:
        """Run `work` on each job, `workers` at a time, in approximate order; the first error ends it."""
        rest, lock = iter(jobs), threading.Lock()
        ended = threading.Event()

        def worker() -> None:
            while not ended.is_set():
                with lock:
                    job = next(((one,) for one in rest), None)
                if job is None:
                    return
                work(job[0])

        with ThreadPoolExecutor(workers, thread_name_prefix="nnclr-client") as pool:
            started = [pool.submit(worker) for _ in range(workers)]
            try:
                wait(started, return_when=FIRST_EXCEPTION)
            except BaseException:  # Ctrl-C: requests under way are completed, others are not started
                self._interrupted.set()
                raise
            finally:
                ended.set()
                wait(started)
                self._interrupted.clear()
        for one in started:
            one.result()

    def pause(self, seconds: float) -> None:
        if self._interrupted.wait(seconds):
            raise ServiceError("Interrupted while waiting for the server; repeat the call to continue.")

    def clock(self) -> float:
        return time.monotonic()

    def jitter(self) -> float:
        return random.random()


def to_json(value: Any) -> str:
    """Return compact JSON; InvalidRequest is raised for a value that has no JSON form."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"The request cannot be written as JSON ({error}); metadata and filters must hold JSON values."
        ) from error
    return text


# ------------------------------------------------------------------------------ errors


def error_of(answer: Answer) -> NNCLRHubError:
    """Return the error of an answer: the class of its `code`, with the server's message."""
    if (body := _problem(answer)) is not None:
        error = make_error(str(body["code"]), str(body["detail"]), _retry_after(answer))
        if isinstance(error, MetadataConflict):
            error.conflicts = {part["id"]: part["metadata"] for part in body.get("errors", [])}
        return error
    # the answer comes from a proxy, or from another program
    if answer.status == 413:
        return RequestTooLarge(f"{answer.url} rejects a request of this size; send fewer images at once.")
    if answer.status == 429:
        return Overloaded(f"{answer.url} accepts no more requests at the moment.", _retry_after(answer) or 1.0)
    kind = answer.headers.get("content-type", "no content")
    restarting = answer.status in (502, 503, 504)  # what a proxy answers while the server behind it restarts
    return (ServerUnreachable if restarting else ServiceError)(
        f"{answer.url} answers {answer.status} with {kind}, which does not come from `nnclr serve`; check the address, "
        "and proxies before the server."
    )


def make_error(code: str, detail: str, wait: float | None = None) -> NNCLRHubError:
    """Return an error of the class with that code; ServiceError if no class has it."""
    kind = BY_CODE.get(code, ServiceError)
    return kind(detail, wait or 1.0) if issubclass(kind, Overloaded) else kind(detail)


def _problem(answer: Answer) -> dict[str, Any] | None:
    kind = answer.headers.get("content-type", "").split(";")[0]
    if kind not in ("application/json", "application/problem+json"):
        return None
    body = answer.json()
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = {**body["error"], "detail": body["error"].get("message")}
    return body if isinstance(body, dict) and {"code", "detail"} <= body.keys() else None


def _retry_after(answer: Answer) -> float | None:
    # proxies may send a date
    text = answer.headers.get("retry-after", "")
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # not a date, or one without a time zone
        return None


def _too_late(url: str, seconds: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"{url} did not answer within {seconds:.3g} s; try later, or set a longer timeout.")


@contextmanager
def _translated(url: str, seconds: float) -> Iterator[None]:
    """Raise the library's errors instead of those of httpx."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or "no connection in time"
        server = str(httpx.URL(url).copy_with(path="/")).rstrip("/")
        raise ServerUnreachable(
            f"No server answers at {server} ({reason}); check the address, and that `nnclr serve` runs there."
        ) from error
    except httpx.TimeoutException as error:
        raise _too_late(url, seconds) from error
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        raise ServerUnreachable(
            f"The connection to {url} was lost ({reason}); the server may be restarting."
        ) from error
    except httpx.HTTPError as error:
        raise ServerUnreachable(f"The answer of {url} cannot be read ({error}); it is not `nnclr serve`.") from error
