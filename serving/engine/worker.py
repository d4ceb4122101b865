"""ReplaceableWorker: a thread that is replaced when it dies or stalls.

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
    """One thread, the items that it works on, and since when.

    Args:
        name: of the thread.
        take: blocks for the next items; an empty list ends the thread.
        work: processes them.
        wake: set when the thread dies, so that the watchdog checks at once.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[], Sequence[WorkItem]],
        work: Callable[[Sequence[WorkItem], Worker], None],
        wake: threading.Event,
    ) -> None:
        self.name = name
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


class ReplaceableWorker:
    """A thread with a successor.

    Args:
        start: makes a worker.
    """

    def __init__(self, start: Callable[[], Worker]) -> None:
        self._start = start
        self._worker = start()

    def replace_if_faulty(self, stall_s: float, report: Callable[[str], None]) -> bool:
        """Replace a thread that died or stalled, and return whether it did. Only one thread may call this.

        Args:
            stall_s: seconds that the thread may take for one step.
            report: called with a description, before its requests fail.
        """
        fault = self._worker.find_fault(stall_s)
        if fault is None:
            return False
        report(f"{self._worker.name} {fault} and was replaced")
        self._worker.abandon(NotReady("A worker failed while it processed this request; try again in a moment."))
        self._worker = self._start()
        return True

    def close(self, deadline: float) -> None:
        """Wait for the thread to end, and abandon it if it still runs at the deadline, by time.monotonic()."""
        self._worker.join(max(0.0, deadline - time.monotonic()))
        self._worker.abandon(shutting_down())
