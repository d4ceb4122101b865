"""One job from its beginning to its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nnclr_hub.errors import DiskFull, NNCLRHubError, StoreError
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import without_paths

from ..problems import status_of
from .board import Board, Run
from .kinds import Kind
from .outcome import Outcome
from .task import Cancelled, Interrupted, Signals, Task
from .telling import tell

log = logging.getLogger(__name__)
T = TypeVar("T")
RETRY_S = 5.0  # a job that cannot be noted, as the disk is full, is noted later


class Performer:
    """Performs jobs, one at a time in each thread that calls it.

    Args:
        board: where they are noted.
        bench: what the work is done with.
        kinds: by name.
        source_folders: where jobs may read files.
        stop: set when the server goes down.
    """

    def __init__(
        self,
        board: Board,
        bench: Workbench,
        kinds: Mapping[str, Kind],
        source_folders: tuple[Path, ...],
        stop: threading.Event,
    ) -> None:
        self._board = board
        self._bench = bench
        self._kinds = kinds
        self._source_folders = source_folders
        self._stop = stop

    def perform(self, run: Run) -> None:
        """Does the work, and notes what came of it.

        Raises:
            Interrupted: the server goes down; the job waits for the next one.
        """
        try:
            if self._patiently(lambda: self._board.begin(run)):
                self._work(run, self._kinds[run.job.kind])
        except Interrupted:
            self._back(run)
            raise
        except Exception as error:
            if self._stop.is_set():  # the store or a model may have been closed under it
                self._back(run)
                raise Interrupted from error
            self._fail(run, error)
        self.forget(run)

    def _work(self, run: Run, kind: Kind) -> None:
        try:
            outcome = kind.run(self._task(run))
        except Cancelled:
            self._clean(run, kind)
            self._patiently(lambda: self._board.end(run, "cancelled"))
        else:
            self._patiently(lambda: self._finish(run, outcome))

    def _task(self, run: Run) -> Task:
        task = Task(
            run.job.params,
            self._board.ledger.input(run.job.id),
            self._bench,
            self._source_folders,
            Signals(run.cancel, self._stop),
            lambda done, total: self._board.change(run, done=done, total=total),
            run.job.notes,
            lambda notes: self._patiently(lambda: self._board.change(run, note=True, notes=notes)),
        )
        task.check()
        return task

    def _finish(self, run: Run, outcome: Outcome) -> None:
        self._board.end(run, "done", outcome.commit, result=outcome.result, done=run.job.total)

    def _fail(self, run: Run, error: Exception) -> None:
        if isinstance(error, NNCLRHubError):
            told = problem_of(status_of(error), error.code, without_paths(str(error)))
        else:
            log.error("the job %s of kind %s failed", run.job.id, run.job.kind, exc_info=error)
            told = problem_of(500, "internal", "The server failed on this job; its log says why.")
        try:
            self._patiently(lambda: self._board.end(run, "failed", error=told))
        except StoreError as refusal:
            log.error("that the job %s failed could not be noted (%s)", run.job.id, refusal)
            self._board.end_unnoted(run, "failed", error=told)

    def _clean(self, run: Run, kind: Kind) -> None:
        """Takes away what a cancelled job had begun."""
        try:
            kind.clean(self._bench, run.job.params)
        except NNCLRHubError as error:
            log.warning("what the job %s had begun could not be taken away (%s)", run.job.id, error)
        except Exception:  # it is cancelled all the same
            log.exception("what the job %s had begun could not be taken away", run.job.id)

    def forget(self, run: Run) -> None:
        """Takes away what waited for a job that has ended."""
        try:
            if run.job.kind in self._kinds:
                self._kinds[run.job.kind].forget(run.job.params)
        except OSError as error:
            log.warning("what waited for the job %s could not be taken away (%s)", run.job.id, error)

    def _back(self, run: Run) -> None:
        """An interrupted job waits again; if that cannot be noted, the next server finds it running, which will do."""
        if run.job.state != "running":  # not begun yet
            return
        attempts = run.job.attempts - 1
        tell(run.job, "is cut short by the server's end, and begun again at its next start")
        try:
            self._board.change(run, note=True, state="queued", attempts=attempts, done=0, total=0, started=None)
        except StoreError as error:
            log.warning("that the job %s was interrupted could not be noted (%s)", run.job.id, error)

    def _patiently(self, step: Callable[[], T]) -> T:
        """Does a step that writes; on a full disk, again and again until there is room.

        Raises:
            Interrupted: the server goes down.
        """
        while True:
            try:
                return step()
            except DiskFull as error:
                log.error("a job cannot be noted (%s)", error)
                if self._stop.wait(RETRY_S):
                    raise Interrupted from error


def problem_of(status: int, code: str, detail: str) -> dict[str, Any]:
    """Why a job failed, as it would be told of a request."""
    return {"status": status, "code": code, "detail": detail}
