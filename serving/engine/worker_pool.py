"""WorkerPool: threads that do the same work, can be seen to be dead or stuck, and are replaced.

A thread cannot be killed. One that is stuck is given up: another takes its place, the requests that it had in
hand fail, and what it may still bring back is ignored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from nnclr_hub.errors import NotReady

from .request import WorkItem

log = logging.getLogger(__name__)


class Worker:
    """One thread, what it has in hand, and since when."""

    def __init__(
        self,
        name: str,
        take: Callable[[], Sequence[WorkItem]],
        work: Callable[[Sequence[WorkItem], Worker], None],
        look: threading.Event,
    ) -> None:
        self.given_up = False
        self._take, self._work, self._look = take, work, look
        self._in_hand: Sequence[WorkItem] = ()
        self._since: float | None = None
        self._dead = False
        self._lock = threading.Lock()  # whoever sets `given_up` sees all that is in hand, and nothing comes after
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def condemned(self, stall_s: float) -> str | None:
        """What is wrong with it, if anything; from then on nothing is wanted of it, and `give_up` must follow."""
        with self._lock:
            if self._dead:
                trouble = "died"
            elif self._since is not None and time.monotonic() - self._since > stall_s:
                trouble = f"has not come back for more than {stall_s:g} s"
            else:
                return None
            self.given_up = True
        return trouble

    def goes_on(self) -> None:
        """What it has in hand has several steps, and the next one begins."""
        self._since = time.monotonic()

    def give_up(self, error: NotReady) -> None:
        """Fails what it has in hand and wants nothing of it any more."""
        with self._lock:
            self.given_up = True
            works = self._in_hand
        for work in works:
            work.fail(error)

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while works := self._take():
                if not self._hold(works, time.monotonic()):
                    for work in works:
                        work.fail(shut_down())
                    return
                self._work(works, self)
                if not self._hold((), None):
                    return
        except BaseException:
            log.exception("%s died", self._thread.name)
            self._dead = True
            self._look.set()

    def _hold(self, works: Sequence[WorkItem], since: float | None) -> bool:
        """Takes works in hand; not if it was given up, when what it had stays there to be failed."""
        with self._lock:
            if not self.given_up:
                self._in_hand, self._since = works, since
            return not self.given_up


class WorkerPool:
    """See the module.

    Args:
        name: of the threads.
        size: how many.
        take: blocks for the next works; none: the thread ends.
        work: deals with them.
        look: set when a thread dies, so that the watchdog looks at once.
    """

    def __init__(
        self,
        name: str,
        size: int,
        take: Callable[[], Sequence[WorkItem]],
        work: Callable[[Sequence[WorkItem], Worker], None],
        look: threading.Event,
    ) -> None:
        self._name = name
        self._start = lambda: Worker(name, take, work, look)
        self._workers = [self._start() for _ in range(size)]

    def mend(self, stall_s: float, told: Callable[[str], None]) -> int:
        """Replaces threads that died or are stuck, and returns how many; for one caller at a time.

        Args:
            stall_s: how long a thread may be at one thing.
            told: called with a sentence for each, before its requests fail.
        """
        mended = 0
        for i, worker in enumerate(self._workers):
            trouble = worker.condemned(stall_s)
            if trouble is not None:
                mended += 1
                told(f"{self._name} {trouble} and was replaced")
                worker.give_up(NotReady("The server failed while it worked on this request: try again in a moment."))
                self._workers[i] = self._start()
        return mended

    def close(self, deadline: float) -> None:
        """Waits for the threads to end, and gives up those that have not by that time.monotonic()."""
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            worker.give_up(shut_down())


def shut_down() -> NotReady:
    """What a request is told that the engine's end overtook."""
    return NotReady("The server was shut down before this request was done: try another one.")
