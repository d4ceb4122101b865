"""The jobs' records."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterator

from nnclr_hub.store.records import Record, Records

from .job import Job

JOB, INPUT, MARK = "job", "job_input", "job_mark"
PAGE = 100


class Ledger:
    """Keeps jobs, and the bytes that came with those that have not ended.

    Args:
        records: of the store.
        keep: how many ended jobs stay.
    """

    def __init__(self, records: Records, keep: int) -> None:
        self._records = records
        self._keep = keep
        kept = list(self.newest_first())
        self._last = int(kept[0].id, 16) if kept else 0
        self._ended = sorted(_end_of(job) for job in kept if job.has_ended)

    def new_id(self) -> str:
        """Greater than all before, even if the clock was set back."""
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return f"{self._last:014x}"

    def add(self, job: Job, input: bytes | None) -> None:
        """A new job."""
        given = [Record(INPUT, job.id, {}, input)] if input is not None else []
        marked = [Record(MARK, job.mark, {"job": job.id})] if job.mark else []
        self._records.put(_record(job), *given, *marked)

    def note(self, job: Job, commit: Callable[[Records], None] = lambda records: None) -> None:
        """A job as it is now, together with what else it changes."""
        with self._records.together():
            commit(self._records)
            self._records.put(_record(job))
            if job.has_ended:
                self._records.delete(INPUT, job.id)
        if job.has_ended:
            bisect.insort(self._ended, _end_of(job))

    def prune(self) -> None:
        """Forgets those that ended first; one that took long may be older, and nobody has seen its end yet."""
        old = self._ended[: max(0, len(self._ended) - self._keep)]
        if old:
            with self._records.together():
                self._records.delete(JOB, *(id for _, id, _ in old))
                self._records.delete(MARK, *(mark for _, _, mark in old if mark))
            del self._ended[: len(old)]

    def get(self, id: str) -> Job | None:
        record = self._records.get(JOB, id)
        return Job.read(record.content, record.data) if record else None

    def marked(self, mark: str) -> Job | None:
        """The job of a request."""
        record = self._records.get(MARK, mark) if mark else None
        return self.get(record.content["job"]) if record else None

    def input(self, id: str) -> bytes:
        record = self._records.get(INPUT, id)
        return (record.data if record else None) or b""

    def latest(self) -> str | None:
        """The id of the newest job."""
        newest = self._records.list(JOB, descending=True, limit=1)
        return newest[0].name if newest else None

    def newest_first(self, before: str | None = None) -> Iterator[Job]:
        """All jobs that were made before another, without their results."""
        while found := self._records.list(JOB, after=before, limit=PAGE, descending=True):
            yield from (Job.read(record.content, None) for record in found)
            before = found[-1].name


def _end_of(job: Job) -> tuple[float, str, str]:
    return job.ended or 0.0, job.id, job.mark


def _record(job: Job) -> Record:
    content, result = job.written()
    return Record(JOB, job.id, content, result)
