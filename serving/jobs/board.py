"""The board: jobs that have not ended, as they are now, and the ledger behind them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from nnclr_hub.errors import StoreError
from nnclr_hub.store.records import Records

from ..telemetry import Metrics
from .job import Job, State
from .ledger import Ledger
from .telling import tell

log = logging.getLogger(__name__)


@dataclass
class Run:
    """A job that has not ended; `job` is how it is now."""

    job: Job
    cancel: threading.Event = field(default_factory=threading.Event)


class Board:
    """Every change of a job goes through here, one at a time.

    Args:
        ledger: keeps them.
        metrics: counts them.
    """

    def __init__(self, ledger: Ledger, metrics: Metrics) -> None:
        self.ledger = ledger
        self.lock = threading.RLock()
        self._metrics = metrics
        self._active: dict[str, Run] = {}

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        with self.lock:
            return sum(run.job.state == "queued" for run in self._active.values())

    def run(self, id: str) -> Run | None:
        """The job if it has not ended."""
        return self._active.get(id)

    def now(self, job: Job) -> Job:
        """A job of the ledger as it is now."""
        run = self._active.get(job.id)
        return run.job if run else job

    def enter(self, job: Job) -> Run:
        """Puts up a job that is in the ledger."""
        run = Run(job)
        if job.cancelling:
            run.cancel.set()
        with self.lock:
            self._active[job.id] = run
        self._metrics.jobs_active.inc()
        return run

    def begin(self, run: Run) -> bool:
        """Notes that a job runs; False if it was cancelled while it waited.

        Raises:
            StoreError: it cannot be noted, and nothing is changed.
        """
        with self.lock:
            if run.job.has_ended:
                return False
            attempts = run.job.attempts + 1
            self.change(run, note=True, state="running", begun=True, started=time.time(), attempts=attempts)
            tell(run.job, "begins")
            return True

    def change(self, run: Run, *, note: bool = False, **changes: Any) -> None:
        """Changes fields of a job; progress alone is not worth a note.

        Raises:
            StoreError: it cannot be noted, and nothing is changed.
        """
        with self.lock:
            job = replace(run.job, changes=run.job.changes + 1, **changes)
            if note:
                self.ledger.note(job)
            run.job = job

    def end(self, run: Run, state: State, commit: Callable[[Records], None] | None = None, **changes: Any) -> None:
        """Ends a job, with what it made.

        Raises:
            StoreError: it cannot be noted, and nothing is changed.
        """
        with self.lock:
            job = _ended(run.job, state, **changes)
            self.ledger.note(job, *([commit] if commit else []))
            self._take_down(run, job)
            tell(job, state)
            try:
                self.ledger.prune()
            except StoreError as error:  # what has ended stays so, and the next end forgets more
                log.warning("old jobs could not be forgotten (%s)", error)

    def end_unnoted(self, run: Run, state: State, **changes: Any) -> None:
        """Ends a job as far as this server goes; the next one finds it as it was noted last."""
        with self.lock:
            run.job = _ended(run.job, state, **changes)
            tell(run.job, f"{state}, which could not be noted")

    def _take_down(self, run: Run, job: Job) -> None:
        run.job = job
        if self._active.pop(job.id, None) is not None:
            self._metrics.jobs_active.dec()
        self._metrics.jobs.labels(job.kind, job.state).inc()


def _ended(job: Job, state: State, **changes: Any) -> Job:
    """The job at its end, whoever wanted it to come to one before."""
    return replace(job, state=state, ended=time.time(), cancelling=False, changes=job.changes + 1, **changes)
