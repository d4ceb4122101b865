"""Where the server is, and how attempts go out and come back; httpx's errors end here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from nnclr_hub.client.steps import Answer, Attempt, to_json
from nnclr_hub.errors import DeadlineExceeded, InvalidRequest, ServerUnreachable

CONNECTIONS = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=4.0)


@dataclass(frozen=True)
class Address:
    """url: of the server, http or https. key: what it is asked with, or None."""

    url: str
    key: str | None = None

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.url)
        except (httpx.InvalidURL, TypeError) as error:
            raise InvalidRequest(f"The address {self.url!r} cannot be read: write http://HOST:PORT.") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidRequest(f"The address {self.url!r} is none of a server: write http://HOST:PORT.")
        if url.path.rstrip("/").endswith("/v1"):
            raise InvalidRequest(f"The address {self.url!r} names the API: give http://HOST:PORT, without /api/v1.")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and self.key.strip()):
            raise InvalidRequest("The API key is empty or has characters that no header can carry: check its source.")

    def options(self) -> dict[str, Any]:
        """For an httpx client, blocking or not."""
        headers = {"User-Agent": "nnclr_hub"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        return {"base_url": self.url, "headers": headers, "limits": CONNECTIONS, "follow_redirects": False}


def request_of(client: httpx.Client | httpx.AsyncClient, attempt: Attempt) -> httpx.Request:
    """The attempt, ready to be sent."""
    call = attempt.call
    if client.is_closed:
        raise InvalidRequest("The client is closed: make another one.")
    headers, options = dict(call.headers), {}
    if call.json is not None:
        headers["Content-Type"], options["content"] = "application/json", to_json(call.json).encode()
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
    """What came back."""
    return Answer(str(response.request.url.copy_with(query=None)), response.status_code, response.headers, body)


class Deadline:
    """Ends the reading of an answer that comes in drops."""

    def __init__(self, seconds: float, url: str) -> None:
        self._end, self._seconds, self._url = time.monotonic() + seconds, seconds, url

    def check(self) -> None:
        """Raises DeadlineExceeded when the time is over."""
        if time.monotonic() > self._end:
            raise too_late(self._url, self._seconds)


def too_late(url: str, seconds: float) -> DeadlineExceeded:
    """The error of an answer that did not come in time."""
    return DeadlineExceeded(f"{url} has not answered within {seconds:.3g} s: try later, or give a longer timeout.")


@contextmanager
def translated(url: str, seconds: float) -> Iterator[None]:
    """Raises the library's errors in place of httpx's."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
        reason = str(error) or "no connection in time"
        raise ServerUnreachable(
            f"No server can be reached at {url} ({reason}): check the address, and that `nnclr serve` runs there."
        ) from error
    except httpx.TimeoutException as error:
        raise too_late(url, seconds) from error
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        raise ServerUnreachable(
            f"The connection to {url} broke off ({reason}): the server may be restarting."
        ) from error
    except httpx.HTTPError as error:
        raise ServerUnreachable(f"The answer of {url} cannot be read ({error}): it is not `nnclr serve`.") from error
