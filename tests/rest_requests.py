"""What tests of REST ask with, and what they hold its refusals to."""

import base64
from collections.abc import Iterable
from pathlib import Path

import httpx


def upload(paths: Iterable[Path]) -> list:
    """The files of a multipart request."""
    return [("files", (path.name, path.read_bytes(), "image/jpeg")) for path in paths]


def as_text(path: Path) -> str:
    """An image as base64."""
    return base64.b64encode(path.read_bytes()).decode()


def is_problem(response: httpx.Response, status: int, code: str) -> str:
    """Holds the answer to RFC 9457 and returns its sentence."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert {"type", "title", "status", "detail", "instance", "code"} <= body.keys()
    assert (body["status"], body["code"]) == (status, code)
    assert body["instance"].endswith(f"#{response.headers['X-Request-ID']}")
    assert "Traceback" not in body["detail"]
    return body["detail"]
