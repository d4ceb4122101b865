"""Jobs: the queue, a thread for each kind, and what becomes of both when the server goes down and comes back."""

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

from ..telemetry import Metrics
from .board import Board, Run
from .job import Job, State
from .kinds import KINDS, Kind
from .ledger import Ledger
from .performing import Performer, problem_of
from .task import Interrupted

log = logging.getLogger(__name__)
MOST_ATTEMPTS = 3
LATEST = "latest"
RESTARTED = 1 << 32  # added to the number of changes at a restart, as nobody knows how many were not noted


class Jobs:
    """See the package. Safe to call from many threads; answers nothing before `start`.

    Args:
        bench: what the work is done with.
        metrics: counts jobs.
        waiting: how many may wait at once.
        keep: how many ended jobs are kept.
        source_folders: where jobs may read files.
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
        self._most_waiting = waiting
        self._keep = keep
        self._source_folders = source_folders
        self._kinds = kinds
        self._lanes: dict[str, queue.SimpleQueue[Run | None]] = {}
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._board: Board | None = None
        self._hung_up = False

    # ---- life

    def start(self) -> None:
        """Takes up what the last server left; beside a store that is open for reading, jobs can only be looked at."""
        board = Board(Ledger(self._bench.store.records, self._keep), self._metrics)
        self._performer = Performer(board, self._bench, self._kinds, self._source_folders, self._stop)
        with board.lock:
            self._board = board
            if self._bench.store.records.read_only:  # they are another server's
                return
            for job in reversed([job for job in board.ledger.newest_first() if not job.has_ended]):
                self._take_up(board, replace(job, changes=job.changes + RESTARTED))

    def _take_up(self, board: Board, job: Job) -> None:
        refusal = None
        if job.kind not in self._kinds:
            refusal = "This version of the server has no jobs of this kind."
        elif job.attempts >= MOST_ATTEMPTS and not job.cancelling:
            refusal = f"The server ended {job.attempts} times while the job ran, so it is not begun again."
        run = board.enter(replace(job, state="queued", done=0, total=0, started=None))
        if refusal is None:
            self._queue(run)
        else:
            board.end(run, "failed", error=problem_of(500, "interrupted", refusal))
            self._performer.forget(run)

    @property
    def hung_up(self) -> bool:
        """Whether streams of events have to end."""
        return self._hung_up

    def hang_up(self) -> None:
        """Ends the streams of events, which else would keep the server from going down."""
        self._hung_up = True

    def stop(self, timeout: float = 20.0) -> None:
        """Interrupts what runs; it goes on at the next start, as does what waits.

        Args:
            timeout: seconds to wait for it.
        """
        self.hang_up()
        self._stop.set()
        for lane in list(self._lanes.values()):
            lane.put(None)
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                log.warning("%s has not stopped in time; its job goes on at the next start", thread.name)

    # ---- asking

    def submit(self, kind: str, params: Mapping[str, Any], input: bytes | None = None, *, mark: str = "") -> Job:
        """A new job, which is durable when this returns.

        Args:
            params: JSON.
            input: bytes for the work; kept until the job has ended.
            mark: of the request; if a job has it already, that one is meant, and its maker died before it was told.

        Raises:
            Overloaded: as many wait as may.
            NotReady: the server is starting or going down.
        """
        board = self._started()
        with board.lock:
            there = board.ledger.marked(mark)
            if there is not None:
                return board.now(there)
            if board.waiting >= self._most_waiting:
                raise Overloaded(f"{self._most_waiting} jobs wait already: try again when some are done.", 10.0)
            job = Job(board.ledger.new_id(), kind, params, time.time(), mark)
            board.ledger.add(job, input)
            self._queue(board.enter(job))
            return job

    def get(self, id: str) -> Job:
        """How a job is now.

        Args:
            id: or "latest".

        Raises:
            JobNotFound: there is none, or no longer.
        """
        board = self._started()
        if id == LATEST:
            id = board.ledger.latest() or id
        with board.lock:
            run = board.run(id)  # gone from the board it is in the ledger already
        job = run.job if run else board.ledger.get(id)
        if job is None:
            raise JobNotFound(f"There is no job {id!r:.100}: it never was, or ended long ago.")
        return job

    def list(
        self, limit: int, before: str | None = None, *, kind: str | None = None, state: State | None = None
    ) -> tuple[list[Job], str | None]:
        """Jobs without their results, the newest first, and the id to go on from; None at the end."""
        board = self._started()
        found: list[Job] = []
        for stored in board.ledger.newest_first(before):
            job = board.now(stored)
            if kind not in (None, job.kind) or state not in (None, job.state):
                continue
            if len(found) == limit:
                return found, found[-1].id
            found.append(job)
        return found, None

    def cancel(self, id: str) -> Job:
        """Ends a job: one that waits at once, one that runs at its next step; one that has ended stays as it is.

        Raises:
            JobNotFound: there is none, or no longer.
            OpenedForReading: it is another server's.
        """
        board = self._started()
        with board.lock:
            job = self.get(id)
            run = board.run(job.id)
            if job.has_ended:
                return job
            if run is None:
                raise OpenedForReading(KEPT_ELSEWHERE)
            if run.job.state == "queued" and not run.job.begun:
                board.end(run, "cancelled")
            elif not run.job.cancelling:
                board.change(run, note=True, cancelling=True)
                run.cancel.set()
            return run.job

    # ---- inside

    def _started(self) -> Board:
        if self._board is None or self._stop.is_set():
            raise NotReady("The server is starting or going down: try again in a moment.")
        return self._board

    def _queue(self, run: Run) -> None:
        kind = run.job.kind
        if kind in self._kinds:
            self._kinds[kind].renew(run.job.params)
        if kind not in self._lanes:
            self._lanes[kind] = queue.SimpleQueue()
            thread = threading.Thread(target=self._work, args=[self._lanes[kind]], name=f"jobs of {kind}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._lanes[kind].put(run)

    def _work(self, lane: queue.SimpleQueue[Run | None]) -> None:
        while (run := lane.get()) is not None and not self._stop.is_set():
            try:
                self._performer.perform(run)
            except Interrupted:
                return
            except Exception:  # the next job must have its chance
                log.exception("the job %s of kind %s could not be looked after", run.job.id, run.job.kind)
