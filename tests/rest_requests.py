"""Helpers of REST tests: request bodies, and a check of error responses."""

import base64
from collections.abc import Iterable
from pathlib import Path

import httpx


def upload(paths: Iterable[Path]) -> list:
    """Return the files of a multipart request."""
    return [("files", (path.name, path.read_bytes(), "image/jpeg")) for path in paths]


def as_text(path: Path) -> str:
    """Return an image as base64."""
    return base64.b64encode(path.read_bytes()).decode()


def is_problem(response: httpx.Response, status: int, code: str) -> str:
    """Check that the response is an RFC 9457 problem, and return its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert {"type", "title", "status", "detail", "instance", "code"} <= body.keys()
    assert (body["status"], body["code"]) == (status, code)
    assert body["instance"].endswith(f"#{response.headers['X-Request-ID']}")
    assert "Traceback" not in body["detail"]
    return body["detail"]
