"""Helpers of REST tests: request bodies, bytes on a socket, a check of error responses, and waiting for jobs."""

import base64
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

TIMING = re.compile(r"(?:[a-z]+;dur=[\d.]+, )*total;dur=[\d.]+")


def upload(paths: Iterable[Path]) -> list:
    """Return the files of a multipart request."""
    return [("files", (path.name, path.read_bytes(), "image/jpeg")) for path in paths]


def as_text(path: Path) -> str:
    """Return an image as base64."""
    return base64.b64encode(path.read_bytes()).decode()


def talk(url: str, pieces: Iterable[bytes], *, whole: bool = True) -> bytes:
    """Send pieces in a packet each, and return what the server sends until it closes the connection.

    Args:
        whole: False: return when the head of the first response is complete; the connection may be kept.
    """
    answer = b""
    with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port), timeout=120) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):  # the server closed the connection, and may have sent an error before
            for piece in pieces:
                connection.sendall(piece)
        with suppress(ConnectionError):
            while (whole or b"\r\n\r\n" not in answer) and (chunk := connection.recv(65536)):
                answer += chunk
    return answer


@contextmanager
def in_flight(request: httpx.Request) -> Iterator[None]:
    """Send a request, and disconnect at the end of the block without reading the response."""
    lines = [f"{request.method} {request.url.path} HTTP/1.1", *(f"{k}: {v}" for k, v in request.headers.items())]
    with socket.create_connection((request.url.host, request.url.port)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + request.read())
        yield


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[threading.Semaphore]:
    """Block the calls of a method until the context ends; yield a semaphore that each call releases as it begins."""
    begun, release = threading.Semaphore(0), threading.Event()
    real = getattr(owner, name)

    def wait(*args, **options):
        begun.release()
        assert release.wait(120)
        return real(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, wait)
        try:
            yield begun
        finally:
            release.set()


def is_problem(response: httpx.Response, status: int, code: str) -> str:
    """Check that the response is an RFC 9457 problem, and return its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert {"type", "title", "status", "detail", "instance", "code"} <= body.keys()
    assert (body["status"], body["code"]) == (status, code)
    assert body["instance"].endswith(f"#{response.headers['X-Request-ID']}")
    assert "Traceback" not in body["detail"]
    assert TIMING.fullmatch(response.headers["Server-Timing"])
    return body["detail"]


def ended(client: httpx.Client, answer: httpx.Response) -> dict:
    """Return the job of a 202 response when it has ended."""
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/api/v1/jobs/{answer.json()['id']}"
    return finished(client, answer.headers["location"])


def finished(client: httpx.Client, location: str) -> dict:
    """Return the job at that location when it has ended."""
    for _ in range(2400):
        job = client.get(location).json()
        if job["state"] in ("done", "failed", "cancelled"):
            return job
        time.sleep(0.05)
    pytest.fail(f"the job did not end: {job}")
