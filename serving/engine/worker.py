"""Worker: a thread that can be given up when it stalls."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from nnclr_hub.errors import NotReady

from .admission import shutting_down
from .request import WorkItem

log = logging.getLogger(__name__)


class Worker(threading.Thread):
    """One thread of the device, the items that it works on, and since when.

    Python cannot kill a thread. A stalled one is abandoned: a new thread takes its place, the requests that it was
    working on fail, and whatever it still returns is ignored.

    Args:
        take: blocks for the next items; an empty list ends the thread.
        work: processes them.
        wake: set when the thread dies.
    """

    def __init__(
        self,
        take: Callable[[], Sequence[WorkItem]],
        work: Callable[[Sequence[WorkItem], Worker], None],
        wake: threading.Event,
    ) -> None:
        super().__init__(name="device thread", daemon=True)
        self.abandoned = False
        self._take, self._work, self._wake = take, work, wake
        self._items: Sequence[WorkItem] = ()
        self._since: float | None = None
        self._dead = False
        # Setting `abandoned` and replacing `_items` exclude each other. Code that abandons the worker therefore sees
        # all of its items, and none is added afterwards.
        self._lock = threading.Lock()
        self.start()

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

    def run(self) -> None:
        try:
            while items := self._take():
                if not self._hold(items):
                    for item in items:
                        item.fail(shutting_down())
                    return
                self._work(items, self)
                if not self._hold(()):
                    return
        except BaseException:
            log.exception("%s died", self.name)
            self._dead = True
            self._wake.set()

    def _hold(self, items: Sequence[WorkItem]) -> bool:
        """Set the items that the thread works on. An abandoned worker keeps its old ones, which `abandon` fails."""
        with self._lock:
            if not self.abandoned:
                self._items, self._since = items, time.monotonic() if items else None
            return not self.abandoned
