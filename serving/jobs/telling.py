"""What the log tells of a job: a line when it begins, one when it ends, and one if the server's end cuts it short.

    2026-10-01T12:00:00.123Z info    add job begins job=00063f5c1c8a2b
    2026-10-01T12:00:41.456Z warning add job failed job=00063f5c1c8a2b s=41.333 done=640 code=disk_full

Names of collections and files are not for the log, and sentences hold them: what it failed of in full stands with the
job itself.
"""

from __future__ import annotations

import logging

from .job import Job

log = logging.getLogger("nnclr_hub.jobs")


def tell(job: Job, what: str) -> None:
    """Logs what has become of a job."""
    seconds = round(job.ended - job.started, 3) if job.ended and job.started else None
    again = job.attempts if job.attempts > 1 else None
    told = {"job": job.id, "kind": job.kind, "s": seconds, "done": job.done or None, "attempt": again}
    told["code"] = job.error["code"] if job.error else None
    known = {name: value for name, value in told.items() if value is not None}
    level = logging.WARNING if job.state == "failed" else logging.INFO
    log.log(level, "%s job %s", job.kind, what, extra={"told": known})
