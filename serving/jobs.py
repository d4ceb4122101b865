"""Jobs: work that takes longer than a request. They are queued, run in the background, and survive a restart.

    jobs = Jobs(bench, metrics, waiting=100, keep=1000)
    jobs.start()                                    # resumes those that the last server left
    job = jobs.submit("verify", {"collection": "photos"})
    jobs.get(job.id).state

The kinds of jobs are the tasks of `workbench.tasks`, and each kind has one queue and one thread. A job is on disk
before the client gets its id. Its result is written in the same transaction as its final state, so a crash leaves both
or neither. A job that a crash interrupted runs again at the next start. The log has its start and its end:

2026-10-01T12:00:00.123Z info    add job started job=00063f5c1c8a2b
2026-10-01T12:00:41.456Z warning add job failed job=00063f5c1c8a2b s=41.333 done=640 code=disk_full
"""

from __future__ import annotations

import asyncio
import bisect
import json
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from anyio.to_thread import run_sync

from nnclr_hub.errors import (
    DiskFull,
    JobNotFound,
    NNCLRHubError,
    NotReady,
    OpenedForReading,
    Overloaded,
    StoreError,
)
from nnclr_hub.store.records import KEPT_ELSEWHERE, Record, Records
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.staging import folder_of, renew, staged, unstage
from nnclr_hub.workbench.tasks import Cancelled, Interrupted, Task, TaskContext, all_tasks

from .answers import bounded
from .engine import patience
from .problems import status_of
from .telemetry import Metrics

log = logging.getLogger("nnclr_hub.jobs")
T = TypeVar("T")
State = Literal["queued", "running", "done", "failed", "cancelled"]
JOB, HIDDEN, MARK = "job", "job_input", "job_mark"  # kinds of records
PAGE = 100  # records
LATEST = "latest"
UPLOAD = "upload"  # hidden parameter: the ticket of uploaded files that wait for the job
MAX_ATTEMPTS = 3  # a job that ends the server each time must not do so for ever
RETRY_S = 5.0  # between attempts to write to a full disk
CHECK_S = 0.05
# Added to a job's number of changes at a restart. Progress is not written, so the stored number may be lower than
# what a client has seen, and it must still increase.
RESTARTED = 1 << 32


