"""The two stages of the engine: threads that decode, and the one thread that owns the device."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import ImageError, NNCLRHubError, ServiceError
from nnclr_hub.images.pool import LIGHT, TOGETHER, attempt_each
from nnclr_hub.workbench.privacy import public_name

from ..telemetry import Metrics
from .admission import shutting_down
from .batch_queue import BatchQueue
from .request import ImageTask, WorkItem
from .worker import ReplaceableWorker, Worker

log = logging.getLogger(__name__)


class DecodeWorkers:
    """The queue of images as they were given, and the threads that wait for the decoding processes.

    An unreadable image is its own error.

    Args:
        encoder: its `prepare` decodes.
        threads: number of images decoded at once.
        decoded: the queue for decoded items.
    """

    def __init__(self, encoder: Encoder, threads: int, decoded: BatchQueue, metrics: Metrics) -> None:
        self._encoder = encoder
        self._decoded = decoded
        self._decode_seconds = metrics.stage_seconds.labels("decode")
        self.queue = BatchQueue(metrics.undecoded)
        self._working: set[WorkItem] = set()
        self._threads = [threading.Thread(target=self._run, name="decode worker", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def put(self, items: Sequence[WorkItem]) -> bool:
        """Add items together; return False if the queue is closed and nothing was added."""
        return self.queue.put(items)

    def close(self, deadline: float) -> None:
        """Wait for the threads to end, and fail what still runs at the deadline, by time.monotonic()."""
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
                    item.fail(ServiceError(f"Decoding failed ({type(error).__name__}); see the server's log."))
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
            self._decode_seconds.observe(seconds)
            item.request.add_seconds("decode", seconds)
        for item, result in zip(items, results, strict=True):
            match result:
                case ImageError():
                    item.finish(result)
                case NNCLRHubError():
                    item.fail(result)
                case Exception():
                    log.error("decoding failed", exc_info=result)
                    item.fail(ServiceError(f"Decoding failed ({type(result).__name__}); see the server's log."))
                case _:
                    item.prepared = result
                    item.image = None  # frees the memory: the crop is all that is needed from here on

    def _pass_on(self, items: Sequence[WorkItem]) -> None:
        if not self._decoded.put(items):
            for item in items:
                item.fail(shutting_down())
        for request in {item.request for item in items if item.request.over}:
            # The request was withdrawn while its items were in no queue, so the withdrawal missed them. Remove them
            # now: a busy device may take long to get to them, and they hold their permits until then.
            for one in self._decoded.remove(request):
                one.drop()


class DeviceThread:
    """The queue of decoded items, and the one thread that owns the device and runs the encoder on batches.

    A batch takes what is waiting. Tasks run between batches, at most one per batch. A failed batch is rerun image by
    image, so that only the request with the bad image fails. A batch that exceeds the memory of the device is halved,
    and later batches stay at that size.

    Args:
        encoder: its `forward_crops` embeds.
        max_batch: images per forward pass.
        max_wait_s: time that a batch has to fill, from the arrival of its first image.
        in_work: returns how many images the engine has. A batch does not wait if it contains all of them.
        wake: see `Worker`.
    """

    def __init__(
        self,
        encoder: Encoder,
        max_batch: int,
        max_wait_s: float,
        in_work: Callable[[], int],
        metrics: Metrics,
        wake: threading.Event,
    ) -> None:
        self._encoder = encoder
        # compiled backends have fixed batch sizes ("buckets"); a larger batch would compile again
        self.buckets = encoder.backend.buckets or ()
        self.max_batch = min(max_batch, *self.buckets[-1:]) if self.buckets else max_batch
        self.failures_in_a_row = 0
        self._queue_seconds = metrics.stage_seconds.labels("queue")
        self._forward_seconds = metrics.stage_seconds.labels("forward")
        self._batch_images = metrics.batch_images.labels(public_name(encoder.name))
        self.queue = BatchQueue(metrics.queued.labels(public_name(encoder.name)))

        def take() -> Sequence[WorkItem]:
            return self.queue.take(self.max_batch, max_wait_s, expected=in_work)

        self.worker = ReplaceableWorker(lambda: Worker("device thread", take, self._run, wake))

    def _run(self, items: Sequence[WorkItem], worker: Worker) -> None:
        wanted = [item for item in items if item.is_wanted()]
        now = time.monotonic()
        for item in wanted:
            self._queue_seconds.observe(now - item.queued_at)
            item.request.add_seconds("queue", now - item.queued_at)
        crops = [item for item in wanted if item.request.task is None]
        if crops:
            self._embed(crops, worker)
        for item in wanted:
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
            item.fail(ServiceError(f"The encoder failed ({type(error).__name__}); see the server's log."))
        else:
            seconds = time.perf_counter() - begun
            self._forward_seconds.observe(seconds)
            item.request.add_seconds("forward", seconds)
            item.finish(result)

    def _embed(self, items: Sequence[WorkItem], worker: Worker) -> None:
        """Embed the items. A failed batch is rerun in smaller ones until each item has a vector or an error."""
        worker.note_progress()
        begun = time.perf_counter()
        try:
            vectors = self._forward(items)
        except MemoryError:
            smaller = self._halve_batch(len(items))
            reason = "ran out of memory on one image"
        except Exception as error:
            log.exception("a batch of %d failed", len(items))
            self.failures_in_a_row += 1
            smaller = 1 if len(items) > 1 else 0
            reason = f"failed on this image ({type(error).__name__})"
        else:
            if not worker.abandoned:
                self._finish(items, vectors, time.perf_counter() - begun)
            return
        # The rerun is outside the except blocks: there, the traceback would keep the tensors of the failed batch
        # in memory.
        if not smaller:
            items[0].fail(ServiceError(f"The encoder {reason}; see the server's log."))
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
        self.failures_in_a_row = 0
        self._forward_seconds.observe(seconds)
        self._batch_images.observe(len(items))
        for request in {item.request for item in items}:
            request.add_seconds("forward", seconds)
        for item, vector in zip(items, vectors, strict=True):
            if np.isfinite(vector).all():
                item.finish(vector)
            else:
                item.fail(ServiceError("The encoder returned NaN or infinity for an image; its weights are damaged."))

    def _halve_batch(self, size: int) -> int:
        """Halve the batch size from now on and return it; 0 if the batch was one image."""
        half = size // 2
        if half:
            self.max_batch = min(self.max_batch, half)
            log.warning("a batch of %d exceeds the memory of the device; using batches of %d from now on", size, half)
        return half
