"""BatchQueue: works that wait for a thread, first come first served."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from prometheus_client import Gauge

from .request import Request, WorkItem


class BatchQueue:
    """A queue that gives out several works at once, and from which a request can be taken back.

    Args:
        length: kept at the number of works in it.
    """

    def __init__(self, length: Gauge | None = None) -> None:
        self._length = length
        self._works: deque[WorkItem] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._works)

    def put(self, works: Sequence[WorkItem]) -> bool:
        """Adds works together; False: the line is closed, and nothing was added."""
        now = time.monotonic()
        with self._changed:
            if self._closed:
                return False
            for work in works:
                work.since = now
            self._works.extend(works)
            self._grew(len(works))
            self._changed.notify(len(works))
        return True

    def take(self, most: int, wait_s: float = 0.0) -> list[WorkItem]:
        """Up to `most` works, of errands one at most; blocks until there is one.

        None are given only when the line is closed and empty. An errand takes the device as long as many vectors, so
        that between two batches of vectors, of which any number may have come meanwhile, there is one at most.

        Args:
            wait_s: a taker that finds works waiting (it was busy) gives more of them so long to come, counted from
                when the first came; one that had to wait itself (it was idle) takes what comes at once.
        """
        with self._changed:
            was_busy = bool(self._works)
            while True:
                while not self._works and not self._closed:
                    self._changed.wait()
                left = self._works[0].since + wait_s - time.monotonic() if was_busy and self._works else 0.0
                if left <= 0 or len(self._works) >= most or self._closed:
                    taken = self._first(most)
                    self._grew(-len(taken))
                    return taken
                self._changed.wait(left)

    def forget(self, request: Request) -> list[WorkItem]:
        """Takes a request's works out of the line."""
        with self._changed:
            found = [work for work in self._works if work.request is request]
            if found:
                self._works = deque(work for work in self._works if work.request is not request)
                self._grew(-len(found))
        return found

    def close(self) -> None:
        """Lets nothing more in; takers get what is left, then nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def clear(self) -> list[WorkItem]:
        """Takes everything out."""
        with self._changed:
            works, self._works = list(self._works), deque()
            self._grew(-len(works))
        return works

    def _first(self, most: int) -> list[WorkItem]:
        """Takes them out; errands that have to wait keep their places."""
        taken: list[WorkItem] = []
        waiting: list[WorkItem] = []
        errand = False
        while self._works and len(taken) < most:
            work = self._works.popleft()
            if errand and work.request.errand is not None:
                waiting.append(work)
            else:
                errand = errand or work.request.errand is not None
                taken.append(work)
        self._works.extendleft(reversed(waiting))
        return taken

    def _grew(self, count: int) -> None:
        if self._length is not None:
            self._length.inc(count)
