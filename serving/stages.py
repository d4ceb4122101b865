"""The stages of the engine: threads that decode, and the one thread that owns the device, which can be replaced."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from prometheus_client import Gauge

from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import ImageError, NNCLRHubError, NotReady, ServiceError
from nnclr_hub.images.pool import LIGHT, TOGETHER, attempt_each
from nnclr_hub.workbench.privacy import public_name

from .limits import shutting_down
from .settings import Settings
from .telemetry import Metrics

log = logging.getLogger(__name__)
Result = np.ndarray | ImageError  # or whatever the forward function of an ImageTask returns
MAX_FAILURES = 3  # forward passes in a row, each of one image
MAX_PAUSE_S = 1.0  # between two checks of the device thread
SPARE_S = 0.05  # that an image waits for the threads that decode, before one of the others takes it


# ---- one request


@dataclass(frozen=True)
class ImageTask:
    """A per-image job other than embedding, run on the engine's threads.

    prepare: takes an image as it was given, in a decode worker. An ImageError fails only that image.
    forward: takes the result of `prepare`, in the thread that owns the device.
    """

    prepare: Callable[[ImageLike], Any]
    forward: Callable[[Any], Any]


class Request:
    """The images of one caller and their one answer.

    Each image leaves its request exactly once, with a result or without. When the last one leaves, the permits go back
    and the answer is set. A request that failed or was cancelled is over at once: images that wait in a queue leave
    then, and the others when their thread returns them.

    Args:
        images: one or more.
        task: what to do with the images; None means embed.
        on_outcome: called with the outcome of each image that leaves: embedded or mapped, broken, failed, cancelled.
            Must not use the request.
        on_empty: called once when the last image has left.
    """

    def __init__(
        self,
        images: Sequence[ImageLike],
        *,
        task: ImageTask | None = None,
        on_outcome: Callable[[str], None] = lambda outcome: None,
        on_empty: Callable[[], None] = lambda: None,
    ) -> None:
        self.items = [WorkItem(self, index, image) for index, image in enumerate(images)]
        self.task = task
        self.answer: Future[list[Result]] = Future()
        self.over = False
        # by stage: decode is the sum over images, queue the longest wait, forward the sum over batches
        self.seconds: dict[str, float] = {"decode": 0.0, "queue": 0.0, "forward": 0.0}
        self._outcome_of_rest = "failed"  # how images end that leave after the request is over
        self._on_outcome, self._on_empty = on_outcome, on_empty
        self._lock = threading.Lock()
        self._inside = set(range(len(images)))
        self._results: list[Result | None] = [None] * len(images)

    def add_seconds(self, stage: str, seconds: float) -> None:
        """Record time that the request spent in a stage."""
        with self._lock:
            known = self.seconds[stage]
            self.seconds[stage] = max(known, seconds) if stage == "queue" else known + seconds

    def fail(self, error: NNCLRHubError) -> None:
        """Answer with an error, unless the request is over already."""
        if self._end("failed") and self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)

    def cancel(self) -> None:
        """Drop the images that have not started, if the request is not over: nobody waits for its answer."""
        if self.answer.cancel():
            self._end("cancelled")

    def _end(self, outcome_of_rest: str) -> bool:
        with self._lock:
            if self.over:
                return False
            self.over, self._outcome_of_rest = True, outcome_of_rest
            waiting = [item for item in self.items if not item.is_held]
        for item in waiting:
            item.image = item.prepared = None  # its queue still has the item
            item.leave()
        return True

    def hold(self, item: WorkItem, hold: bool) -> bool:
        """Set whether a thread works on an image; return False if it has left, because the request is over."""
        with self._lock:
            item.is_held = hold
            if not self.over:
                return True
        item.leave()
        return False

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
    is_held: whether a thread works on it, and not a queue has it.
    queued_at: when it entered its present queue, by time.monotonic().
    """

    request: Request
    index: int
    image: ImageLike | None
    prepared: Any = None
    is_held: bool = False
    queued_at: float = 0.0

    def is_wanted(self) -> bool:
        """Return whether a thread may work on the image, and hold it. If not, it has left its request."""
        return self.request.hold(self, True)

    def leave(self, result: Any = None) -> None:
        self.request.leave(self.index, result)

    def fail(self, error: NNCLRHubError) -> None:
        """Fail the whole request."""
        self.request.fail(error)
        self.leave()


def size_of(image: ImageLike) -> int:
    """Return the bytes of an image before decoding; 0 for a missing file, on which decoding reports the error."""
    if isinstance(image, bytes):
        return len(image)
    if isinstance(image, np.ndarray):
        return image.nbytes
    if isinstance(image, Image.Image):
        return image.width * image.height * len(image.getbands())
    try:
        return Path(image).stat().st_size if isinstance(image, str | Path) else 0
    except OSError:
        return 0


