"""ReplaceableWorker: a thread that is replaced when it dies or stalls; BatchQueue: the input of threads.

Python cannot kill a thread. A stalled one is abandoned: a new thread takes its place, the requests that it was
working on fail, and whatever it still returns is ignored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from prometheus_client import Gauge

from nnclr_hub.errors import NotReady

from .admission import shutting_down, size_of
from .request import Request, WorkItem

log = logging.getLogger(__name__)


class BatchQueue:
    """Images that wait for a thread, first come first served. A request can be withdrawn from it.

    Args:
        length: gauge that follows the number of items.
    """

    def __init__(self, length: Gauge | None = None) -> None:
        self._length = length
        self._items: deque[WorkItem] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Sequence[WorkItem]) -> bool:
        """Add items together; return False if the queue is closed and nothing was added."""
        now = time.monotonic()
        with self._changed:
            if self._closed:
                return False
            for item in items:
                item.queued_at = now
            self._items.extend(items)
            self._count(len(items))
            self._changed.notify(len(items))
        return True

    def take(self, limit: int, wait_s: float = 0.0, max_bytes: int = 0) -> list[WorkItem]:
        """Take up to `limit` items, at most one of them with a task. Block until there is one.

        A task occupies the device for as long as many vectors do. With at most one between two batches, embedding
        continues however many tasks arrive. The list is empty only when the queue is closed and empty.

        Args:
            max_bytes: of the images together, if not 0; a larger image is alone.
            wait_s: time for a batch to fill, counted from the arrival of its first item. Only a caller that finds
                items (it was busy) waits. A caller that had to wait for an item (it was idle) takes it at once.
        """
        with self._changed:
            was_busy = bool(self._items)
            while True:
                while not self._items and not self._closed:
                    self._changed.wait()
                left = self._items[0].queued_at + wait_s - time.monotonic() if was_busy and self._items else 0.0
                if left <= 0 or len(self._items) >= limit or self._closed:
                    batch = self._take_first(limit, max_bytes)
                    self._count(-len(batch))
                    return batch
                self._changed.wait(left)

    def remove(self, request: Request) -> list[WorkItem]:
        """Remove and return the items of a request."""
        with self._changed:
            found = [item for item in self._items if item.request is request]
            if found:
                self._items = deque(item for item in self._items if item.request is not request)
                self._count(-len(found))
        return found

    def close(self) -> None:
        """Refuse new items. Callers of `take` get those that are left, then an empty list."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def clear(self) -> list[WorkItem]:
        """Remove and return all items."""
        with self._changed:
            items, self._items = list(self._items), deque()
            self._count(-len(items))
        return items

    def _take_first(self, limit: int, max_bytes: int) -> list[WorkItem]:
        """Take items from the front. Tasks that must wait keep their places."""
        batch: list[WorkItem] = []
        waiting: list[WorkItem] = []
        has_task, size = False, 0
        while self._items and len(batch) < limit:
            image = self._items[0].image
            size += size_of(image) if max_bytes and image is not None else 0
            if batch and size > max_bytes > 0:
                break
            item = self._items.popleft()
            if has_task and item.request.task is not None:
                waiting.append(item)
            else:
                has_task = has_task or item.request.task is not None
                batch.append(item)
        self._items.extendleft(reversed(waiting))
        return batch

    def _count(self, change: int) -> None:
        if self._length is not None:
            self._length.inc(change)


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


class ReplaceableWorker:
    """A thread with a successor.

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
        self._name = name
        self._start = lambda: Worker(name, take, work, wake)
        self._worker = self._start()

    def replace_if_faulty(self, stall_s: float, report: Callable[[str], None]) -> bool:
        """Replace a thread that died or stalled, and return whether it did. Only one thread may call this.

        Args:
            stall_s: seconds that the thread may take for one step.
            report: called with a description, before its requests fail.
        """
        fault = self._worker.find_fault(stall_s)
        if fault is None:
            return False
        report(f"{self._name} {fault} and was replaced")
        self._worker.abandon(NotReady("A worker failed while it processed this request; try again in a moment."))
        self._worker = self._start()
        return True

    def close(self, deadline: float) -> None:
        """Wait for the thread to end, and abandon it if it still runs at the deadline, by time.monotonic()."""
        self._worker.join(max(0.0, deadline - time.monotonic()))
        self._worker.abandon(shutting_down())
