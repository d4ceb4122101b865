"""Request: the images that one caller asked for together, and their one answer.

Each image leaves its request exactly once, with a result or without; when the last has left, the answer is
given and the permits go back. A request that failed, expired or was cancelled is over at once, and its
images leave wherever they are next looked at.
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

Result = np.ndarray | ImageError  # of an errand, whatever its forward gives
STAGES = ("decode", "queue", "forward")


@dataclass(frozen=True)
class Task:
    """What a network is asked for that is no vector: image by image, in the threads that vectors come from.

    prepare: of an image as it came, in a decoding thread; an ImageError is that image's own.
    forward: of what that gave, in the thread that owns the device.
    """

    prepare: Callable[[ImageLike], Any]
    forward: Callable[[Any], Any]


class Request:
    """See the module.

    Args:
        images: one or more.
        errand: what is wanted of them; None: their vectors.
        deadline: of time.monotonic(); what is not done by then is not wanted any more.
        counted: called with the outcome of each image that leaves: embedded or mapped, broken, failed, expired,
            cancelled.
        withdrawn: called once if the request is over before its images have left.
        gone: called once when the last image has left.
    """

    def __init__(
        self,
        images: Sequence[ImageLike],
        deadline: float,
        *,
        errand: Task | None = None,
        counted: Callable[[str], None],
        withdrawn: Callable[[Request], None],
        gone: Callable[[], None],
    ) -> None:
        self.works = [WorkItem(self, index, image) for index, image in enumerate(images)]
        self.deadline = deadline
        self.errand = errand
        self.answer: Future[list[Result]] = Future()
        self.over = False
        self._fate = "failed"
        self._counted, self._withdrawn, self._gone = counted, withdrawn, gone
        self._lock = threading.Lock()
        self._inside = set(range(len(images)))
        self._results: list[Result | None] = [None] * len(images)
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.answer.add_done_callback(self._maybe_cancelled)

    @property
    def remaining(self) -> float:
        """Seconds to the deadline, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by stage: decode is summed over the images, queue the longest wait, forward summed over batches."""
        with self._lock:
            return dict(self._seconds)

    def spent(self, stage: str, seconds: float) -> None:
        """Notes time that the request spent in a stage."""
        with self._lock:
            known = self._seconds[stage]
            self._seconds[stage] = max(known, seconds) if stage == "queue" else known + seconds

    def fail(self, error: NNCLRHubError, fate: str = "failed") -> None:
        """Answers with an error, unless there is an answer; images still inside are not wanted any more."""
        with self._lock:
            if self.over:
                return
            self.over, self._fate = True, fate
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)
        self._withdrawn(self)

    def expire(self) -> None:
        """Fails because the deadline has passed."""
        self.fail(
            DeadlineExceeded("The request was not done by its deadline: try again later, or send less."), "expired"
        )

    def settle(self, index: int, result: Result) -> None:
        """One image is done."""
        done = "embedded" if self.errand is None else "mapped"
        self._leave(index, "broken" if isinstance(result, ImageError) else done, result)

    def drop(self, index: int) -> None:
        """One image is given up, after the request was over."""
        self._leave(index, self._fate, None)

    def _leave(self, index: int, outcome: str, result: Result | None) -> None:
        with self._lock:
            if index not in self._inside:
                return  # a thread that had been given up came back with it
            self._inside.discard(index)
            self._results[index] = result
            gone = not self._inside
            complete = gone and not self.over
            self.over = self.over or complete
        self._counted(outcome)
        if gone:
            self._gone()  # before the answer: who has it may ask again at once
        if complete and self.answer.set_running_or_notify_cancel():
            self.answer.set_result([one for one in self._results if one is not None])

    def _maybe_cancelled(self, answer: Future[list[Result]]) -> None:
        if answer.cancelled():
            with self._lock:
                if self.over:
                    return
                self.over, self._fate = True, "cancelled"
            self._withdrawn(self)


@dataclass(slots=True, eq=False)
class WorkItem:
    """One image of a request, on its way.

    image: as it was given; None once decoded.
    crop: (S, S, 3) uint8, or what the errand's `prepare` gave, once decoded.
    since: when it entered the line that it stands in, by time.monotonic().
    """

    request: Request
    index: int
    image: ImageLike | None
    crop: Any = None
    since: float = 0.0

    def wanted(self) -> bool:
        """Whether to go on with it; if not, it has left."""
        if time.monotonic() >= self.request.deadline:
            self.request.expire()
        if self.request.over:
            self.drop()
            return False
        return True

    def settle(self, result: Result) -> None:
        self.request.settle(self.index, result)

    def drop(self) -> None:
        self.request.drop(self.index)

    def fail(self, error: NNCLRHubError) -> None:
        """Its whole request fails with it."""
        self.request.fail(error)
        self.drop()
