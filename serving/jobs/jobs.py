"""Jobs: submit, list and cancel background jobs, and run their tasks in one thread for each kind."""

from __future__ import annotations

import copy
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from nnclr_hub.errors import DiskFull, JobNotFound, NNCLRHubError, NotReady, OpenedForReading, Overloaded, StoreError
from nnclr_hub.store.records import KEPT_ELSEWHERE, Records
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.staging import folder_of, renew, staged, unstage
from nnclr_hub.workbench.tasks import Cancelled, Interrupted, Task, TaskContext, all_tasks

from ..problems import status_of
from ..telemetry import Metrics
from .background import RetryingModels
from .job import JobStatus, State, log_state
from .records import JobRecords

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_ATTEMPTS = 3  # a job that ends the server each time must not do so for ever
LATEST = "latest"
UPLOAD = "upload"  # hidden parameter: the ticket of uploaded files that wait for the job
RETRY_S = 5.0  # between attempts to write to a full disk
CHECK_S = 0.05
# Added to a job's number of changes at a restart. Progress is not written, so the stored number may be lower than
# what a client has seen, and it must still increase.
RESTARTED = 1 << 32


@dataclass
class ActiveJob:
    """A job that has not ended; `job` is its present state."""

    job: JobStatus
    cancel: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """The jobs of a server. Safe to call from many threads; raises NotReady before `start`.

    Progress changes only the state in memory. Everything else is written first, so that the state in memory never
    promises what a crash would lose.

    Args:
        bench: collections and models for the tasks.
        metrics: counts jobs.
        waiting: number of jobs that may wait.
        keep: number of ended jobs to keep.
        tasks: by kind; None: those of the registry.
    """

    def __init__(
        self,
        bench: Workbench,
        metrics: Metrics,
        *,
        waiting: int,
        keep: int,
        tasks: Mapping[str, Task] | None = None,
    ) -> None:
        self._bench = bench
        self._metrics = metrics
        self._max_waiting = waiting
        self._keep = keep
        self.tasks = own_tasks() if tasks is None else tasks
        self._queues: dict[str, queue.SimpleQueue[ActiveJob | None]] = {}  # by kind
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._lock = threading.RLock()  # held for every change of a job
        self._active: dict[str, ActiveJob] = {}
        self._records: JobRecords | None = None
        self.streams_closed = False  # event streams end when it is set

    # ---- lifecycle

    def start(self) -> None:
        """Queue the jobs that the last server left. On a read-only store, jobs can only be listed."""
        records = JobRecords(self._bench.store.records, self._keep)
        with self._lock:
            self._records = records
            if self._bench.store.records.read_only:  # the jobs belong to another server
                return
            for job in reversed([job for job in records.newest_first() if not job.has_ended]):
                self._resume(replace(job, changes=job.changes + RESTARTED))

    def _resume(self, job: JobStatus) -> None:
        refusal = None
        if job.kind not in self.tasks:
            refusal = "This version of the server has no jobs of this kind."
        elif job.attempts >= MAX_ATTEMPTS and not job.cancelling:
            # attempts counts crashes: an orderly shutdown takes the attempt back
            refusal = f"The server crashed {job.attempts} times while this job ran, so it is not restarted."
        active = self._add(replace(job, state="queued", done=0, total=0, started=None))
        if refusal is None:
            self._enqueue(active)
        else:
            self._end(active, "failed", error=problem_of(500, "interrupted", refusal))

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

    def submit(
        self, kind: str, params: Mapping[str, Any], hidden: Mapping[str, Any] | None = None, *, mark: str = ""
    ) -> JobStatus:
        """Create a job, which is durable when this returns.

        Args:
            params: fields of the task's request, which clients see.
            hidden: further fields, such as paths of this machine, or large ones. They are kept until the job ends.
            mark: identifies the request. A job with this mark that has not ended is returned.

        Raises:
            Overloaded: too many jobs wait.
            NotReady: the server is starting or shutting down.
        """
        records = self._started()
        with self._lock:
            existing = records.find_mark(mark)
            if existing is not None and not existing.has_ended:
                return self._current(existing)
            if sum(active.job.state == "queued" for active in self._active.values()) >= self._max_waiting:
                raise Overloaded(f"{self._max_waiting} jobs are waiting already; try again when some are done.", 10.0)
            job = JobStatus(records.new_id(), kind, params, time.time(), mark)
            records.add(job, hidden or {})
            self._enqueue(self._add(job))
            return job

    def submitted(self, mark: str) -> JobStatus | None:
        """Return the present state of the job that a request submitted, or None; see `submit`."""
        records = self._started()
        with self._lock:
            found = records.find_mark(mark)
            return None if found is None else self._current(found)

    def get(self, id: str) -> JobStatus:
        """Return the present state of a job.

        Args:
            id: or "latest".

        Raises:
            JobNotFound: the job does not exist, or no longer.
        """
        records = self._started()
        if id == LATEST:
            id = records.latest() or id
        with self._lock:  # an end that can be seen is also logged and counted
            active = self._active.get(id)
            job = active.job if active else None
        job = job or records.get(id)
        if job is None:
            raise JobNotFound(f"Job {id!r:.100} does not exist; jobs are deleted some time after they end.")
        return job

    def list(
        self, limit: int, before: str | None = None, *, kind: str | None = None, state: State | None = None
    ) -> tuple[list[JobStatus], str | None]:
        """Return jobs without their results, newest first, and the id to continue from; None at the end."""
        found: list[JobStatus] = []
        for stored in self._started().newest_first(before):
            job = self._current(stored)
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
        self._started()
        with self._lock:
            job = self.get(id)
            active = self._active.get(job.id)
            if job.has_ended:
                return job
            if active is None:
                raise OpenedForReading(KEPT_ELSEWHERE)
            if active.job.state == "queued" and not active.job.begun:
                self._end(active, "cancelled")
            elif not active.job.cancelling:
                # also for a resumed job that waits: only its task knows which partial results to remove
                self._change(active, write=True, cancelling=True)
                active.cancel.set()
            return active.job

    # ---- the state of a job

    def _started(self) -> JobRecords:
        if self._records is None or self._stop.is_set():
            raise NotReady("The server is starting or shutting down; try again in a moment.")
        return self._records

    @property
    def _disk(self) -> JobRecords:
        assert self._records is not None
        return self._records

    def _current(self, job: JobStatus) -> JobStatus:
        """Return the present state of a job that was read from disk."""
        active = self._active.get(job.id)
        return active.job if active else job

    def _add(self, job: JobStatus) -> ActiveJob:
        """Add a job that is already on disk."""
        active = self._active[job.id] = ActiveJob(job)
        if job.cancelling:
            active.cancel.set()
        self._metrics.jobs_active.inc()
        return active

    def _change(self, active: ActiveJob, *, write: bool = False, **changes: Any) -> None:
        """Change fields of a job, on disk too if `write`; after a StoreError, nothing has changed."""
        with self._lock:
            job = replace(active.job, changes=active.job.changes + 1, **changes)
            if write:
                self._disk.update(job)
            active.job = job

    def _end(self, active: ActiveJob, state: State, *writes: Callable[[Records], None], **changes: Any) -> None:
        """End a job, and write what it made in the same transaction; after a StoreError, nothing has changed."""
        with self._lock:
            hidden = self._disk.hidden(active.job.id)
            job = _ended(active.job, state, **changes)
            self._disk.update(job, *writes)
            active.job = job
            if self._active.pop(job.id, None) is not None:
                self._metrics.jobs_active.dec()
            self._metrics.jobs.labels(job.kind, job.state).inc()
            log_state(job, state)
            try:
                self._disk.prune()
            except StoreError as error:  # the job has ended all the same; the next end prunes more
                log.warning("cannot delete old jobs (%s)", error)
        unstage(hidden.get(UPLOAD, ""))

    # ---- threads

    def _enqueue(self, active: ActiveJob) -> None:
        kind = active.job.kind
        renew(self._disk.hidden(active.job.id).get(UPLOAD, ""))  # the uploaded files must not expire while it waits
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
                self._run(active)
            except Interrupted:
                return
            except Exception:  # the thread must stay alive for the next job
                log.exception("job %s of kind %s could not be recorded", active.job.id, active.job.kind)

    def _run(self, active: ActiveJob) -> None:
        """Run a job from start to end; Interrupted is raised if it waits for the next start instead."""
        try:
            if self._wait_for_disk(lambda: self._begin(active)):
                self._run_task(active)
        except Interrupted:
            self._requeue(active)
            raise
        except Exception as error:
            # At shutdown the store or a model may be closed while the task uses it. Such an error is an
            # interruption and not a failure of the job.
            if self._stop.is_set():
                self._requeue(active)
                raise Interrupted from error
            self._fail(active, error)

    def _begin(self, active: ActiveJob) -> bool:
        """Record that a job runs; return False if it was cancelled while it waited."""
        with self._lock:
            if active.job.has_ended:
                return False
            attempts = active.job.attempts + 1
            self._change(active, write=True, state="running", begun=True, started=time.time(), attempts=attempts)
            log_state(active.job, "started")
            return True

    def _run_task(self, active: ActiveJob) -> None:
        task, values = self.tasks[active.job.kind], {**active.job.params, **self._disk.hidden(active.job.id)}
        ticket = values.pop(UPLOAD, None)

        def check() -> None:
            if self._stop.is_set():
                raise Interrupted
            if active.cancel.is_set():
                raise Cancelled

        def wait(seconds: float) -> None:
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                check()
                active.cancel.wait(min(left, CHECK_S))
            check()

        context = TaskContext(
            lambda done, total: self._change(active, done=done, total=total),
            check,
            folder=None if ticket is None else folder_of(ticket),
            state=active.job.notes,
            save=lambda state: self._wait_for_disk(lambda: self._change(active, write=True, notes=state)),
        )
        bench = copy.copy(self._bench)  # shares the store and the locks
        bench.models = RetryingModels(bench.models, wait)
        if ticket is not None:
            values["path"] = str(staged(ticket).path)
        try:
            result = task.run(bench, task.request.from_json(values), context)
        except Cancelled:
            self._wait_for_disk(lambda: self._end(active, "cancelled"))
        else:
            changes = {"result": result, "done": active.job.total}
            self._wait_for_disk(lambda: self._end(active, "done", *context.writes, **changes))

    def _fail(self, active: ActiveJob, error: Exception) -> None:
        if isinstance(error, NNCLRHubError):
            problem = problem_of(status_of(error), error.code, without_paths(str(error)))
        else:
            log.error("job %s of kind %s failed", active.job.id, active.job.kind, exc_info=error)
            problem = problem_of(500, "internal", "The server failed on this job; see its log.")
        try:
            self._wait_for_disk(lambda: self._end(active, "failed", error=problem))
        except StoreError as refusal:  # the next server finds its last written state
            log.error("cannot save that job %s failed (%s)", active.job.id, refusal)
            active.job = _ended(active.job, "failed", error=problem)
            log_state(active.job, "failed, but this could not be saved")

    def _requeue(self, active: ActiveJob) -> None:
        """Queue an interrupted job again, and do not count the attempt.

        If that cannot be written, the next server finds the job running and restarts it as after a crash.
        """
        if active.job.state != "running":
            return
        attempts = active.job.attempts - 1
        log_state(active.job, "interrupted by shutdown; it runs again at the next start")
        try:
            self._change(active, write=True, state="queued", attempts=attempts, done=0, total=0, started=None)
        except StoreError as error:
            log.warning("cannot save that job %s was interrupted (%s)", active.job.id, error)

    def _wait_for_disk(self, step: Callable[[], T]) -> T:
        """Do a step that writes. On a full disk, retry until there is space: finished work must not be lost."""
        while True:
            try:
                return step()
            except DiskFull as error:
                log.error("cannot save a job, retrying in %g s (%s)", RETRY_S, error)
                if self._stop.wait(RETRY_S):
                    raise Interrupted from error


def own_tasks() -> dict[str, Task]:
    """Return the tasks of the registry; imports of images are another kind, so that those of vectors do not wait."""
    tasks = all_tasks()
    return {**tasks, "add": tasks["import"]}


def _ended(job: JobStatus, state: State, **changes: Any) -> JobStatus:
    return replace(job, state=state, ended=time.time(), cancelling=False, changes=job.changes + 1, **changes)


def problem_of(status: int, code: str, detail: str) -> dict[str, Any]:
    """Return the reason of a failed job, in the form of a REST error."""
    return {"status": status, "code": code, "detail": detail}