class BatchQueue:
    """Images that wait for a thread, first come first served. Those of a request that is over are skipped.

    Args:
        length: gauge that follows the number of items.
    """

    def __init__(self, length: Gauge) -> None:
        self._length = length
        self._items: deque[WorkItem] = deque()
        lock = threading.Lock()
        self._changed, self._spare = threading.Condition(lock), threading.Condition(lock)
        self._idle = 0  # threads in `take` that have nothing to do
        self._watched = False  # whether a spare thread waits until the first item is late
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Sequence[WorkItem]) -> None:
        """Add items together; if the queue is closed, fail them."""
        items = [item for item in items if item.request.hold(item, False)]
        now = time.monotonic()
        with self._changed:
            if not self._closed:
                for item in items:
                    item.queued_at = now
                self._items.extend(items)
                self._length.inc(len(items))
                self._changed.notify(len(items))
                self._idle -= (woken := min(self._idle, len(items)))
                if woken < len(items) and not self._watched:
                    self._spare.notify()
                return
        for item in items:
            item.fail(shutting_down())

    def take(
        self, limit: int, wait_s: float = 0.0, max_bytes: int = 0, expected: Callable[[], int] = lambda: 0
    ) -> list[WorkItem]:
        """Take up to `limit` items, at most one of them with a task. Block until there is one.

        A task occupies the device for as long as many vectors do. With at most one between two batches, embedding
        continues however many tasks arrive. The list is empty only when the queue is closed and empty.

        Args:
            max_bytes: most bytes of the images together, if not 0; a larger image is alone.
            wait_s: time for a batch to fill, counted from the arrival of its first item.
            expected: returns how many items may be here soon, with those that are. Without more of them, nobody waits.
        """
        with self._changed:
            while True:
                while not self._items and not self._closed:
                    self._idle += 1
                    self._changed.wait()
                left = self._items[0].queued_at + wait_s - time.monotonic() if self._items else 0.0
                if left <= 0 or len(self._items) >= min(limit, expected()) or self._closed:
                    return self._take_first(limit, max_bytes)
                self._changed.wait(left)

    def take_late(self, limit: int, late_s: float, max_bytes: int = 0) -> list[WorkItem]:
        """Take items as `take` does, but only if the first one has waited so long that all its threads must be busy.

        Threads that only these calls wake cost nothing while the others suffice.
        """
        with self._changed:
            while not self._closed:
                left = self._items[0].queued_at + late_s - time.monotonic() if self._items else 0.0
                if not self._items or self._watched:
                    self._spare.wait()
                elif left > 0:
                    self._watched = True
                    self._spare.wait(left)
                    self._watched = False
                else:
                    batch = self._take_first(limit, max_bytes)
                    if self._items:
                        self._spare.notify()
                    return batch
            return []

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
            is_task = item.request.task is not None
            (waiting if has_task and is_task else batch).append(item)
            has_task = has_task or is_task
        self._items.extendleft(reversed(waiting))
        self._length.dec(len(batch))
        return batch

    def close(self) -> None:
        """Refuse new items, and fail those that wait. Callers of `take` get an empty list."""
        with self._changed:
            self._closed = True
            items, self._items = list(self._items), deque()
            self._length.dec(len(items))
            self._changed.notify_all()
            self._spare.notify_all()
        for item in items:
            item.fail(shutting_down())


# ---- the threads


