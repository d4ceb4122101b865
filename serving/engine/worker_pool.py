"""WorkerPool: threads that do the same work, and that are replaced when they die or stall.

Python cannot kill a thread. A stalled one is abandoned: a new thread takes its place, the requests that it was
working on fail, and whatever it still returns is ignored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from nnclr_hub.errors import NotReady

from .admission import shutting_down
from .request import WorkItem

log = logging.getLogger(__name__)


class Worker:
    """One thread, the items that it works on, and since when."""

    def __init__(
        self,
        name: str,
        take: Callable[[], Sequence[WorkItem]],
        work: Callable[[Sequence[WorkItem], Worker], None],
        wake: threading.Event,
    ) -> None:
        self.abandoned = False
        self._take, self._work, self._wake = take, work, wake
        self._items: Sequence[WorkItem] = ()
        self._since: float | None = None
        self._dead = False
        # Setting `abandoned` and replacing `_items` exclude each other. Code that abandons the worker therefore sees
        # all of its items, and none is added afterwards.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def find_fault(self, stall_s: float) -> str | None:
        """Return what is wrong with the thread, or None. If something is, `abandon` must follow."""
        with self._lock:
            if self._dead:
                fault = "died"
            elif self._since is not None and time.monotonic() - self._since > stall_s:
                fault = f"did not respond for more than {stall_s:g} s"
            else:
                return None
            self.abandoned = True
        return fault

    def note_progress(self) -> None:
        """Restart the stall timer, between two steps of the same items."""
        self._since = time.monotonic()

    def abandon(self, error: NotReady) -> None:
        """Fail the items of the thread, and ignore what it returns from now on."""
        with self._lock:
            self.abandoned = True
            items = self._items
        for item in items:
            item.fail(error)

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while items := self._take():
                if not self._hold(items, time.monotonic()):
                    for item in items:
                        item.fail(shutting_down())
                    return
                self._work(items, self)
                if not self._hold((), None):
                    return
        except BaseException:
            log.exception("%s died", self._thread.name)
            self._dead = True
            self._wake.set()

    def _hold(self, items: Sequence[WorkItem], since: float | None) -> bool:
        """Set the items that the thread works on. An abandoned worker keeps its old ones, which `abandon` fails."""
        with self._lock:
            if not self.abandoned:
                self._items, self._since = items, since
            return not self.abandoned


class WorkerPool:
    """Threads that do the same work.

    Args:
        name: of the threads.
        size: number of threads.
        take: blocks for the next items; an empty list ends the thread.
        work: processes them.
        wake: set when a thread dies, so that the watchdog checks at once.
    """

    def __init__(
        self,
        name: str,
        size: int,
        take: Callable[[], Sequence[WorkItem]],
        work: Callable[[Sequence[WorkItem], Worker], None],
        wake: threading.Event,
    ) -> None:
        self._name = name
        self._start = lambda: Worker(name, take, work, wake)
        self._workers = [self._start() for _ in range(size)]

    def replace_faulty(self, stall_s: float, report: Callable[[str], None]) -> int:
        """Replace threads that died or stalled, and return their number. Only one thread may call this.

        Args:
            stall_s: seconds that a thread may take for one step.
            report: called with a description of each, before its requests fail.
        """
        replaced = 0
        for i, worker in enumerate(self._workers):
            fault = worker.find_fault(stall_s)
            if fault is not None:
                replaced += 1
                report(f"{self._name} {fault} and was replaced")
                worker.abandon(NotReady("A worker failed while it processed this request; try again in a moment."))
                self._workers[i] = self._start()
        return replaced

    def close(self, deadline: float) -> None:
        """Wait for the threads to end, and abandon those that still run at the deadline, by time.monotonic()."""
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            worker.abandon(shutting_down())
