"""A job's progress as server-sent events.

    retry: 2000

    id: 3
    event: state
    data: {"id": "...", "state": "running", "done": 0, ...}

    id: 9
    event: progress
    data: {"id": "...", "state": "running", "done": 640, ...}

Each event contains the whole job at that time. Changes between two checks, or while the client is slow, are combined
in one event. The stream ends with the job.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable

from anyio.to_thread import run_sync

from .job import JobStatus
from .jobs import Jobs

CHECK_S = 0.25
HEARTBEAT_S = 15.0
RETRY_MS = 2000


def is_over(job: JobStatus, last: str | None) -> bool:
    """Return whether a client that reconnects has seen the end of a job already."""
    return job.has_ended and last == str(job.changes)


async def stream(
    jobs: Jobs,
    job: JobStatus,
    last: str | None,
    to_json: Callable[[JobStatus], dict],
    *,
    heartbeat_s: float = HEARTBEAT_S,
) -> AsyncIterator[bytes]:
    """Yield the events of a job until it ends or the server shuts down.

    Args:
        job: its present state.
        last: Last-Event-ID of a client that reconnects.
        to_json: returns what clients see of a job.
        heartbeat_s: seconds after which a comment is sent, so that proxies keep the connection open.
    """
    yield f"retry: {RETRY_MS}\n\n".encode()
    state, silent_since = None, time.monotonic()
    while True:
        if str(job.changes) != last:
            name = "progress" if job.state == state else "state"
            yield f"id: {job.changes}\nevent: {name}\ndata: {json.dumps(to_json(job))}\n\n".encode()
            last, state, silent_since = str(job.changes), job.state, time.monotonic()
        elif time.monotonic() - silent_since > heartbeat_s:
            yield b": heartbeat\n\n"
            silent_since = time.monotonic()
        if job.has_ended or jobs.streams_closed:
            return
        await asyncio.sleep(CHECK_S)
        job = await run_sync(jobs.get, job.id)
