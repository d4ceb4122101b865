"""Background jobs of a server: follow their progress, wait for them, cancel them."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nnclr_hub.arguments import Checked
from nnclr_hub.client.transport import Call, Connection, make_error
from nnclr_hub.errors import DeadlineExceeded, InvalidRequest, NNCLRHubError, ServiceError
from nnclr_hub.store.base import Progress
from nnclr_hub.workbench.requests import Request
from nnclr_hub.workbench.tasks import find_task

log = logging.getLogger(__name__)
ROOT = "/api/v1/jobs"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # between two requests for the state of a job
PATIENCE_S = 120.0  # maximum wait for a busy server


@dataclass(frozen=True)
class Job:
    """The state of a job.

    state: queued, running, done, failed or cancelled.
    done, total: the progress; total is 0 until it is known.
    eta_s: estimated remaining seconds, if known.
    result: JSON, once it is done.
    truncated: what is missing in a result that was too long.
    error: why it failed.
    """

    id: str
    kind: str
    state: str
    done: int
    total: int
    eta_s: float | None
    result: Mapping[str, Any] | None
    truncated: str
    error: NNCLRHubError | None

    @property
    def has_ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @classmethod
    def of(cls, body: dict[str, Any]) -> Job:
        """Read a job."""
        error = body["error"] and make_error(body["error"]["code"], body["error"]["detail"])
        names = ("id", "kind", "state", "done", "total", "eta_s", "result", "truncated")
        return cls(**{name: body[name] for name in names}, error=error or None)


class RemoteJobs(Checked):
    """Background jobs of a server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def start(self, task: str, request: Request) -> Job:
        """Start a job that runs a task of `workbench.tasks` without a file."""
        path, params, body = find_task(task, request).call(request)
        return self._connection.send(Call("POST", f"/api/v1{path}", params, json=body)).read(Job.of)

    def get(self, id: str) -> Job:
        """Return the current state of a job; JobNotFound is raised if no job has that id, or it ended long ago."""
        return self._connection.send(Call("GET", _path(id))).read(Job.of)

    def list(self, limit: int = 100) -> list[Job]:
        """Return the latest jobs, newest first, without their results."""
        answer = self._connection.send(Call("GET", ROOT, {"limit": str(limit)}))
        return answer.read(lambda body: [Job.of(one) for one in body["jobs"]])

    def cancel(self, id: str) -> Job:
        """Cancel a job; a running job stops at its next step, a finished job is not changed."""
        return self._connection.send(Call("DELETE", _path(id))).read(Job.of)

    def wait(self, id: str, *, timeout: float | None = None, progress: Progress = lambda done, total: None) -> Job:
        """Wait for a job and return it when it is done; survives a restart of the server.

        Args:
            timeout: maximum seconds to wait; None: no limit.
            progress: called with (done, total) after each request.

        Raises:
            NNCLRHubError: why it failed, or that it was cancelled.
            DeadlineExceeded: if it is not done in time; the job continues.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = FIRST_PAUSE_S
        afterwards = f"The job {id} continues when the server starts again."
        connection, call = self._connection.patient(PATIENCE_S, afterwards), Call("GET", _path(id))
        try:
            while True:
                job = connection.send(call).read(Job.of)
                progress(job.done, job.total)
                if job.error is not None:
                    raise job.error
                if job.state == "cancelled":
                    raise ServiceError(f"Job {id} ({job.kind}) was cancelled after {job.done} of {job.total}.")
                if job.has_ended:
                    if job.truncated:
                        log.warning("the result of job %s (%s) is incomplete: %s", id, job.kind, job.truncated)
                    return job
                if end is not None and time.monotonic() + pause > end:
                    what = f"Job {id} ({job.kind}) is not done after {timeout:g} s"
                    raise DeadlineExceeded(f"{what} and continues; wait again.")
                self._connection.pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        except KeyboardInterrupt:
            hint = f"cancel it in the web app, or with DELETE {_path(id)}"
            log.warning("The server continues with the job %s; %s.", id, hint)
            raise


def _path(id: str) -> str:
    if not isinstance(id, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", id):
        raise InvalidRequest(f"{id!r:.100} is not a job id; use the `id` of a Job.")
    return f"{ROOT}/{id}"
