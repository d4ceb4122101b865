"""JobRunner: runs one job from start to end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nnclr_hub.errors import DiskFull, NNCLRHubError, StoreError
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.tasks import Cancelled, Interrupted

from ..problems import status_of
from .context import JobContext, Signals
from .job import log_state
from .job_store import ActiveJob, ActiveJobs
from .kinds import Kind

log = logging.getLogger(__name__)
T = TypeVar("T")
RETRY_S = 5.0  # between attempts to write to a full disk


class JobRunner:
    """Run jobs, one at a time in each thread that calls `run`.

    Args:
        active: the jobs that have not ended.
        bench: collections and models for the work.
        kinds: by name.
        source_folders: folders that jobs may read.
        stop: set when the server shuts down.
    """

    def __init__(
        self,
        active: ActiveJobs,
        bench: Workbench,
        kinds: Mapping[str, Kind],
        source_folders: tuple[Path, ...],
        stop: threading.Event,
    ) -> None:
        self._active = active
        self._bench = bench
        self._kinds = kinds
        self._source_folders = source_folders
        self._stop = stop

    def run(self, active: ActiveJob) -> None:
        """Do the work, and record its outcome.

        Raises:
            Interrupted: the server shuts down; the job waits for the next start.
        """
        try:
            if self._wait_for_disk(lambda: self._active.start(active)):
                self._work(active, self._kinds[active.job.kind])
        except Interrupted:
            self._requeue(active)
            raise
        except Exception as error:
            # At shutdown the store or a model may be closed while the work uses it. Such an error is an
            # interruption and not a failure of the job.
            if self._stop.is_set():
                self._requeue(active)
                raise Interrupted from error
            self._fail(active, error)
        self.forget(active)

    def forget(self, active: ActiveJob) -> None:
        """Delete the uploaded files of a job that has ended."""
        try:
            if active.job.kind in self._kinds:
                self._kinds[active.job.kind].forget(active.job.params)
        except OSError as error:
            log.warning("cannot delete the uploaded files of job %s (%s)", active.job.id, error)

    def _work(self, active: ActiveJob, kind: Kind) -> None:
        try:
            outcome = kind.run(self._context(active))
        except Cancelled:
            self._clean(active, kind)
            self._wait_for_disk(lambda: self._active.end(active, "cancelled"))
        else:
            changes = {"result": outcome.result, "done": active.job.total}
            self._wait_for_disk(lambda: self._active.end(active, "done", outcome.commit, **changes))

    def _context(self, active: ActiveJob) -> JobContext:
        context = JobContext(
            active.job.params,
            self._active.records.input(active.job.id),
            self._bench,
            self._source_folders,
            Signals(active.cancel, self._stop),
            lambda done, total: self._active.change(active, done=done, total=total),
            active.job.notes,
            lambda notes: self._wait_for_disk(lambda: self._active.change(active, write=True, notes=notes)),
        )
        context.check()
        return context

    def _fail(self, active: ActiveJob, error: Exception) -> None:
        if isinstance(error, NNCLRHubError):
            problem = problem_of(status_of(error), error.code, without_paths(str(error)))
        else:
            log.error("job %s of kind %s failed", active.job.id, active.job.kind, exc_info=error)
            problem = problem_of(500, "internal", "The server failed on this job; see its log.")
        try:
            self._wait_for_disk(lambda: self._active.end(active, "failed", error=problem))
        except StoreError as refusal:
            log.error("cannot save that job %s failed (%s)", active.job.id, refusal)
            self._active.end_in_memory(active, "failed", error=problem)

    def _clean(self, active: ActiveJob, kind: Kind) -> None:
        """Remove the partial results of a cancelled job. It counts as cancelled even if that fails."""
        try:
            kind.clean(self._bench, active.job.params)
        except NNCLRHubError as error:
            log.warning("cannot remove the partial results of job %s (%s)", active.job.id, error)
        except Exception:
            log.exception("cannot remove the partial results of job %s", active.job.id)

    def _requeue(self, active: ActiveJob) -> None:
        """Queue an interrupted job again, and do not count the attempt.

        If that cannot be written, the next server finds the job running and restarts it as after a crash.
        """
        if active.job.state != "running":
            return
        attempts = active.job.attempts - 1
        log_state(active.job, "interrupted by shutdown; it runs again at the next start")
        try:
            self._active.change(active, write=True, state="queued", attempts=attempts, done=0, total=0, started=None)
        except StoreError as error:
            log.warning("cannot save that job %s was interrupted (%s)", active.job.id, error)

    def _wait_for_disk(self, step: Callable[[], T]) -> T:
        """Do a step that writes. On a full disk, retry until there is space: finished work must not be lost.

        Raises:
            Interrupted: the server shuts down.
        """
        while True:
            try:
                return step()
            except DiskFull as error:
                log.error("cannot save a job, retrying in %g s (%s)", RETRY_S, error)
                if self._stop.wait(RETRY_S):
                    raise Interrupted from error


def problem_of(status: int, code: str, detail: str) -> dict[str, Any]:
    """Return the reason of a failed job, in the form of a REST error."""
    return {"status": status, "code": code, "detail": detail}
