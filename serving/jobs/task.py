"""Task: what the work of a job sees of it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nnclr_hub.workbench import Workbench

from .patience import PatientModels

TURN_S = 0.05
NOTHING: Mapping[str, Any] = MappingProxyType({})
# parameters of jobs
UPLOAD = "upload"  # the ticket of files that wait for it
ROOT = "root"  # the source folder that it reads, by its path: numbers change when a server starts with other folders


# no errors of the work, and what catches those must not catch these
class Cancelled(BaseException):
    """Somebody wants the job to end."""


class Interrupted(BaseException):
    """The server is going down; the job goes on at the next start."""


@dataclass(frozen=True)
class Signals:
    """What a job is told while it runs."""

    cancel: threading.Event
    stop: threading.Event


class Task:
    """A job at work.

    Args:
        params: of the job.
        input: bytes that came with it.
        bench: collections and models; embedding waits where the server is busy.
        source_folders: where the work may read files.
        signals: whether to end.
        report: takes (done, total).
        notes: what an attempt before this one kept.
        keep: makes such notes durable.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        input: bytes,
        bench: Workbench,
        source_folders: tuple[Path, ...],
        signals: Signals,
        report: Callable[[int, int], None],
        notes: Mapping[str, Any] = NOTHING,
        keep: Callable[[Mapping[str, Any]], None] = lambda notes: None,
    ) -> None:
        self.params = params
        self.input = input
        self.source_folders = source_folders
        self.bench = copy.copy(bench)  # the same store, gate and locks
        self.bench.models = PatientModels(bench.models, self.wait)
        self._signals = signals
        self._report = report
        self.notes = notes
        self._keep = keep

    def keep(self, notes: Mapping[str, Any]) -> None:
        """Notes for an attempt after this one, which are durable when this returns."""
        self._keep(notes)
        self.notes = notes

    def progress(self, done: int, total: int) -> None:
        """Says how far it is, and ends the work here if it is to end.

        Raises:
            Cancelled, Interrupted: it is.
        """
        self.check()
        self._report(done, total)

    def check(self) -> None:
        """Raises Cancelled or Interrupted if the work is to end."""
        if self._signals.stop.is_set():
            raise Interrupted
        if self._signals.cancel.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Does nothing for a while, but ends the work at once if it is to end."""
        while seconds > 0:
            self.check()
            self._signals.cancel.wait(min(seconds, TURN_S))
            seconds -= TURN_S
        self.check()
