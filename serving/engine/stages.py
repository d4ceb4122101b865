"""The two stages of the engine: threads that decode, and the one thread that owns the device."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import ImageError, NNCLRHubError, NotReady, ServiceError
from nnclr_hub.images.pool import LIGHT, TOGETHER, attempt_each
from nnclr_hub.workbench.privacy import public_name

from ..settings import Settings
from ..telemetry import Metrics
from .admission import shutting_down
from .request import BatchQueue, ImageTask, Request, WorkItem
from .worker import Worker

log = logging.getLogger(__name__)
MAX_FAILURES = 3  # forward passes in a row, each of one image
MAX_PAUSE_S = 1.0  # between two checks of the device thread


class DecodeWorkers:
    """The queue of images as they were given, and the threads that wait for the decoding processes.

    An unreadable image is its own error.

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
        self._threads = [threading.Thread(target=self._run, name="decode worker", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def close(self, deadline: float) -> None:
        """End the threads, and fail what still runs at the deadline, by time.monotonic()."""
        self.queue.close(shutting_down())
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for item in tuple(self._working):
            item.fail(shutting_down())

    def _run(self) -> None:
        while items := self.queue.take(self._share(), max_bytes=LIGHT):
            items = [item for item in items if item.is_wanted()]
            self._working.update(items)
            try:
                self._decode([item for item in items if item.request.task is None], self._encoder.prepare_each)
                for item in items:
                    if item.request.task is not None:
                        self._decode([item], partial(attempt_each, item.request.task.prepare))
                self._pass_on([item for item in items if item.prepared is not None])
            except BaseException as error:  # the thread must survive everything
                log.exception("decoding failed")
                for item in items:
                    item.fail(_failed("Decoding", error))
            self._working.difference_update(items)

    def _share(self) -> int:
        """Return how many images a thread takes, so that all threads have work."""
        return min(TOGETHER, 1 + 2 * len(self.queue) // len(self._threads))

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

    def _pass_on(self, items: Sequence[WorkItem]) -> None:
        self._decoded.put(items, shutting_down())
        for request in {item.request for item in items if item.request.over}:
            # The request was withdrawn while its items were in no queue, so the withdrawal missed them. Remove them
            # now: a busy device may take long to get to them, and they hold their permits until then.
            self._decoded.withdraw(request)


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
        self.queue.close(shutting_down())
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
