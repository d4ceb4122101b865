"""Jobs: submit, list and cancel background jobs, and run them in one thread for each kind."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnclr_hub.errors import JobNotFound, NotReady, OpenedForReading, Overloaded
from nnclr_hub.store.records import KEPT_ELSEWHERE
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.tasks import Interrupted

from ..telemetry import Metrics
from .job import JobStatus, State
from .job_store import ActiveJob, ActiveJobs, JobRecords
from .kinds import KINDS, Kind
from .runner import JobRunner, problem_of

log = logging.getLogger(__name__)
MAX_ATTEMPTS = 3  # a job that ends the server each time must not do so for ever
LATEST = "latest"
# Added to a job's number of changes at a restart. Progress is not written, so the stored number may be lower than
# what a client has seen, and it must still increase.
RESTARTED = 1 << 32


class Jobs:
    """The jobs of a server. Safe to call from many threads; raises NotReady before `start`.

    Args:
        bench: collections and models for the work.
        metrics: counts jobs.
        waiting: number of jobs that may wait.
        keep: number of ended jobs to keep.
        source_folders: folders that jobs may read.
        kinds: by name.
    """

    def __init__(
        self,
        bench: Workbench,
        metrics: Metrics,
        *,
        waiting: int,
        keep: int,
        source_folders: tuple[Path, ...] = (),
        kinds: Mapping[str, Kind] = KINDS,
    ) -> None:
        self._bench = bench
        self._metrics = metrics
        self._max_waiting = waiting
        self._keep = keep
        self._source_folders = source_folders
        self._kinds = kinds
        self._queues: dict[str, queue.SimpleQueue[ActiveJob | None]] = {}  # by kind
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._active: ActiveJobs | None = None
        self.streams_closed = False  # event streams end when it is set

    # ---- lifecycle

    def start(self) -> None:
        """Queue the jobs that the last server left. On a read-only store, jobs can only be listed."""
        active = ActiveJobs(JobRecords(self._bench.store.records, self._keep), self._metrics)
        self._runner = JobRunner(active, self._bench, self._kinds, self._source_folders, self._stop)
        with active.lock:
            self._active = active
            if self._bench.store.records.read_only:  # the jobs belong to another server
                return
            for job in reversed([job for job in active.records.newest_first() if not job.has_ended]):
                self._resume(active, replace(job, changes=job.changes + RESTARTED))

    def _resume(self, active: ActiveJobs, job: JobStatus) -> None:
        refusal = None
        if job.kind not in self._kinds:
            refusal = "This version of the server has no jobs of this kind."
        elif job.attempts >= MAX_ATTEMPTS and not job.cancelling:
            # attempts counts crashes: an orderly shutdown takes the attempt back
            refusal = f"The server crashed {job.attempts} times while this job ran, so it is not restarted."
        resumed = active.add(replace(job, state="queued", done=0, total=0, started=None))
        if refusal is None:
            self._enqueue(resumed)
        else:
            active.end(resumed, "failed", error=problem_of(500, "interrupted", refusal))
            self._runner.forget(resumed)

    def close_streams(self) -> None:
        """End the event streams, which would otherwise keep the server from shutting down."""
        self.streams_closed = True

    def stop(self, timeout: float = 20.0) -> None:
        """Interrupt running jobs; they run again at the next start, as do those that wait.

        Args:
            timeout: seconds to wait for them.
        """
        self.close_streams()
        self._stop.set()
        for waiting in list(self._queues.values()):
            waiting.put(None)
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                log.warning("%s did not stop in time; its job runs again at the next start", thread.name)

    # ---- calls of clients

    def submit(self, kind: str, params: Mapping[str, Any], input: bytes | None = None, *, mark: str = "") -> JobStatus:
        """Create a job, which is durable when this returns.

        Args:
            params: JSON.
            input: bytes for the work; kept until the job ends.
            mark: identifies the request. A job with this mark that has not ended is returned.

        Raises:
            Overloaded: too many jobs wait.
            NotReady: the server is starting or shutting down.
        """
        active = self._started()
        with active.lock:
            existing = active.records.find_mark(mark)
            if existing is not None and not existing.has_ended:
                return active.current(existing)
            if active.waiting >= self._max_waiting:
                raise Overloaded(f"{self._max_waiting} jobs are waiting already; try again when some are done.", 10.0)
            job = JobStatus(active.records.new_id(), kind, params, time.time(), mark)
            active.records.add(job, input)
            self._enqueue(active.add(job))
            return job

    def submitted(self, mark: str) -> JobStatus | None:
        """Return the present state of the job that a request submitted, or None; see `submit`."""
        active = self._started()
        with active.lock:
            found = active.records.find_mark(mark)
            return None if found is None else active.current(found)

    def get(self, id: str) -> JobStatus:
        """Return the present state of a job.

        Args:
            id: or "latest".

        Raises:
            JobNotFound: the job does not exist, or no longer.
        """
        active = self._started()
        if id == LATEST:
            id = active.records.latest() or id
        with active.lock:
            found = active.get(id)  # a job that is no longer active is on disk
            job = found.job if found else None  # with the lock: an end that can be seen is also logged and counted
        job = job or active.records.get(id)
        if job is None:
            raise JobNotFound(f"Job {id!r:.100} does not exist; jobs are deleted some time after they end.")
        return job

    def list(
        self, limit: int, before: str | None = None, *, kind: str | None = None, state: State | None = None
    ) -> tuple[list[JobStatus], str | None]:
        """Return jobs without their results, newest first, and the id to continue from; None at the end."""
        active = self._started()
        found: list[JobStatus] = []
        for stored in active.records.newest_first(before):
            job = active.current(stored)
            if kind not in (None, job.kind) or state not in (None, job.state):
                continue
            if len(found) == limit:
                return found, found[-1].id
            found.append(job)
        return found, None

    def cancel(self, id: str) -> JobStatus:
        """Cancel a job: at once if it waits, at its next step if it runs. A job that has ended does not change.

        Raises:
            JobNotFound: the job does not exist, or no longer.
            OpenedForReading: the job belongs to another server.
        """
        active = self._started()
        with active.lock:
            job = self.get(id)
            found = active.get(job.id)
            if job.has_ended:
                return job
            if found is None:
                raise OpenedForReading(KEPT_ELSEWHERE)
            if found.job.state == "queued" and not found.job.begun:
                active.end(found, "cancelled")
            elif not found.job.cancelling:
                # also for a resumed job that waits: only its work knows which partial results to remove
                active.change(found, write=True, cancelling=True)
                found.cancel.set()
            return found.job

    # ---- threads

    def _started(self) -> ActiveJobs:
        if self._active is None or self._stop.is_set():
            raise NotReady("The server is starting or shutting down; try again in a moment.")
        return self._active

    def _enqueue(self, active: ActiveJob) -> None:
        kind = active.job.kind
        if kind in self._kinds:
            self._kinds[kind].renew(active.job.params)
        if kind not in self._queues:
            self._queues[kind] = queue.SimpleQueue()
            name = f"{kind} jobs"
            thread = threading.Thread(target=self._work, args=[self._queues[kind]], name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queues[kind].put(active)

    def _work(self, waiting: queue.SimpleQueue[ActiveJob | None]) -> None:
        while (active := waiting.get()) is not None and not self._stop.is_set():
            try:
                self._runner.run(active)
            except Interrupted:
                return
            except Exception:  # the thread must stay alive for the next job
                log.exception("job %s of kind %s could not be recorded", active.job.id, active.job.kind)
