"""Decoding: bytes to crops, in a thread a core; an image that cannot be read is its own error."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import ImageError, NNCLRHubError, ServiceError

from ..telemetry import Metrics
from .batch_queue import BatchQueue
from .request import WorkItem
from .worker_pool import Worker, WorkerPool, shut_down

log = logging.getLogger(__name__)


class DecodeWorkers:
    """The line of images as they came, and the threads that decode them.

    Args:
        encoder: whose `prepare` does it.
        threads: how many.
        onward: the line that decoded works go to.
        look: see `WorkerPool`.
    """

    def __init__(
        self, encoder: Encoder, threads: int, onward: BatchQueue, metrics: Metrics, look: threading.Event
    ) -> None:
        self._encoder = encoder
        self._onward = onward
        self._observed = metrics.stage_seconds.labels("decode")
        self.line = BatchQueue()
        self.crew = WorkerPool("a decoding thread", threads, lambda: self.line.take(1), self._decode, look)

    def _decode(self, works: Sequence[WorkItem], worker: Worker) -> None:
        (work,) = works
        if not work.wanted():
            return
        begun = time.perf_counter()
        image: Any = work.image
        work.image = None  # images are large: the crop is all that is needed from here on
        try:
            errand = work.request.errand
            work.crop = self._encoder.prepare(image) if errand is None else errand.prepare(image)
        except ImageError as error:
            work.settle(error)
        except NNCLRHubError as error:
            work.fail(error)
        except Exception as error:
            log.exception("decoding failed")
            work.fail(ServiceError(f"Decoding failed ({type(error).__name__}): the server's log says why."))
        seconds = time.perf_counter() - begun
        self._observed.observe(seconds)
        work.request.spent("decode", seconds)
        if work.crop is None:
            return
        if not self._onward.put([work]):
            work.fail(shut_down())
        elif work.request.over:  # it was given up while this one stood in no line, and the device may be long in coming
            for one in self._onward.forget(work.request):
                one.drop()
