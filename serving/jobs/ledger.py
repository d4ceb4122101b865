"""The jobs' records."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

from nnclr_hub.store.records import Record, Records

from .job import Job

JOB, INPUT = "job", "job_input"


class Ledger:
    """Keeps jobs, and the bytes that came with those that have not ended.

    Args:
        records: of the store.
        keep: how many ended jobs stay.
    """

    def __init__(self, records: Records, keep: int) -> None:
        self._records = records
        self._keep = keep
        newest = records.list(JOB, descending=True, limit=1)
        self._last = int(newest[0].name, 16) if newest else 0

    def new_id(self) -> str:
        """Greater than all before, even if the clock was set back."""
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return f"{self._last:014x}"

    def add(self, job: Job, input: bytes | None) -> None:
        """A new job."""
        self._records.put(
            Record(JOB, job.id, job.written()), *([Record(INPUT, job.id, {}, input)] if input is not None else [])
        )

    def note(self, job: Job, commit: Callable[[Records], None] = lambda records: None) -> None:
        """A job as it is now, together with what else it changes."""
        with self._records.together():
            commit(self._records)
            self._records.put(Record(JOB, job.id, job.written()))
            if job.has_ended:
                self._records.delete(INPUT, job.id)

    def prune(self) -> None:
        """Forgets the oldest of those that have ended."""
        ended = (job.id for job in self.newest_first() if job.has_ended)
        old = list(itertools.islice(ended, self._keep, None))
        if old:
            self._records.delete(JOB, *old)

    def get(self, id: str) -> Job | None:
        record = self._records.get(JOB, id)
        return Job.read(record.content) if record else None

    def input(self, id: str) -> bytes:
        record = self._records.get(INPUT, id)
        return (record.data if record else None) or b""

    def newest_first(self, before: str | None = None) -> Iterator[Job]:
        """All jobs that were made before another."""
        while found := self._records.list(JOB, after=before, limit=100, descending=True):
            yield from (Job.read(record.content) for record in found)
            before = found[-1].name
