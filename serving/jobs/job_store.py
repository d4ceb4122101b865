"""Where jobs are kept: JobRecords on disk, and ActiveJobs in memory for those that have not ended."""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from nnclr_hub.errors import StoreError
from nnclr_hub.store.records import Record, Records

from ..telemetry import Metrics
from .job import JobStatus, State, log_state

log = logging.getLogger(__name__)
JOB, INPUT, MARK = "job", "job_input", "job_mark"  # kinds of records
PAGE = 100


class JobRecords:
    """Jobs on disk, with the input of those that have not ended.

    Args:
        records: of the store.
        keep: number of ended jobs to keep.
    """

    def __init__(self, records: Records, keep: int) -> None:
        self._records = records
        self._keep = keep
        kept = list(self.newest_first())
        self._last = int(kept[0].id, 16) if kept else 0
        self._ended = sorted(_end_of(job) for job in kept if job.has_ended)

    def new_id(self) -> str:
        """Return an id that is greater than all before, even if the clock was set back."""
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return f"{self._last:014x}"

    def add(self, job: JobStatus, input: bytes | None) -> None:
        """Write a new job."""
        inputs = [Record(INPUT, job.id, {}, input)] if input is not None else []
        marks = [Record(MARK, job.mark, {"job": job.id})] if job.mark else []
        self._records.put(_record(job), *inputs, *marks)

    def update(self, job: JobStatus, commit: Callable[[Records], None] = lambda records: None) -> None:
        """Write a job's state, in one transaction with what `commit` writes."""
        with self._records.transaction():
            commit(self._records)
            self._records.put(_record(job))
            if job.has_ended:
                self._records.delete(INPUT, job.id)
        if job.has_ended:
            bisect.insort(self._ended, _end_of(job))

    def prune(self) -> None:
        """Delete the jobs that ended first. Not the oldest: a long job may be old when it ends."""
        old = self._ended[: max(0, len(self._ended) - self._keep)]
        if old:
            with self._records.transaction():
                self._records.delete(JOB, *(id for _, id, _ in old))
                self._records.delete(MARK, *(mark for _, _, mark in old if mark))
            del self._ended[: len(old)]

    def get(self, id: str) -> JobStatus | None:
        record = self._records.get(JOB, id)
        return JobStatus.read(record.content, record.data) if record else None

    def find_mark(self, mark: str) -> JobStatus | None:
        """Return the job that a request submitted before, or None."""
        record = self._records.get(MARK, mark) if mark else None
        return self.get(record.content["job"]) if record else None

    def input(self, id: str) -> bytes:
        record = self._records.get(INPUT, id)
        return (record.data if record else None) or b""

    def latest(self) -> str | None:
        """Return the id of the newest job, or None."""
        newest = self._records.list(JOB, descending=True, limit=1)
        return newest[0].name if newest else None

    def newest_first(self, before: str | None = None) -> Iterator[JobStatus]:
        """Yield all jobs that are older than `before`, without their results."""
        while found := self._records.list(JOB, after=before, limit=PAGE, descending=True):
            yield from (JobStatus.read(record.content, None) for record in found)
            before = found[-1].name


@dataclass
class ActiveJob:
    """A job that has not ended; `job` is its present state."""

    job: JobStatus
    cancel: threading.Event = field(default_factory=threading.Event)


class ActiveJobs:
    """The jobs that have not ended. Every change of a job goes through here, under one lock.

    Progress changes only the state in memory. Everything else is written to the records first, so that the state in
    memory never promises what a crash would lose.

    Args:
        records: the jobs on disk.
        metrics: counts jobs.
    """

    def __init__(self, records: JobRecords, metrics: Metrics) -> None:
        self.records = records
        self.lock = threading.RLock()
        self._metrics = metrics
        self._active: dict[str, ActiveJob] = {}

    @property
    def waiting(self) -> int:
        """Number of queued jobs."""
        with self.lock:
            return sum(active.job.state == "queued" for active in self._active.values())

    def get(self, id: str) -> ActiveJob | None:
        """Return the job if it has not ended."""
        return self._active.get(id)

    def current(self, job: JobStatus) -> JobStatus:
        """Return the present state of a job that was read from disk."""
        active = self._active.get(job.id)
        return active.job if active else job

    def add(self, job: JobStatus) -> ActiveJob:
        """Add a job that is already on disk."""
        active = ActiveJob(job)
        if job.cancelling:
            active.cancel.set()
        with self.lock:
            self._active[job.id] = active
        self._metrics.jobs_active.inc()
        return active

    def start(self, active: ActiveJob) -> bool:
        """Record that a job runs; return False if it was cancelled while it waited.

        Raises:
            StoreError: the change could not be written, and nothing changed.
        """
        with self.lock:
            if active.job.has_ended:
                return False
            attempts = active.job.attempts + 1
            self.change(active, write=True, state="running", begun=True, started=time.time(), attempts=attempts)
            log_state(active.job, "started")
            return True

    def change(self, active: ActiveJob, *, write: bool = False, **changes: Any) -> None:
        """Change fields of a job, on disk too if `write`.

        Raises:
            StoreError: the change could not be written, and nothing changed.
        """
        with self.lock:
            job = replace(active.job, changes=active.job.changes + 1, **changes)
            if write:
                self.records.update(job)
            active.job = job

    def end(
        self, active: ActiveJob, state: State, commit: Callable[[Records], None] | None = None, **changes: Any
    ) -> None:
        """End a job, and write what it made in the same transaction.

        Raises:
            StoreError: the change could not be written, and nothing changed.
        """
        with self.lock:
            job = _ended(active.job, state, **changes)
            self.records.update(job, *([commit] if commit else []))
            active.job = job
            if self._active.pop(job.id, None) is not None:
                self._metrics.jobs_active.dec()
            self._metrics.jobs.labels(job.kind, job.state).inc()
            log_state(job, state)
            try:
                self.records.prune()
            except StoreError as error:  # the job has ended all the same; the next end prunes more
                log.warning("cannot delete old jobs (%s)", error)

    def end_in_memory(self, active: ActiveJob, state: State, **changes: Any) -> None:
        """End a job that cannot be written. The next server finds its last written state."""
        with self.lock:
            active.job = _ended(active.job, state, **changes)
            log_state(active.job, f"{state}, but this could not be saved")


def _ended(job: JobStatus, state: State, **changes: Any) -> JobStatus:
    return replace(job, state=state, ended=time.time(), cancelling=False, changes=job.changes + 1, **changes)


def _end_of(job: JobStatus) -> tuple[float, str, str]:
    return job.ended or 0.0, job.id, job.mark


def _record(job: JobStatus) -> Record:
    content, result = job.written()
    return Record(JOB, job.id, content, result)
