"""JobStatus: the state of one piece of background work, and its lines in the log.

2026-10-01T12:00:00.123Z info    add job started job=00063f5c1c8a2b
2026-10-01T12:00:41.456Z warning add job failed job=00063f5c1c8a2b s=41.333 done=640 code=disk_full
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

log = logging.getLogger("nnclr_hub.jobs")
State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class JobStatus:
    """A job at one moment.

    id: ids of later jobs are greater.
    kind: see `kinds`; params: its parameters, as JSON.
    mark: identifies the request that submitted it, so that a repeated request finds the same job; "" if unknown.
    done, total: progress, in units of the kind; total is 0 until it is known.
    created, started, ended: seconds since 1970; None until then.
    attempts: how often it was started, without those that a shutdown interrupted in an orderly way.
    begun: whether it ever ran.
    notes: what the work saved for the next attempt, as JSON.
    cancelling: whether its cancellation was requested and has not happened yet.
    result: the result of a job that is done, as JSON.
    error: status, code and detail of a job that failed.
    changes: increases with every visible change.
    """

    id: str
    kind: str
    params: Mapping[str, Any]
    created: float
    mark: str = ""
    state: State = "queued"
    done: int = 0
    total: int = 0
    started: float | None = None
    ended: float | None = None
    attempts: int = 0
    begun: bool = False
    notes: Mapping[str, Any] = field(default_factory=dict)
    cancelling: bool = False
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    changes: int = 0

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def rate(self) -> float | None:
        """Units per second since the start; None if unknown."""
        if self.started is None or not self.done:
            return None
        seconds = (self.ended or time.time()) - self.started
        return self.done / seconds if seconds > 0 else None

    @property
    def eta_s(self) -> float | None:
        """Seconds that a running job still needs at its present rate; None if unknown."""
        if self.state != "running" or not self.rate or not self.total:
            return None
        return max(0.0, (self.total - self.done) / self.rate)

    @classmethod
    def read(cls, content: Mapping[str, Any], result: bytes | None) -> Self:
        """Read what `written` returned."""
        return cls(**content, result=None if result is None else json.loads(result))

    def written(self) -> tuple[dict[str, Any], bytes | None]:
        """Return the job as JSON, and its result separately: it may be large, and lists do not need it."""
        content = {name: value for name, value in vars(self).items() if name != "result"}
        return content, None if self.result is None else json.dumps(self.result).encode()


def log_state(job: JobStatus, what: str) -> None:
    """Log a change of a job: when it starts, when it ends, and when a shutdown interrupts it.

    The log contains no names of collections or files, and error messages may. It therefore has only the error's code.
    """
    seconds = round(job.ended - job.started, 3) if job.ended and job.started else None
    attempt = job.attempts if job.attempts > 1 else None
    fields = {"job": job.id, "kind": job.kind, "s": seconds, "done": job.done or None, "attempt": attempt}
    fields["code"] = job.error["code"] if job.error else None
    known = {name: value for name, value in fields.items() if value is not None}
    level = logging.WARNING if job.state == "failed" else logging.INFO
    log.log(level, "%s job %s", job.kind, what, extra={"fields": known})
