"""Wait for jobs over REST."""

import time

import httpx
import pytest


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
