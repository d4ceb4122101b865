"""DecodeWorkers: threads that decode images to crops. An unreadable image is its own error."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import ImageError, NNCLRHubError, ServiceError

from ..telemetry import Metrics
from .admission import shutting_down
from .batch_queue import BatchQueue
from .request import WorkItem
from .worker_pool import Worker, WorkerPool

log = logging.getLogger(__name__)


class DecodeWorkers:
    """The queue of images as they were given, and the threads that decode them.

    Args:
        encoder: its `prepare` decodes.
        threads: number of threads.
        decoded: the queue for decoded items.
        wake: see `WorkerPool`.
    """

    def __init__(
        self, encoder: Encoder, threads: int, decoded: BatchQueue, metrics: Metrics, wake: threading.Event
    ) -> None:
        self._encoder = encoder
        self._decoded = decoded
        self._decode_seconds = metrics.stage_seconds.labels("decode")
        self.queue = BatchQueue()
        self.pool = WorkerPool("decode worker", threads, lambda: self.queue.take(1), self._decode, wake)

    def _decode(self, items: Sequence[WorkItem], worker: Worker) -> None:
        (item,) = items
        if not item.is_wanted():
            return
        begun = time.perf_counter()
        image: Any = item.image
        item.image = None  # frees the memory: the crop is all that is needed from here on
        try:
            task = item.request.task
            item.prepared = self._encoder.prepare(image) if task is None else task.prepare(image)
        except ImageError as error:
            item.finish(error)
        except NNCLRHubError as error:
            item.fail(error)
        except Exception as error:
            log.exception("decoding failed")
            item.fail(ServiceError(f"Decoding failed ({type(error).__name__}); see the server's log."))
        seconds = time.perf_counter() - begun
        self._decode_seconds.observe(seconds)
        item.request.add_seconds("decode", seconds)
        if item.prepared is None:
            return
        if not self._decoded.put([item]):
            item.fail(shutting_down())
        elif item.request.over:
            # The request was withdrawn while this item was in neither queue, so the withdrawal missed it. Remove it
            # now: a busy device may take long to get to it, and it holds its permit until then.
            for one in self._decoded.remove(item.request):
                one.drop()