@dataclass(frozen=True)
class JobStatus:
    """A job at one moment.

    id: ids of later jobs are greater.
    kind: name of the task; params: its parameters, as JSON.
    mark: identifies the request that submitted it, so that a repeated request finds the same job; "" if unknown.
    done, total: progress, in units of the kind; total is 0 until it is known. phase: what is done now; "" if unknown.
    created, started, ended: seconds since 1970; None until then.
    attempts: how often it was started, without those that a shutdown interrupted in an orderly way.
    begun: whether it ever ran.
    notes: what the work saved for the next attempt, as JSON.
    cancelling: whether its cancellation was requested and has not happened yet.
    data: the result of a job that is done, as JSON; None in lists.
    truncated: what is missing in a result that was too long.
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
    phase: str = ""
    started: float | None = None
    ended: float | None = None
    attempts: int = 0
    begun: bool = False
    notes: Mapping[str, Any] = field(default_factory=dict)
    cancelling: bool = False
    data: bytes | None = None
    truncated: str = ""
    error: Mapping[str, Any] | None = None
    changes: int = 0

    @property
    def has_ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def result(self) -> dict[str, Any] | None:
        """The result of a job that is done."""
        return None if self.data is None else json.loads(self.data)

    @property
    def rate(self) -> float | None:
        """Units per second since the start; None if unknown."""
        seconds = (self.ended or time.time()) - (self.started or 0.0)
        return self.done / seconds if self.started is not None and self.done and seconds > 0 else None

    @property
    def eta_s(self) -> float | None:
        """Seconds that a running job still needs at its present rate; None if unknown."""
        if self.state != "running" or not self.rate or not self.total:
            return None
        return max(0.0, (self.total - self.done) / self.rate)

    def ended_as(self, state: State, **changes: Any) -> JobStatus:
        """Return the job after its end."""
        over: dict[str, Any] = {"phase": "", "cancelling": False, "changes": self.changes + 1}
        return replace(self, state=state, ended=time.time(), **over, **changes)

    def log(self, what: str) -> None:
        """Log a change. The log has no names of collections or files, so it has only the code of an error."""
        seconds = round(self.ended - self.started, 3) if self.ended and self.started else None
        fields = {"job": self.id, "kind": self.kind, "s": seconds, "done": self.done or None}
        fields |= {"attempt": self.attempts if self.attempts > 1 else None}
        fields |= {"code": self.error["code"] if self.error else None}
        known = {name: value for name, value in fields.items() if value is not None}
        level = logging.WARNING if self.state == "failed" else logging.INFO
        log.log(level, "%s job %s", self.kind, what, extra={"fields": known})


# ---- jobs on disk


class JobRecords:
    """Jobs on disk, with the hidden parameters of those that have not ended.

    Args:
        records: records of the store.
        keep: number of ended jobs to keep.
    """

    def __init__(self, records: Records, keep: int) -> None:
        self._records, self._keep = records, keep
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
                marks = [(mark, id, self._records.get(MARK, mark)) for _, id, mark in old if mark]
                # a newer job of the same request may have the mark now
                self._records.delete(MARK, *(mark for mark, id, now in marks if now and now.content["job"] == id))
            del self._ended[: len(old)]

    def get(self, id: str) -> JobStatus | None:
        record = self._records.get(JOB, id)
        return _job(record) if record else None

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
            yield from map(_job, found)
            before = found[-1].name


def _end_of(job: JobStatus) -> tuple[float, str, str]:
    return job.ended or 0.0, job.id, job.mark


def _record(job: JobStatus) -> Record:
    """Return the record of a job, with its result apart: it may be large, and lists do not need it."""
    return Record(
        JOB, job.id, {name: value for name, value in vars(job).items() if name not in ("data", "phase")}, job.data
    )


def _job(record: Record) -> JobStatus:
    return JobStatus(**record.content, data=record.data)


# ---- jobs at work


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
        most: bytes of a result; more is left out.
        tasks: by kind; None: those of the registry.
    """

    def __init__(
        self,
        bench: Workbench,
        metrics: Metrics,
        *,
        waiting: int,
        keep: int,
        most: int = 64_000_000,
        tasks: Mapping[str, Task] | None = None,
    ) -> None:
        self._bench, self._metrics = bench, metrics
        self._max_waiting, self._keep, self._most = waiting, keep, most
        self.tasks = own_tasks() if tasks is None else tasks
        self._queues: dict[str, queue.SimpleQueue[ActiveJob | None]] = {}  # by kind
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._lock = threading.RLock()  # held for every change of a job
        self._active: dict[str, ActiveJob] = {}
        self._records: JobRecords | None = None
        self._streams_closed = False

    def start(self) -> None:
        """Queue the jobs that the last server left. On a read-only store, jobs can only be listed."""
        records = JobRecords(self._bench.store.records, self._keep)
        with self._lock:
            self._records = records
            if self._bench.store.records.read_only:  # the jobs belong to another server
                return
            for job in reversed([job for job in records.newest_first() if not job.has_ended]):
                try:
                    self._resume(replace(job, changes=job.changes + RESTARTED))
                except StoreError:  # such as a full disk; the job is resumed by the next start
                    log.exception("job %s cannot be resumed", job.id)

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
            self._end(active, "failed", error={"status": 500, "code": "interrupted", "detail": refusal})

    def close_streams(self) -> None:
        """End the event streams, which would otherwise keep the server from shutting down."""
        self._streams_closed = True

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
            existing = self.submitted(mark)
            if existing is not None and not existing.has_ended:
                return existing
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

    async def follow(self, job: JobStatus, last: str | None, pause_s: float) -> AsyncIterator[JobStatus | None]:
        """Yield each new state of a job until it ends or the server shuts down, and None after each pause.

        Args:
            job: its present state.
            last: number of the last change that is known.
        """
        while True:
            if str(job.changes) != last:
                last = str(job.changes)
                yield job
            if job.has_ended or self._streams_closed:
                return
            await asyncio.sleep(pause_s)
            yield None
            job = await run_sync(self.get, job.id)

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
            job = active.job.ended_as(state, **changes)
            self._disk.update(job, *writes)
            active.job = job
            if self._active.pop(job.id, None) is not None:
                self._metrics.jobs_active.dec()
            self._metrics.jobs.labels(job.kind, job.state).inc()
            job.log(state)
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
            active.job.log("started")
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
            lambda done, total: self._change(active, done=done, total=total, phase=context.phase),
            check,
            folder=None if ticket is None else folder_of(ticket),
            state=active.job.notes,
            save=lambda state: self._wait_for_disk(lambda: self._change(active, write=True, notes=state)),
        )
        patience.set(wait)
        if ticket is not None:
            values["path"] = str(staged(ticket).path)
        try:
            result = task.run(self._bench, task.request.from_json(values), context)
        except Cancelled:
            self._wait_for_disk(lambda: self._end(active, "cancelled"))
        else:
            data, truncated = bounded(result, self._most)
            changes = {"data": data, "truncated": truncated, "done": active.job.total}
            self._wait_for_disk(lambda: self._end(active, "done", *context.writes, **changes))

    def _fail(self, active: ActiveJob, error: Exception) -> None:
        if isinstance(error, NNCLRHubError):
            problem = {"status": status_of(error), "code": error.code, "detail": without_paths(str(error))}
        else:
            log.error("job %s of kind %s failed", active.job.id, active.job.kind, exc_info=error)
            problem = {"status": 500, "code": "internal", "detail": "The server failed on this job; see its log."}
        try:
            self._wait_for_disk(lambda: self._end(active, "failed", error=problem))
        except StoreError as refusal:  # the next server finds its last written state
            log.error("cannot save that job %s failed (%s)", active.job.id, refusal)
            active.job = active.job.ended_as("failed", error=problem)
            active.job.log("failed, but this could not be saved")

    def _requeue(self, active: ActiveJob) -> None:
        """Queue an interrupted job again, and do not count the attempt.

        If that cannot be written, the next server finds the job running and restarts it as after a crash.
        """
        if active.job.state != "running":
            return
        attempts = active.job.attempts - 1
        active.job.log("interrupted by shutdown; it runs again at the next start")
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
