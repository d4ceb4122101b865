"""Request: the images of one caller, and their one answer.

Each image leaves its request exactly once, with a result or without. When the last one leaves, the permits go back
and the answer is set. A request that failed, expired or was cancelled is over at once. Its images then leave at the
next stage that looks at them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import DeadlineExceeded, ImageError, NNCLRHubError

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
        on_outcome: Callable[[str], None],
        on_withdrawn: Callable[[Request], None],
        on_empty: Callable[[], None],
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
        with self._lock:
            if self.over:
                return
            self.over, self._outcome_of_rest = True, outcome
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)
        self._on_withdrawn(self)

    def expire(self) -> None:
        """Fail because the deadline has passed."""
        self.fail(
            DeadlineExceeded("The request did not finish by its deadline; try again later, or send fewer images."),
            "expired",
        )

    def cancel(self) -> None:
        """Drop the images that have not started, if the request is not over: nobody waits for its answer."""
        if not self.answer.cancel():
            return
        with self._lock:
            if self.over:
                return
            self.over, self._outcome_of_rest = True, "cancelled"
        self._on_withdrawn(self)

    def finish(self, index: int, result: Result) -> None:
        """Record the result of one image."""
        done = "embedded" if self.task is None else "mapped"
        self._leave(index, "broken" if isinstance(result, ImageError) else done, result)

    def drop(self, index: int) -> None:
        """Let one image leave without a result, after the request is over."""
        self._leave(index, self._outcome_of_rest, None)

    def _leave(self, index: int, outcome: str, result: Result | None) -> None:
        with self._lock:
            if index not in self._inside:
                return  # a replaced worker thread came back with it after all
            self._inside.discard(index)
            self._results[index] = result
            empty = not self._inside
            complete = empty and not self.over
            self.over = self.over or complete
            self._on_outcome(outcome)  # with the lock: when the last image has left, all are counted
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
            self.drop()
            return False
        return True

    def finish(self, result: Result) -> None:
        self.request.finish(self.index, result)

    def drop(self) -> None:
        self.request.drop(self.index)

    def fail(self, error: NNCLRHubError) -> None:
        """Fail the whole request."""
        self.request.fail(error)
        self.drop()