class DecodeWorkers:
    """The queue of images as they were given, and the threads that wait for the decoding processes.

    An unreadable image is its own error. As many threads as there are cores take images at once. The others take those
    that wait while these decode costly ones. More threads than cores would only wait for each other.

    Args:
        encoder: its `prepare_each` decodes.
        threads: number of images decoded at once.
        decoded: the queue for decoded items.
    """

    def __init__(self, encoder: Encoder, threads: int, decoded: BatchQueue, metrics: Metrics) -> None:
        self._encoder = encoder
        self._decoded = decoded
        self._seconds = metrics.stage("decode")
        self.queue = BatchQueue(metrics.undecoded)
        self._working: set[WorkItem] = set()
        self._first = min(threads, usable_cores())
        take = partial(self.queue.take, max_bytes=LIGHT)
        take_late = partial(self.queue.take_late, late_s=SPARE_S, max_bytes=LIGHT)
        self._threads = [
            threading.Thread(
                target=self._run, args=[take if n < self._first else take_late], name="decode worker", daemon=True
            )
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def close(self, deadline: float) -> None:
        """End the threads, and fail what still runs at the deadline, by time.monotonic()."""
        self.queue.close()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for item in tuple(self._working):
            item.fail(shutting_down())

    def _run(self, take: Callable[[int], list[WorkItem]]) -> None:
        while items := take(self._share()):
            items = [item for item in items if item.is_wanted()]
            self._working.update(items)
            try:
                self._decode([item for item in items if item.request.task is None], self._encoder.prepare_each)
                for item in items:
                    if item.request.task is not None:
                        self._decode([item], partial(attempt_each, item.request.task.prepare))
                self._decoded.put([item for item in items if item.prepared is not None])
            except BaseException as error:  # the thread must survive everything
                log.exception("decoding failed")
                for item in items:
                    item.fail(error if isinstance(error, NNCLRHubError) else _failed("Decoding", error))
            self._working.difference_update(items)

    def _share(self) -> int:
        """Return how many images a thread takes, so that all threads have work."""
        return min(TOGETHER, 1 + 2 * len(self.queue) // self._first)

    def _decode(self, items: Sequence[WorkItem], prepare_each: Callable[[list[Any]], list[Any]]) -> None:
        if not items:
            return
        begun = time.perf_counter()
        results = prepare_each([item.image for item in items])
        seconds = (time.perf_counter() - begun) / len(items)
        for item in items:  # before the first result: it may complete the answer, which reports the time
            self._seconds.observe(seconds)
            item.request.add_seconds("decode", seconds)
        for item, result in zip(items, results, strict=True):
            match result:
                case ImageError():
                    item.leave(result)
                case NNCLRHubError():
                    item.fail(result)
                case Exception():
                    log.error("decoding failed", exc_info=result)
                    item.fail(_failed("Decoding", result))
                case _:
                    item.prepared = result
                    item.image = None  # frees the memory: the crop is all that is needed from here on


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


class Device:
    """The queue of decoded items, the one thread that runs the encoder on batches, and the thread that watches it.

    A batch takes what is waiting. Tasks run between batches, at most one per batch. A failed batch is rerun image by
    image, so that only the request with the bad image fails. A batch that exceeds the memory of the device is halved,
    and later batches stay at that size.

    A thread that died or stalled is replaced. The fault lasts until a test image has passed all stages: without
    traffic, the new thread alone would not show whether the engine works again.

    Args:
        encoder: its `forward_crops` embeds.
        settings: max_batch, max_wait_ms, stall_s.
        in_work: returns how many images the engine has. A batch does not wait if it contains all of them.
        test: sends a test image through the engine.
    """

    def __init__(
        self,
        encoder: Encoder,
        settings: Settings,
        in_work: Callable[[], int],
        metrics: Metrics,
        test: Callable[[], Request],
    ) -> None:
        self.fault: str | None = None
        # compiled backends have fixed batch sizes ("buckets"); a larger batch would compile again
        self.buckets = encoder.backend.buckets or ()
        self._max_batch = min(settings.max_batch, *self.buckets[-1:]) if self.buckets else settings.max_batch
        self._encoder, self._stall_s, self._test = encoder, settings.stall_s, test
        self._failures_in_a_row = 0
        name = public_name(encoder.name)
        self._queue_seconds, self._forward_seconds = metrics.stage("queue"), metrics.stage("forward")
        self._batch_images = metrics.batch_images.labels(name)
        self._restarts = metrics.device_restarts.labels(name)
        self.queue = BatchQueue(metrics.queued.labels(name))

        def take() -> Sequence[WorkItem]:
            return self.queue.take(self._max_batch, settings.max_wait_ms / 1000, expected=in_work)

        self._wake = threading.Event()  # makes the watch check at once
        self._start = lambda: Worker(take, self._run, self._wake)
        self._worker = self._start()
        self._running_test: Future | None = None
        self._closed = False
        self._watch_thread = threading.Thread(target=self._watch, name=f"watchdog of {name}", daemon=True)
        self._watch_thread.start()

    def close(self, deadline: float) -> None:
        """End the threads; abandon what still runs at the deadline, by time.monotonic()."""
        self._closed = True
        self._wake.set()
        self._watch_thread.join()
        self.queue.close()
        self._worker.join(max(0.0, deadline - time.monotonic()))
        self._worker.abandon(shutting_down())

    # ---- the device

    def _run(self, items: Sequence[WorkItem], worker: Worker) -> None:
        items = [item for item in items if item.is_wanted()]
        now = time.monotonic()
        for item in items:
            self._queue_seconds.observe(now - item.queued_at)
            item.request.add_seconds("queue", now - item.queued_at)
        crops = [item for item in items if item.request.task is None]
        if crops:
            self._embed(crops, worker)
        for item in items:
            if item.request.task is not None and not worker.abandoned and item.is_wanted():
                self._run_task(item, item.request.task, worker)

    def _run_task(self, item: WorkItem, task: ImageTask, worker: Worker) -> None:
        worker.note_progress()
        begun = time.perf_counter()
        try:
            result = task.forward(item.prepared)
        except NNCLRHubError as error:
            item.fail(error)
        except MemoryError:
            log.warning("a task exceeds the memory of the device")
            item.fail(ServiceError("The encoder ran out of memory on this image; request a smaller size."))
        except Exception as error:
            log.exception("a task failed")
            item.fail(_failed("The encoder", error))
        else:
            seconds = time.perf_counter() - begun
            self._forward_seconds.observe(seconds)
            item.request.add_seconds("forward", seconds)
            item.leave(result)

    def _embed(self, items: Sequence[WorkItem], worker: Worker) -> None:
        """Embed the items. A failed batch is rerun in smaller ones until each item has a vector or an error."""
        worker.note_progress()
        begun = time.perf_counter()
        try:
            vectors = self._forward(items)
        except MemoryError:
            smaller = len(items) // 2
            error = ServiceError("The encoder ran out of memory on one image; see the server's log.")
            if smaller:
                self._max_batch = min(self._max_batch, smaller)
                text = "a batch of %d exceeds the memory of the device; using batches of %d from now on"
                log.warning(text, len(items), smaller)
        except Exception as failure:
            log.exception("a batch of %d failed", len(items))
            self._failures_in_a_row += 1
            smaller = 1 if len(items) > 1 else 0
            error = _failed("The encoder", failure)
        else:
            if not worker.abandoned:
                self._finish(items, vectors, time.perf_counter() - begun)
            return
        # The rerun is outside the except blocks: there, the traceback would keep the tensors of the failed batch
        # in memory.
        if not smaller:
            items[0].fail(error)
            return
        for first in range(0, len(items), smaller):
            part = [item for item in items[first : first + smaller] if not worker.abandoned and item.is_wanted()]
            if part:
                self._embed(part, worker)

    def _forward(self, items: Sequence[WorkItem]) -> np.ndarray:
        """Return (N, D) float32 vectors."""
        crops = np.stack([item.prepared for item in items])  # (N, S, S, 3)
        vectors = self._encoder.forward_crops(crops)
        if vectors.shape != (len(items), self._encoder.embed_dim):
            raise ValueError(f"{vectors.shape} from {len(items)} crops")
        return vectors

    def _finish(self, items: Sequence[WorkItem], vectors: np.ndarray, seconds: float) -> None:
        self._failures_in_a_row = 0
        self._forward_seconds.observe(seconds)
        self._batch_images.observe(len(items))
        for request in {item.request for item in items}:
            request.add_seconds("forward", seconds)
        for item, vector in zip(items, vectors, strict=True):
            if np.isfinite(vector).all():
                item.leave(vector)
            else:
                item.fail(ServiceError("The encoder returned NaN or infinity for an image; its weights are damaged."))

    # ---- the watch

    def _watch(self) -> None:
        while not self._closed:
            self._wake.wait(min(MAX_PAUSE_S, self._stall_s / 4))
            self._wake.clear()
            try:
                self._check()
            except Exception:
                log.exception("the watchdog of %s failed", self._encoder.name)

    def _check(self) -> None:
        fault = self._worker.find_fault(self._stall_s)
        failing = self._failures_in_a_row >= MAX_FAILURES
        if fault is not None or failing:
            faults = [] if fault is None else [f"{self._worker.name} {fault} and was replaced"]
            faults += ["the encoder fails on every image"] if failing else []
            self.fault = "; ".join(faults)  # before the requests of the thread fail
            log.error("%s: %s", self._encoder.name, self.fault)
            self._running_test = None  # it may have been lost with the thread
            self._failures_in_a_row = 0
        if fault is not None:
            self._worker.abandon(NotReady("A worker failed while it processed this request; try again in a moment."))
            self._worker = self._start()
            self._restarts.inc()
        if self.fault is not None:
            self._try_recovery()

    def _try_recovery(self) -> None:
        """Clear the fault when a test image has passed. If it failed, send another one at a later check."""
        if self._running_test is not None and self._running_test.done():
            if self._running_test.exception() is None:
                log.warning("%s works again", self._encoder.name)
                self.fault = self._running_test = None
                return
            self._running_test = None
        if self._running_test is None:
            self._running_test = self._test().answer
            self._running_test.add_done_callback(lambda test: self._wake.set() if test.exception() is None else None)


def _failed(what: str, error: BaseException) -> ServiceError:
    return ServiceError(f"{what} failed ({type(error).__name__}); see the server's log.")
