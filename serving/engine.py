"""The engine: batches the images of many callers through one encoder.

    engine = Engine(load_encoder(source), Settings())
    engine.warm_up()
    engine.run([data, more])                              # from a thread
    await engine.run_async([data, more])                  # from the event loop
    engine.close()

A request passes these stages:

    Admission       permits for all images and bytes of the request, or Overloaded with a retry time (limits.py)
    DecodeWorkers   images are decoded in other processes; an unreadable image fails alone (stages.py)
    Device          the one thread that owns the device runs batches, recovers from failed ones, and is replaced when
                    it dies or stalls (stages.py)
    Request         collects the results of its images, and answers once

An idle device starts at once and never waits for a batch to fill. A busy one finds the next batch filled.
The deadline is that of the HTTP request, which cancels its work; see limits.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocessing import EvalTransform
from nnclr_hub.errors import ImageError, NotReady, Overloaded, RequestTooLarge
from nnclr_hub.images.decode import MAX_PIXELS
from nnclr_hub.workbench.privacy import public_name

from .limits import RETRY_S, Admission
from .settings import Settings
from .stages import DecodeWorkers, Device, ImageTask, Request, Result, size_of
from .telemetry import Metrics, current, measured

if TYPE_CHECKING:  # they import torch, which a server needs for its first map only
    from nnclr_hub.encoder.attention.extractor import AttentionExtractor, ImageFeatures, PreparedImage

JOIN_S = 5.0  # for threads that have nothing left to do
IMAGES_PER_CALL = 32  # that a job sends at once: requests get their turn between two calls
CHECK_S = 0.5  # after which a job that waits for its images looks whether it was cancelled
# how the thread of a job waits while the engine is busy: for some seconds, or until it raises
patience: ContextVar[Callable[[float], object] | None] = ContextVar("patience", default=None)
MAX_TOTAL_PIXELS = 3 * MAX_PIXELS  # in all originals of an attention query, which stay in memory until the answer


class Engine:
    """One encoder with its threads; an `Embedder` for the workbench.

    source, name: what it was loaded from; with the reading of images, if that is not the usual one.
    config: the model folder's config.json, if there is one.
    own_transform: whether a function of the user prepares its input, which `preprocessing` does not describe.

    Args:
        encoder: embeds in the engine's threads.
        settings: max_batch, max_wait_ms, decode_threads, capacity, capacity_bytes, stall_s; deadline_s for `close`.
        metrics: receives counts and times.
    """

    def __init__(self, encoder: Encoder, settings: Settings, metrics: Metrics | None = None, source: str = "") -> None:
        self.encoder = encoder
        self.metrics = metrics or Metrics()
        self.source = source or encoder.name
        self.name = encoder.reading.within(self.source)
        self.config, self.reading = encoder.config, encoder.reading
        self.preprocessing = encoder.transform.preprocessing
        self.own_transform = not isinstance(encoder.transform, EvalTransform)
        self.fingerprint, self.embed_dim = encoder.fingerprint, encoder.embed_dim
        self._settings = settings
        self._building: Future[AttentionExtractor] | None = None  # what attention maps need
        # finding the labels that occurred takes longer than counting
        self._counter = cache(partial(self.metrics.images.labels, public_name(encoder.name)))
        self._admission = Admission(settings.capacity, settings.capacity_bytes, self.metrics)
        self._device = Device(encoder, settings, lambda: self.in_work, self.metrics, self._test)
        self._decode_workers = DecodeWorkers(encoder, settings.decode_threads, self._device.queue, self.metrics)

    def embed_each(self, images: Iterable[ImageLike]) -> list[Result]:
        """Return one entry per image: its (D,) float32 unit vector, or its ImageError.

        For jobs: it blocks the thread, and leaves half of the engine to requests; see `Admission.enter`. Where
        `patience` is set, it waits while the engine is busy, and requests get their turn after a few images.
        """
        images, count, pause = list(images), IMAGES_PER_CALL, patience.get()
        results: list[Result] = []
        while len(results) < len(images):
            try:
                results += self.run(images[len(results) : len(results) + count], background=True)
            except RequestTooLarge:  # a few large decoded photos exceed what the engine admits at once
                if count == 1:
                    raise
                count //= 2
            except (Overloaded, NotReady):
                if pause is None:
                    raise
                pause(RETRY_S)
        return results

    async def embed_each_async(self, given: Sequence[ImageLike | ImageError]) -> list[Result]:
        """Return what `embed_each` does, for requests. Cancelling it drops the images that have not started.

        Images that could not be received are ImageErrors already, and stay so. More than a request's usual number of
        images go through the engine in parts, two at a time. The first part is refused if the server is overloaded; the
        others wait for permits.
        """
        settings, images = self._settings, [one for one in given if not isinstance(one, ImageError)]
        # two parts run at a time, and a part of the whole capacity would be refused while another image is in progress
        part = min(settings.max_images, max(1, settings.capacity // 2))
        if len(images) <= part:
            results = await self.run_async(images)
        else:
            results = await self._run_in_parts([images[i : i + part] for i in range(0, len(images), part)])
        left = iter(results)
        return [one if isinstance(one, ImageError) else next(left) for one in given]

    async def _run_in_parts(self, parts: Sequence[Sequence[ImageLike]]) -> list[Result]:
        slots = asyncio.Semaphore(2)  # while the device runs one part, the next one is decoded

        async def run(number: int) -> list[Result]:
            async with slots:
                while True:
                    try:
                        return await self.run_async(parts[number])
                    except Overloaded as error:
                        if number == 0:
                            raise
                        await asyncio.sleep(error.retry_after)

        tasks = [asyncio.create_task(run(number)) for number in range(len(parts))]
        try:
            return [result for task in tasks for result in await task]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def attention_maps_async(
        self, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike] = ()
    ) -> list[AttentionMap]:
        """Return attention maps; see `Encoder.attention_maps`. Too many pixels together raise RequestTooLarge.

        The first call takes seconds, because it builds the network and may import torch. If it is cancelled, the
        building continues for the next one.
        """
        if self._building is None or (self._building.done() and self._building.exception() is not None):
            builder = ThreadPoolExecutor(1, thread_name_prefix="attention")
            self._building = builder.submit(lambda: self.encoder.attention_extractor)
            builder.shutdown(wait=False)
        # all wait here: a thread for each, which cancelling does not free, would leave none to load models
        await _done(self._building, asyncio.get_running_loop())
        extractor, max_side = self._building.result(), self._settings.attention_side
        query = await asyncio.to_thread(AttentionQuery, extractor, max_side, settings, image, targets)
        results = await self.run_async(query.images, query.task)
        return await asyncio.to_thread(query.maps, results)

    def run(self, images: Iterable[ImageLike], task: ImageTask | None = None, *, background: bool = False) -> list[Any]:
        """Return one result per image: its (D,) float32 unit vector, or its ImageError. Blocks the thread.

        Where `patience` is set, it may raise during the wait, which drops the images that have not started.

        Args:
            task: what to do with each image instead of embedding it.
            background: see `Admission.enter`.

        Raises:
            Overloaded: too much is in progress.
            RequestTooLarge: the request exceeds what can ever be in progress.
            NotReady: the engine is closed, or has a fault.
            ServiceError: the encoder failed on an image.
        """
        images = list(images)
        if not images:
            return []
        with measured("embed" if task is None else "map", self.metrics):
            request = self._submit(images, task, background=background)
            try:
                if (pause := patience.get()) is not None:
                    while not wait([request.answer], CHECK_S).done:
                        pause(0)
                return request.answer.result()
            finally:
                request.cancel()  # takes effect only if the wait itself was interrupted, as by Ctrl-C
                _add_timings(request)

    async def run_async(self, images: Sequence[ImageLike], task: ImageTask | None = None) -> list[Any]:
        """Return what `run` does, for the event loop. Cancelling it drops the images that have not started."""
        if not images:
            return []
        with measured("embed" if task is None else "map", self.metrics):
            request = self._submit(images, task)
            try:
                await _done(request.answer, asyncio.get_running_loop())
                return request.answer.result()
            finally:
                request.cancel()
                _add_timings(request)

    @property
    def fault(self) -> str | None:
        """What is wrong, without a full stop; None if all threads work."""
        return self._device.fault

    @property
    def in_work(self) -> int:
        """Images that hold a permit."""
        return self._admission.count

    def warm_up(self) -> None:
        """Send a batch of each size that the backend compiles, then a test image through all stages.

        Raises:
            ServiceError: the encoder fails.
            NotReady: the engine is closed, or a thread failed, or an image takes too long.
        """
        for size in self._device.buckets or (1,):
            batch = self._internal_request(size)
            for item in batch.items:
                item.prepared = item.image
            self._device.queue.put(batch.items)
            self._wait_for(batch)
        self._wait_for(self._test())

    def drain(self) -> None:
        """Refuse new requests, and continue those in progress."""
        self._admission.close()

    def close(self, timeout: float | None = None) -> None:
        """Refuse new requests, finish those in progress, and end the threads.

        Args:
            timeout: seconds after which unfinished requests fail with NotReady; None: a request's deadline.
        """
        self.drain()
        self._admission.wait_until_empty(self._settings.deadline_s if timeout is None else timeout)
        deadline = time.monotonic() + (JOIN_S if timeout is None else min(JOIN_S, timeout))
        self._device.queue.close()  # first: a decoded image must not wait for a device that ends
        self._decode_workers.close(deadline)
        self._device.close(deadline)

    def _submit(self, images: Sequence[ImageLike], task: ImageTask | None, *, background: bool = False) -> Request:
        """Take all permits of a request and send it to the decode workers."""
        if self.fault is not None:
            raise NotReady(f"The server has a fault ({self.fault}); try again in a moment.")
        size = sum(map(size_of, images))
        self._admission.enter(len(images), size, background=background)
        request = Request(
            images,
            task=task,
            on_outcome=lambda outcome: self._counter(outcome).inc(),
            on_empty=lambda: self._admission.leave(len(images), size),
        )
        self._decode_workers.queue.put(request.items)
        return request

    def _internal_request(self, size: int) -> Request:
        """Make a request of blank images, which needs no permits and is not counted."""
        preprocessing = self.encoder.transform.preprocessing
        blank = np.zeros((preprocessing.input_size,) * 2 + (preprocessing.in_chans,), np.uint8)
        return Request([blank] * size)

    def _test(self) -> Request:
        """Send a test image through all stages."""
        request = self._internal_request(1)
        self._decode_workers.queue.put(request.items)
        return request

    def _wait_for(self, request: Request) -> None:
        """Wait for an internal request. No deadline ends it, so a decoder that hangs would end no start."""
        seconds = max(self._settings.deadline_s, self._settings.stall_s)
        wait([request.answer], seconds)
        if not request.answer.done():
            request.cancel()
            raise NotReady(f"The encoder did not embed a blank image within {seconds:g} s.")
        request.answer.result()


async def _done(answer: Future[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Wait until the answer is set. `asyncio.wrap_future` leaves cycles, which only garbage collection frees."""
    done = loop.create_future()

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    def wake_loop(_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(wake)

    answer.add_done_callback(wake_loop)
    await done


def _add_timings(request: Request) -> None:
    """Add the stages of the request to the timings of its HTTP request."""
    if (timings := current.get()) is not None:
        for stage, seconds in tuple(request.seconds.items()):
            timings.add(stage, seconds)


class AttentionQuery:
    """An attention query: its image, then the targets in which it is searched for.

    Decode workers decode the images, and the device thread runs the network, one image between two batches of vectors.
    The caller's thread makes the maps from what the network returned.

    Args:
        extractor: extractor of the encoder.
        max_side: upper limit of `settings.max_side`. Each map reports the side that was used.

    Raises:
        InvalidRequest: the encoder cannot answer the query.
    """

    def __init__(
        self,
        extractor: AttentionExtractor,
        max_side: int,
        settings: AttentionSettings,
        image: ImageLike,
        targets: Sequence[ImageLike] = (),
    ) -> None:
        extractor.check(settings, len(targets))
        self.images = [image, *targets]
        self.task = ImageTask(self._prepare, extractor.forward)
        self._extractor, self._settings, self._image, self._most = extractor, settings, image, max_side
        self._pixels = 0
        self._lock = threading.Lock()

    def maps(self, results: Sequence[ImageFeatures | ImageError]) -> list[AttentionMap]:
        """Return the map of the image, or those of the targets on one scale, from the results of the task.

        Raises:
            ImageError: the first unreadable image; the message names the number of a target.
            InvalidRequest: the network returned NaN or infinity.
        """
        seen: list[ImageFeatures] = []
        for index, one in enumerate(results):
            if isinstance(one, ImageError):
                raise one if index == 0 else one.for_image(self.images[index], index - 1) from one
            seen.append(one)
        return self._extractor.maps(self._settings, seen[0], seen[1:])

    def _prepare(self, image: ImageLike) -> PreparedImage:
        prepared = self._extractor.prepare(
            image, self._settings, has_query=image is self._image, alone=len(self.images) == 1, most=self._most
        )
        width, height = prepared.image.size
        with self._lock:
            self._pixels += width * height
            if self._pixels > MAX_TOTAL_PIXELS:
                raise RequestTooLarge(
                    f"The images have more than {MAX_TOTAL_PIXELS // 10**6} megapixels together; send fewer or smaller "
                    "targets."
                )
        return prepared
