"""How a job goes on, as server-sent events.

    retry: 2000

    id: 3
    event: state
    data: {"id": "...", "state": "running", "done": 0, ...}

    id: 9
    event: progress
    data: {"id": "...", "state": "running", "done": 640, ...}

Each event is the whole job as it is then; what happens between two looks, or while the client is slow, is told in one
event. The stream ends with the job. Who comes back with the Last-Event-ID of the last event is told to stay away.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable

from anyio.to_thread import run_sync

from .job import Job
from .jobs import Jobs

LOOK_S = 0.25
HEARTBEAT_S = 15.0
RETRY_MS = 2000


def is_over(job: Job, last: str | None) -> bool:
    """Whether a client has seen the end of a job already."""
    return job.has_ended and last == str(job.changes)


async def stream(
    jobs: Jobs, job: Job, last: str | None, told: Callable[[Job], dict], *, heartbeat_s: float = HEARTBEAT_S
) -> AsyncIterator[bytes]:
    """The events of a job until it has ended or the server goes down.

    Args:
        job: as it is now.
        last: Last-Event-ID of a client that comes back.
        told: what is told of a job, as JSON.
        heartbeat_s: seconds after which a comment shows that the connection lives.
    """
    yield f"retry: {RETRY_MS}\n\n".encode()
    state, silent_since = None, time.monotonic()
    while True:
        if str(job.changes) != last:
            name = "progress" if job.state == state else "state"
            yield f"id: {job.changes}\nevent: {name}\ndata: {json.dumps(told(job))}\n\n".encode()
            last, state, silent_since = str(job.changes), job.state, time.monotonic()
        elif time.monotonic() - silent_since > heartbeat_s:
            yield b": still there\n\n"
            silent_since = time.monotonic()
        if job.has_ended or jobs.hung_up:
            return
        await asyncio.sleep(LOOK_S)
        job = await run_sync(jobs.get, job.id)
