"""Jobs as a client of REST sees them."""

import time

import httpx
import pytest


def ended(client: httpx.Client, answer: httpx.Response) -> dict:
    """The job of a 202 when it has ended."""
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/api/v1/jobs/{answer.json()['id']}"
    return finished(client, answer.headers["location"])


def finished(client: httpx.Client, location: str) -> dict:
    """The job at that place when it has ended."""
    for _ in range(2400):
        job = client.get(location).json()
        if job["state"] in ("done", "failed", "cancelled"):
            return job
        time.sleep(0.05)
    pytest.fail(f"it does not end: {job}")
