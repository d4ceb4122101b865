"""Engine: one encoder for many requests at once.

    permits for the whole request, or Overloaded -> a pool of threads decodes, where one bad picture
    fails alone -> a queue -> one thread that owns the device and takes whatever waits, up to
    `max_batch` -> futures

An idle device never waits for a batch to fill; a busy one finds the next batch filled. What was
cancelled or is past its deadline is dropped before it costs anything. If a batch fails, its pictures
are run one by one, so that only the culprit's request fails.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import DeadlineExceeded, ImageError, InvalidRequest, NotReady, Overloaded, ServiceError

from .security.rates import charge_images
from .settings import Settings

log = logging.getLogger(__name__)
Result = np.ndarray | ImageError


@dataclass(frozen=True)
class _Work:
    """A decoded picture on its way to the device."""

    crop: np.ndarray
    answer: Future[Result]
    deadline: float


class Engine:
    """Embeds for many callers; has the attributes of its encoder that an `Embedder` promises.

    Args:
        encoder: used by the engine's threads alone.
        settings: max_batch, decode_threads, capacity, deadline_s, stall_s.
    """

    def __init__(self, encoder: Encoder, settings: Settings) -> None:
        self._encoder = encoder
        self._settings = settings
        self.name = encoder.name
        self._permits = settings.capacity
        self._admission = threading.Lock()
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._decoders = ThreadPoolExecutor(settings.decode_threads, thread_name_prefix="decode")
        self._busy_since: float | None = None
        self._closed = False
        self._device = self._start()

    @property
    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    @property
    def embed_dim(self) -> int:
        return self._encoder.embed_dim

    @property
    def encoder(self) -> Encoder:
        return self._encoder

    # ---- asking

    def embed_each(self, images: Iterable[ImageLike]) -> list[Result]:  # type: ignore[override]
        """One entry a picture: its (D,) float32 unit vector, or its ImageError. Blocks; not for the event loop.

        Raises:
            Overloaded: too many pictures are in work.
            DeadlineExceeded: they waited too long.
            NotReady: the engine is closed.
        """
        return [answer.result() for answer in self._admit(list(images))]

    def embed(self, images: Iterable[ImageLike]) -> np.ndarray:  # type: ignore[override]
        """(N, D) float32 unit rows; raises the first ImageError."""
        results = self.embed_each(images)
        for result in results:
            if isinstance(result, ImageError):
                raise result
        return np.stack(results) if results else np.zeros((0, self.embed_dim), np.float32)  # type: ignore[arg-type]

    def tokens(self, images: Iterable[ImageLike]) -> np.ndarray:  # type: ignore[override]
        """(N, h, w, D) float32 feature maps, straight from the encoder: not batched with other requests."""
        return self._encoder.tokens(list(images))

    async def embed_each_async(self, images: Sequence[ImageLike]) -> list[Result]:
        """`embed_each` for the event loop; cancelling it drops what has not begun."""
        answers = self._admit(images)
        try:
            return list(await asyncio.gather(*(asyncio.wrap_future(answer) for answer in answers)))
        except BaseException:
            for answer in answers:
                answer.cancel()
            raise

    # ---- health

    @property
    def healthy(self) -> bool:
        """Whether the device thread lives and its batch is not overdue."""
        since = self._busy_since
        return self._device.is_alive() and (since is None or time.monotonic() - since < self._settings.stall_s)

    def warm_up(self) -> None:
        """One picture through everything."""
        size = self._encoder.transform.preprocessing.input_size
        self.embed([np.zeros((size, size, 3), np.uint8)])

    def close(self) -> None:
        """Takes no more work, finishes what it has, and ends its threads."""
        with self._admission:
            self._closed = True
        self._decoders.shutdown(wait=True)
        self._queue.put(None)
        self._device.join()

    # ---- inside

    def _admit(self, images: Sequence[ImageLike]) -> list[Future[Result]]:
        """Permits for all pictures of a request or for none."""
        charge_images(len(images))
        with self._admission:
            if self._closed:
                raise NotReady("The server is shutting down: try another one, or later.")
            if len(images) > self._settings.capacity:
                raise InvalidRequest(
                    f"{len(images)} pictures at once are too many: send at most {self._settings.capacity}."
                )
            if len(images) > self._permits:
                raise Overloaded("The server has as many pictures in work as it takes: try again in a moment.")
            self._permits -= len(images)
            if not self._device.is_alive():
                log.error("the device thread of %s had died; starting another", self.name)
                self._device = self._start()
        deadline = time.monotonic() + self._settings.deadline_s
        answers: list[Future[Result]] = []
        for image in images:
            answer: Future[Result] = Future()
            answer.add_done_callback(self._give_back)
            answers.append(answer)
            self._decoders.submit(self._decode, image, answer, deadline)
        return answers

    def _give_back(self, _: Future[Result]) -> None:
        with self._admission:
            self._permits += 1

    def _decode(self, image: ImageLike, answer: Future[Result], deadline: float) -> None:
        if answer.cancelled():
            return
        if time.monotonic() > deadline:
            _settle(answer, DeadlineExceeded("The picture waited longer than the deadline: try again later."))
            return
        try:
            crop = self._encoder.prepare(image)
        except ImageError as error:
            _settle(answer, error)
        except Exception as error:
            log.exception("decoding failed")
            _settle(answer, ServiceError(f"Decoding failed ({type(error).__name__})."))
        else:
            self._queue.put(_Work(crop, answer, deadline))

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=f"device of {self.name}", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        more = True
        while more:
            taken = [self._queue.get()]
            while len(taken) < self._settings.max_batch and not self._queue.empty():
                taken.append(self._queue.get())
            more = None not in taken
            batch = [work for work in taken if work is not None and self._still_wanted(work)]
            if batch:
                self._busy_since = time.monotonic()
                self._forward(batch)
                self._busy_since = None

    @staticmethod
    def _still_wanted(work: _Work) -> bool:
        if time.monotonic() > work.deadline:
            _settle(work.answer, DeadlineExceeded("The picture waited longer than the deadline: try again later."))
            return False
        return not work.answer.cancelled()

    def _forward(self, batch: Sequence[_Work]) -> None:
        try:
            vectors = self._encoder.forward_crops(np.stack([work.crop for work in batch]))
        except Exception as error:
            log.exception("a batch of %d failed", len(batch))
            if len(batch) > 1:
                for work in batch:
                    self._forward([work])
                return
            _settle(batch[0].answer, ServiceError(f"The encoder failed on this picture ({type(error).__name__})."))
            return
        for work, vector in zip(batch, vectors, strict=True):
            _settle(work.answer, vector)


def _settle(answer: Future[Result], outcome: np.ndarray | Exception) -> None:
    """Answers, unless the caller has gone; an ImageError is an answer, another error is raised."""
    if not answer.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception) and not isinstance(outcome, ImageError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
