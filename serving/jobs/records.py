"""JobRecords: jobs on disk, with the hidden parameters of those that have not ended."""

from __future__ import annotations

import bisect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nnclr_hub.store.records import Record, Records

from .job import JobStatus

JOB, HIDDEN, MARK = "job", "job_input", "job_mark"  # kinds of records
PAGE = 100


class JobRecords:
    """Jobs on disk.

    Args:
        records: records of the store.
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

    def add(self, job: JobStatus, hidden: Mapping[str, Any]) -> None:
        """Write a new job."""
        more = [Record(HIDDEN, job.id, {}, json.dumps(hidden).encode())] if hidden else []
        more += [Record(MARK, job.mark, {"job": job.id})] if job.mark else []
        self._records.put(_record(job), *more)

    def update(self, job: JobStatus, *writes: Callable[[Records], None]) -> None:
        """Write a job's state, in one transaction with what its task writes."""
        with self._records.transaction():
            for write in writes:
                write(self._records)
            self._records.put(_record(job))
            if job.has_ended:
                self._records.delete(HIDDEN, job.id)
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

    def hidden(self, id: str) -> dict[str, Any]:
        """Return the hidden parameters of a job that has not ended."""
        record = self._records.get(HIDDEN, id)
        return json.loads(record.data) if record and record.data else {}

    def latest(self) -> str | None:
        """Return the id of the newest job, or None."""
        newest = self._records.list(JOB, descending=True, limit=1)
        return newest[0].name if newest else None

    def newest_first(self, before: str | None = None) -> Iterator[JobStatus]:
        """Yield all jobs that are older than `before`, without their results."""
        while found := self._records.list(JOB, after=before, limit=PAGE, descending=True):
            yield from (JobStatus.read(record.content, None) for record in found)
            before = found[-1].name


def _end_of(job: JobStatus) -> tuple[float, str, str]:
    return job.ended or 0.0, job.id, job.mark


def _record(job: JobStatus) -> Record:
    content, result = job.written()
    return Record(JOB, job.id, content, result)
