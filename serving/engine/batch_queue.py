"""BatchQueue: the input of threads, from which a request can be withdrawn."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from prometheus_client import Gauge

from .admission import size_of
from .request import Request, WorkItem


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

    def take(
        self, limit: int, wait_s: float = 0.0, max_bytes: int = 0, expected: Callable[[], int] = lambda: 0
    ) -> list[WorkItem]:
        """Take up to `limit` items, at most one of them with a task. Block until there is one.

        A task occupies the device for as long as many vectors do. With at most one between two batches, embedding
        continues however many tasks arrive. The list is empty only when the queue is closed and empty.

        Args:
            max_bytes: of the images together, if not 0; a larger image is alone.
            wait_s: time for a batch to fill, counted from the arrival of its first item.
            expected: returns how many items may be here soon, with those that are. Without more of them, nobody waits.
        """
        with self._changed:
            while True:
                while not self._items and not self._closed:
                    self._changed.wait()
                left = self._items[0].queued_at + wait_s - time.monotonic() if self._items else 0.0
                if left <= 0 or len(self._items) >= min(limit, expected()) or self._closed:
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
