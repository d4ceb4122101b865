"""Engine: embeds for many callers at once.

engine = Engine(load_encoder(source), Settings())
engine.warm_up()
engine.embed_each([data, more])                              # from a thread
await engine.embed_each_async([data, more], deadline_s=2)    # from the event loop
engine.close()
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nnclr_hub.encoder.attending import Attends
from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import ImageError, InvalidRequest, NotReady
from nnclr_hub.workbench.privacy import public_name

from ..settings import Settings
from ..telemetry import Metrics, current, measured
from .admission import Admission, size_of
from .attention import AttentionQuery
from .batch_queue import BatchQueue
from .decode_workers import DecodeWorkers
from .device_thread import DeviceThread
from .request import Request, Result, Task
from .watchdog import Watchdog
from .worker_pool import shut_down

JOIN_S = 5.0  # for threads that have nothing left to do


class Engine(Attends):
    """See the package; has the attributes of its encoder that an `Embedder` promises.

    Args:
        encoder: embeds in the engine's threads.
        settings: max_batch, max_wait_ms, decode_threads, capacity, capacity_bytes, deadline_s, stall_s.
        metrics: filled; None: nobody looks.
    """

    def __init__(self, encoder: Encoder, settings: Settings, metrics: Metrics | None = None) -> None:
        self.name = encoder.name
        self._encoder = encoder
        self._settings = settings
        self._metrics = metrics or Metrics()
        look = threading.Event()
        self._admission = Admission(settings.capacity, settings.capacity_bytes, self._metrics)
        self._device = DeviceThread(encoder, settings.max_batch, settings.max_wait_ms / 1000, self._metrics, look)
        self._decoding = DecodeWorkers(encoder, settings.decode_threads, self._device.line, self._metrics, look)
        self._watchdog = Watchdog(
            self.name, self._decoding, self._device, settings.stall_s, self._metrics, look, lambda: self._test().answer
        )

    @property
    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    @property
    def embed_dim(self) -> int:
        return self._encoder.embed_dim

    @property
    def heads(self) -> int | None:
        return self._encoder.heads

    @property
    def encoder(self) -> Encoder:
        return self._encoder

    # ---- asking

    def embed_each(self, images: Iterable[ImageLike], *, deadline_s: float | None = None) -> list[Result]:  # type: ignore[override]
        """One entry an image: its (D,) float32 unit vector, or its ImageError. Blocks; not for the event loop.

        Args:
            deadline_s: seconds after which the caller wants no answer; at most the server's own.

        Raises:
            Overloaded: too much is in work.
            RequestTooLarge: it is more than ever can be.
            DeadlineExceeded: it was not done in time.
            NotReady: the engine is closed, or ill.
            ServiceError: the encoder failed on an image.
        """
        return self.each(images, deadline_s=deadline_s)

    def embed(self, images: Iterable[ImageLike]) -> np.ndarray:  # type: ignore[override]
        """(N, D) float32 unit rows; raises the first ImageError."""
        vectors = _good(self.each(images))
        return np.stack(vectors) if vectors else np.zeros((0, self.embed_dim), np.float32)

    async def embed_each_async(self, images: Sequence[ImageLike], *, deadline_s: float | None = None) -> list[Result]:
        """`embed_each` for the event loop, which hears of a request once; cancelling it drops what has not begun."""
        return await self.each_async(images, deadline_s=deadline_s)

    def tokens(self, images: Iterable[ImageLike]) -> np.ndarray:  # type: ignore[override]
        """(N, h, w, D) float32 feature maps; raises the first ImageError."""
        transform = self._encoder.transform
        errand = Task(
            self._encoder.prepare, lambda crop: self._encoder.tokens(transform.normalise(crop[np.newaxis]))[0]
        )
        maps = _good(self.each(images, errand))
        if not maps:
            raise InvalidRequest("No image was given: tokens needs at least one.")
        return np.stack(maps)

    def look(
        self, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike] = ()
    ) -> list[AttentionMap]:
        """See `Attends.look`; also raises what `embed_each` does, and RequestTooLarge of too many pixels together."""
        looking = AttentionQuery(self._encoder.looker, self._settings.attention_side, settings, image, targets)
        return looking.maps(self.each(looking.pictures, looking.errand))

    async def look_async(
        self,
        settings: AttentionSettings,
        image: ImageLike,
        targets: Sequence[ImageLike] = (),
        *,
        deadline_s: float | None = None,
    ) -> list[AttentionMap]:
        """`look` for the event loop."""
        looking = AttentionQuery(self._encoder.looker, self._settings.attention_side, settings, image, targets)
        seen = await self.each_async(looking.pictures, looking.errand, deadline_s=deadline_s)
        return await asyncio.to_thread(looking.maps, seen)

    def each(
        self, images: Iterable[ImageLike], errand: Task | None = None, *, deadline_s: float | None = None
    ) -> list[Any]:
        """`embed_each`, of whatever is wanted of each image; None: its vector."""
        images = list(images)
        if not images:
            return []
        with measured(self._metrics, _stage(errand)):
            request = self._submit(images, errand, deadline_s)
            try:
                return request.answer.result(request.remaining)
            except TimeoutError:
                request.expire()
                return request.answer.result()
            finally:
                request.answer.cancel()  # of use where the wait itself was broken off
                _tell(request)

    async def each_async(
        self, images: Sequence[ImageLike], errand: Task | None = None, *, deadline_s: float | None = None
    ) -> list[Any]:
        """`embed_each_async`, of whatever is wanted of each image; None: its vector."""
        if not images:
            return []
        with measured(self._metrics, _stage(errand)):
            request = self._submit(images, errand, deadline_s)
            timer = asyncio.get_running_loop().call_later(request.remaining, request.expire)
            try:
                return await asyncio.wrap_future(request.answer)
            finally:
                timer.cancel()
                _tell(request)

    # ---- health

    @property
    def illness(self) -> str | None:
        """What is wrong, in a sentence without a full stop; None: all its threads work."""
        return self._watchdog.illness

    @property
    def healthy(self) -> bool:
        return self.illness is None

    @property
    def in_work(self) -> int:
        """Images that hold a permit."""
        return self._admission.images

    def warm_up(self) -> None:
        """A batch of every size that the backend is compiled for, else one image, through everything.

        Raises:
            ServiceError: the encoder fails.
            NotReady: the engine is closed, or a thread failed over it.
        """
        for size in self._device.buckets or (1,):
            batch = self._inner_request([self._blank] * size)
            for work in batch.works:
                work.crop = self._blank
            _send(self._device.line, batch)
            batch.answer.result()
        self._test().answer.result()

    def drain(self) -> None:
        """Takes no more work, and goes on with what it has."""
        self._admission.close()

    def close(self, timeout: float | None = None) -> None:
        """Takes no more work, finishes what it has, and ends its threads.

        Args:
            timeout: seconds after which what is still in work fails with NotReady; None: until every deadline
                has passed.
        """
        self.drain()
        patience = self._settings.deadline_s if timeout is None else timeout
        self._admission.wait_until_empty(patience)
        self._watchdog.close()
        deadline = time.monotonic() + JOIN_S if timeout is None else time.monotonic() + min(JOIN_S, timeout)
        for line in (self._decoding.line, self._device.line):
            line.close()
            for work in line.clear():
                work.fail(shut_down())
        self._decoding.crew.close(deadline)
        self._device.crew.close(deadline)

    # ---- inside

    @property
    def _blank(self) -> np.ndarray:
        size = self._encoder.transform.preprocessing.input_size
        return np.zeros((size, size, 3), np.uint8)

    def _submit(self, images: Sequence[ImageLike], errand: Task | None, deadline_s: float | None) -> Request:
        """A request with all its permits, on its way."""
        seconds = self._settings.deadline_s
        if deadline_s is not None:
            if not deadline_s > 0:
                raise InvalidRequest(f"A deadline of {deadline_s} s is none: give seconds above 0, or leave it out.")
            seconds = min(seconds, deadline_s)
        if self.illness is not None:
            raise NotReady(f"The server is not well ({self.illness}): try again in a moment.")
        size = sum(map(size_of, images))
        self._admission.enter(len(images), size)
        outcomes = self._metrics.images
        request = Request(
            images,
            time.monotonic() + seconds,
            errand=errand,
            counted=lambda outcome: outcomes.labels(public_name(self.name), outcome).inc(),
            withdrawn=self._withdraw,
            gone=lambda: self._admission.leave(len(images), size),
        )
        _send(self._decoding.line, request)
        return request

    def _inner_request(self, images: Sequence[ImageLike]) -> Request:
        """A request of the engine's own, that needs no permits and is not counted."""
        deadline = time.monotonic() + max(self._settings.deadline_s, self._settings.stall_s)
        return Request(images, deadline, counted=lambda _: None, withdrawn=self._withdraw, gone=lambda: None)

    def _test(self) -> Request:
        """An image on its way through everything."""
        request = self._inner_request([self._blank])
        _send(self._decoding.line, request)
        return request

    def _withdraw(self, request: Request) -> None:
        """A request that is over leaves the lines."""
        for line in (self._decoding.line, self._device.line):
            for work in line.forget(request):
                work.drop()


def _stage(errand: Task | None) -> str:
    return "embed" if errand is None else "map"


def _good(results: list[Any]) -> list[Any]:
    """The results; raises the first ImageError among them."""
    for result in results:
        if isinstance(result, ImageError):
            raise result
    return results


def _send(line: BatchQueue, request: Request) -> None:
    if not line.put(request.works):
        for work in request.works:
            work.fail(shut_down())


def _tell(request: Request) -> None:
    """Adds the request's stages to the timings of the HTTP request that it belongs to."""
    timings = current.get()
    if timings is not None:
        for stage, seconds in request.seconds.items():
            timings.add(stage, seconds)
