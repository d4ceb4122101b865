"""Helpers of REST tests: request bodies, a check of error responses, and waiting for jobs."""

import base64
import time
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest


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
