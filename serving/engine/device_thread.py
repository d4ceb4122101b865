"""Device: the one thread that runs the encoder's forward pass, on batches of whatever waits.

Whatever else is asked of the network (an errand) has its turn between two batches, one a turn.
A batch that fails is run again image by image, so that only the culprit's request fails; one that does not
fit into the GPU's memory is halved, and batches stay at that size.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import numpy as np
import torch

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import NNCLRHubError, ServiceError
from nnclr_hub.workbench.privacy import public_name

from ..telemetry import Metrics
from .batch_queue import BatchQueue
from .request import Task, WorkItem
from .worker_pool import Worker, WorkerPool

log = logging.getLogger(__name__)


class DeviceThread:
    """The line of decoded works, and the thread that embeds them.

    Args:
        encoder: whose `forward_crops` does it.
        max_batch: images a forward pass.
        max_wait_s: how long a busy device gives a batch to fill, from its first image's arrival.
        look: see `WorkerPool`.
    """

    def __init__(
        self, encoder: Encoder, max_batch: int, max_wait_s: float, metrics: Metrics, look: threading.Event
    ) -> None:
        self._encoder = encoder
        self._max_wait_s = max_wait_s
        self.buckets = encoder.backend.buckets or ()
        self.max_batch = min(max_batch, *self.buckets[-1:]) if self.buckets else max_batch
        self.failures_in_a_row = 0
        self._queued = metrics.stage_seconds.labels("queue")
        self._forwarded = metrics.stage_seconds.labels("forward")
        self._batches = metrics.batch_images.labels(public_name(encoder.name))
        self.line = BatchQueue(metrics.queued.labels(public_name(encoder.name)))
        take = lambda: self.line.take(self.max_batch, self._max_wait_s)  # noqa: E731
        self.crew = WorkerPool("the device thread", 1, take, self._run, look)

    def _run(self, works: Sequence[WorkItem], worker: Worker) -> None:
        wanted = [work for work in works if work.wanted()]
        now = time.monotonic()
        for work in wanted:
            self._queued.observe(now - work.since)
            work.request.spent("queue", now - work.since)
        crops = [work for work in wanted if work.request.errand is None]
        if crops:
            self._embed(crops, worker)
        for work in wanted:
            if work.request.errand is not None and not worker.given_up and work.wanted():
                self._perform(work, work.request.errand, worker)

    def _perform(self, work: WorkItem, errand: Task, worker: Worker) -> None:
        worker.goes_on()
        begun = time.perf_counter()
        try:
            result = errand.forward(work.crop)
        except NNCLRHubError as error:
            work.fail(error)
        except torch.OutOfMemoryError:
            log.warning("an errand does not fit into the device's memory")
            work.fail(ServiceError("The encoder has not enough memory for this image: ask for a smaller one."))
        except Exception as error:
            log.exception("an errand failed")
            work.fail(ServiceError(f"The encoder failed ({type(error).__name__}): the server's log says why."))
        else:
            seconds = time.perf_counter() - begun
            self._forwarded.observe(seconds)
            work.request.spent("forward", seconds)
            work.settle(result)

    def _embed(self, works: Sequence[WorkItem], worker: Worker) -> None:
        """Every work gets its vector or fails its request; a failed batch is run again in smaller ones."""
        worker.goes_on()
        begun = time.perf_counter()
        try:
            vectors = self._forward(works)
        except torch.OutOfMemoryError:
            smaller = self._smaller_batch(len(works))
            trouble = "has not enough memory for one image"
        except Exception as error:
            log.exception("a batch of %d failed", len(works))
            self.failures_in_a_row += 1
            smaller = 1 if len(works) > 1 else 0
            trouble = f"failed on this image ({type(error).__name__})"
        else:
            if not worker.given_up:
                self._settle(works, vectors, time.perf_counter() - begun)
            return
        # out of the handlers, whose traceback keeps the failed batch in memory
        if not smaller:
            works[0].fail(ServiceError(f"The encoder {trouble}: the server's log says why."))
            return
        for first in range(0, len(works), smaller):
            part = [work for work in works[first : first + smaller] if not worker.given_up and work.wanted()]
            if part:
                self._embed(part, worker)

    def _forward(self, works: Sequence[WorkItem]) -> np.ndarray:
        """(N, D) float32."""
        crops = np.stack([work.crop for work in works])
        vectors = self._encoder.forward_crops(crops)
        if vectors.shape != (len(works), self._encoder.embed_dim):
            raise ValueError(f"{vectors.shape} from {len(works)} crops")
        return vectors

    def _settle(self, works: Sequence[WorkItem], vectors: np.ndarray, seconds: float) -> None:
        self.failures_in_a_row = 0
        self._forwarded.observe(seconds)
        self._batches.observe(len(works))
        for request in {work.request for work in works}:
            request.spent("forward", seconds)
        for work, vector in zip(works, vectors, strict=True):
            if np.isfinite(vector).all():
                work.settle(vector)
            else:
                work.fail(ServiceError("The encoder gave no finite vector for an image: its weights are damaged."))

    def _smaller_batch(self, size: int) -> int:
        """Half of what was too much, from now on; 0: it was one image."""
        half = size // 2
        if half:
            self.max_batch = min(self.max_batch, half)
            log.warning("%d images do not fit into the device's memory: %d a batch from now on", size, half)
        return half
