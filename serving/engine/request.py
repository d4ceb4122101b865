"""Request: the images of one caller and their one answer, and BatchQueue, in which the images wait for a thread.

Each image leaves its request exactly once, with a result or without. When the last one leaves, the permits go back
and the answer is set. A request that failed, expired or was cancelled is over at once. Its images then leave at the
next stage that looks at them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client import Gauge

from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import DeadlineExceeded, ImageError, NNCLRHubError

from .admission import size_of

Result = np.ndarray | ImageError  # or whatever the forward function of an ImageTask returns
STAGES = ("decode", "queue", "forward")


@dataclass(frozen=True)
class ImageTask:
    """A per-image job other than embedding, run on the engine's threads.

    prepare: takes an image as it was given, in a decode worker. An ImageError fails only that image.
    forward: takes the result of `prepare`, in the thread that owns the device.
    """

    prepare: Callable[[ImageLike], Any]
    forward: Callable[[Any], Any]


class Request:
    """The images of one caller.

    Args:
        images: one or more.
        deadline: by time.monotonic(); the request expires then.
        task: what to do with the images; None means embed.
        on_outcome: called with the outcome of each image that leaves: embedded or mapped, broken, failed, expired,
            cancelled. Must not use the request.
        on_withdrawn: called once if the request is over before all of its images have left.
        on_empty: called once when the last image has left.
    """

    def __init__(
        self,
        images: Sequence[ImageLike],
        deadline: float,
        *,
        task: ImageTask | None = None,
        on_outcome: Callable[[str], None] = lambda outcome: None,
        on_withdrawn: Callable[[Request], None] = lambda request: None,
        on_empty: Callable[[], None] = lambda: None,
    ) -> None:
        self.items = [WorkItem(self, index, image) for index, image in enumerate(images)]
        self.deadline = deadline
        self.task = task
        self.answer: Future[list[Result]] = Future()
        self.over = False
        self._outcome_of_rest = "failed"  # of the images that leave after the request is over
        self._on_outcome, self._on_withdrawn, self._on_empty = on_outcome, on_withdrawn, on_empty
        self._lock = threading.Lock()
        self._inside = set(range(len(images)))
        self._results: list[Result | None] = [None] * len(images)
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by stage: decode is the sum over images, queue the longest wait, forward the sum over batches."""
        with self._lock:
            return dict(self._seconds)

    def add_seconds(self, stage: str, seconds: float) -> None:
        """Record time that the request spent in a stage."""
        with self._lock:
            known = self._seconds[stage]
            self._seconds[stage] = max(known, seconds) if stage == "queue" else known + seconds

    def fail(self, error: NNCLRHubError, outcome: str = "failed") -> None:
        """Answer with an error, unless the request is over already."""
        if self._end(outcome):
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_exception(error)
            self._on_withdrawn(self)

    def expire(self) -> None:
        """Fail because the deadline has passed."""
        text = "The request did not finish by its deadline; try again later, or send fewer images."
        self.fail(DeadlineExceeded(text), "expired")

    def cancel(self) -> None:
        """Drop the images that have not started, if the request is not over: nobody waits for its answer."""
        if self.answer.cancel() and self._end("cancelled"):
            self._on_withdrawn(self)

    def _end(self, outcome_of_rest: str) -> bool:
        with self._lock:
            if self.over:
                return False
            self.over, self._outcome_of_rest = True, outcome_of_rest
            return True

    def leave(self, index: int, result: Result | None = None) -> None:
        """Let one image leave with its result, or without one if the request is over."""
        with self._lock:
            if index not in self._inside:
                return  # a replaced worker thread came back with it after all
            self._inside.discard(index)
            self._results[index] = result
            empty = not self._inside
            complete = empty and not self.over
            self.over = self.over or complete
            done = "embedded" if self.task is None else "mapped"
            outcome = "broken" if isinstance(result, ImageError) else done
            # with the lock: when the last image has left, all are counted
            self._on_outcome(self._outcome_of_rest if result is None else outcome)
        if empty:
            self.items = []  # they refer to the request, and only garbage collection would free them together
            # Permits go back before the answer: a client that sends its next request at once must find them. They go
            # back only now, and not when a request expires, because its images still use memory until they leave.
            self._on_empty()
        if complete and self.answer.set_running_or_notify_cancel():
            self.answer.set_result([one for one in self._results if one is not None])


@dataclass(slots=True, eq=False)
class WorkItem:
    """One image of a request on its way through the stages.

    image: as it was given; None once decoded.
    prepared: (S, S, 3) uint8 crop, or what the task's `prepare` returned; None until decoded.
    queued_at: when it entered its present queue, by time.monotonic().
    """

    request: Request
    index: int
    image: ImageLike | None
    prepared: Any = None
    queued_at: float = 0.0

    def is_wanted(self) -> bool:
        """Return whether to continue with the image. If not, it has left its request."""
        if time.monotonic() >= self.request.deadline:
            self.request.expire()
        if self.request.over:
            self.leave()
            return False
        return True

    def leave(self, result: Any = None) -> None:
        self.request.leave(self.index, result)

    def fail(self, error: NNCLRHubError) -> None:
        """Fail the whole request."""
        self.request.fail(error)
        self.leave()


class BatchQueue:
    """Images that wait for a thread, first come first served. A request can be withdrawn from it.

    Args:
        length: gauge that follows the number of items.
    """

    def __init__(self, length: Gauge) -> None:
        self._length = length
        self._items: deque[WorkItem] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Sequence[WorkItem], closed: NNCLRHubError) -> None:
        """Add items together; if the queue is closed, fail them with this error."""
        now = time.monotonic()
        with self._changed:
            if not self._closed:
                for item in items:
                    item.queued_at = now
                self._items.extend(items)
                self._length.inc(len(items))
                self._changed.notify(len(items))
                return
        for item in items:
            item.fail(closed)

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
                    return self._take_first(limit, max_bytes)
                self._changed.wait(left)

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
        self._length.dec(len(batch))
        return batch

    def withdraw(self, request: Request) -> None:
        """Let the items of a request that is over leave at once, so that its permits come back."""
        with self._changed:
            found = [item for item in self._items if item.request is request]
            if found:
                self._items = deque(item for item in self._items if item.request is not request)
                self._length.dec(len(found))
        for item in found:
            item.leave()

    def close(self, error: NNCLRHubError) -> None:
        """Refuse new items, and fail those that wait. Callers of `take` get an empty list."""
        with self._changed:
            self._closed = True
            items, self._items = list(self._items), deque()
            self._length.dec(len(items))
            self._changed.notify_all()
        for item in items:
            item.fail(error)
