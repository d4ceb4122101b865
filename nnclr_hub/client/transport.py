"""Where the server is, and the two drivers that send the client's requests: one blocks, one awaits.

Errors of httpx become the library's own here.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from nnclr_hub.client.retry import Policy, answered
from nnclr_hub.client.steps import Answer, Attempt, Call, InThread, Pause, Step, Steps, T, Together, to_json
from nnclr_hub.errors import DeadlineExceeded, InvalidRequest, ServerUnreachable, ServiceError

CONNECTIONS = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=4.0)


@dataclass(frozen=True)
class Address:
    """The server.

    url: http or https.
    key: the API key, or None.
    """

    url: str
    key: str | None = None

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.url)
        except (httpx.InvalidURL, TypeError) as error:
            raise InvalidRequest(f"{self.url!r} is not a valid server URL; expected http://HOST:PORT.") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidRequest(f"{self.url!r} is not a valid server URL; expected http://HOST:PORT.")
        if url.path.rstrip("/").endswith("/v1"):
            raise InvalidRequest(f"{self.url!r} is the URL of the API; give http://HOST:PORT, without /api/v1.")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and self.key.strip()):
            raise InvalidRequest("The API key is empty or has characters that a header cannot carry.")

    def options(self) -> dict[str, Any]:
        """Return the arguments of an httpx client, blocking or not."""
        headers = {"User-Agent": "nnclr_hub"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        return {"base_url": self.url, "headers": headers, "limits": CONNECTIONS, "follow_redirects": False}


def request_of(client: httpx.Client | httpx.AsyncClient, attempt: Attempt) -> httpx.Request:
    """Return the request of an attempt."""
    call = attempt.call
    if client.is_closed:
        raise InvalidRequest("The client is closed; create a new one.")
    headers, options = dict(call.headers), {}
    if call.json is not None:
        headers["Content-Type"], options["content"] = "application/json", to_json(call.json).encode()
    if call.content is not None:
        options["content"] = call.content
    if call.files:
        options = {"files": list(call.files), "data": dict(call.fields)}
    return client.build_request(
        call.method,
        call.path,
        params=dict(call.params) or None,
        headers=headers,
        timeout=max(0.001, attempt.seconds),
        **options,
    )


def answer_of(response: httpx.Response, body: bytes) -> Answer:
    """Return the answer of a response."""
    return Answer(str(response.request.url.copy_with(query=None)), response.status_code, response.headers, body)


class ReadingLimit:
    """Ends the reading of a response that arrives slowly: httpx limits only the time between two chunks."""

    def __init__(self, seconds: float, url: str) -> None:
        self._end, self._seconds, self._url = time.monotonic() + seconds, seconds, url

    def check(self) -> None:
        """Raise DeadlineExceeded when the time is over."""
        if time.monotonic() > self._end:
            raise too_late(self._url, self._seconds)


def too_late(url: str, seconds: float) -> DeadlineExceeded:
    """Return the error of an answer that did not come in time."""
    return DeadlineExceeded(f"{url} did not answer within {seconds:.3g} s; try later, or set a longer timeout.")


@contextmanager
def translated(url: str, seconds: float) -> Iterator[None]:
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
        raise too_late(url, seconds) from error
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        raise ServerUnreachable(
            f"The connection to {url} was lost ({reason}); the server may be restarting."
        ) from error
    except httpx.HTTPError as error:
        raise ServerUnreachable(f"The answer of {url} cannot be read ({error}); it is not `nnclr serve`.") from error


class SyncDriver:
    """Executes steps in the caller's thread, and `Together` in a pool of threads."""

    def __init__(self, address: Address, policy: Policy) -> None:
        self.address, self._policy = address, policy
        self._http = httpx.Client(**address.options())
        self._interrupted = threading.Event()

    def drive(self, steps: Steps[T]) -> T:
        """Return the result of the steps."""
        outcome: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            outcome, error = None, None
            try:
                outcome = self._perform(step)
            except Exception as raised:  # noqa: BLE001 - thrown into the steps, which may handle it
                error = raised

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _perform(self, step: Step) -> Any:
        match step:
            case Call():
                return self.drive(answered(step, self._policy))
            case Attempt():
                return self._send(step)
            case Pause():
                if self._interrupted.wait(step.seconds):
                    raise ServiceError("Interrupted while waiting for the server; repeat the call to continue.")
                return None
            case InThread():
                return step.work()
            case Together():
                return self._together(step)

    def _send(self, attempt: Attempt) -> Answer:
        request = request_of(self._http, attempt)
        url = str(request.url.copy_with(query=None))
        deadline = ReadingLimit(attempt.seconds, url)
        with translated(url, attempt.seconds):
            response = self._http.send(request, stream=True)
            try:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    deadline.check()
            finally:
                response.close()
        return answer_of(response, bytes(body))

    def _together(self, step: Together) -> None:
        with ThreadPoolExecutor(len(step.several), thread_name_prefix="nnclr-client") as pool:
            workers = [pool.submit(self.drive, steps) for steps in step.several]
            try:
                wait(workers, return_when=FIRST_EXCEPTION)
            except BaseException:  # Ctrl-C: requests under way are completed, others are not started
                self._interrupted.set()
                raise
            finally:
                step.stop()
                wait(workers)
                self._interrupted.clear()
        for worker in workers:
            worker.result()


class AsyncDriver:
    """Executes steps in the running event loop, and `Together` in tasks."""

    def __init__(self, address: Address, policy: Policy) -> None:
        self.address, self._policy = address, policy
        self._http = httpx.AsyncClient(**address.options())

    async def drive(self, steps: Steps[T]) -> T:
        """Return the result of the steps."""
        outcome: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            outcome, error = None, None
            try:
                outcome = await self._perform(step)
            except Exception as raised:  # noqa: BLE001 - thrown into the steps, which may handle it
                error = raised

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _perform(self, step: Step) -> Any:
        match step:
            case Call():
                return await self.drive(answered(step, self._policy))
            case Attempt():
                return await self._send(step)
            case Pause():
                return await asyncio.sleep(step.seconds)
            case InThread():
                return await asyncio.to_thread(step.work)
            case Together():
                return await self._together(step)

    async def _send(self, attempt: Attempt) -> Answer:
        request = request_of(self._http, attempt)
        url = str(request.url.copy_with(query=None))
        try:
            with translated(url, attempt.seconds):
                async with asyncio.timeout(attempt.seconds):
                    response = await self._http.send(request)
        except TimeoutError as error:
            raise too_late(url, attempt.seconds) from error
        return answer_of(response, response.content)

    async def _together(self, step: Together) -> None:
        tasks = [asyncio.create_task(self.drive(steps)) for steps in step.several]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            step.stop()
            await asyncio.wait(tasks)
        finally:
            step.stop()
            for task in tasks:
                task.cancel()
        for task in tasks:
            task.result()
