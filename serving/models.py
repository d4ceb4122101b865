"""The models of a server: engines that are loaded when they are needed, and the uploads that they embed.

engines = Engines("nnclr_resnet18_starter", Settings())
engine = engines.get("local-dir:/models/mine")      # loads it, while others continue
engine.embed_each([data])
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import cast

import numpy as np
from anyio import CapacityLimiter, to_thread

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ImageError, StoreError
from nnclr_hub.hub.registry import MODELS, default_model
from nnclr_hub.hub.sources import recorded_source, split_reading
from nnclr_hub.images.pool import DecodingLimits, decoding_processes
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.workbench import AddRequest, NewImage, Workbench
from nnclr_hub.workbench.ingestion import read_image, with_vector

from .engine import Engine
from .limits import dropped_if_disconnected, loading, shutting_down
from .settings import Settings
from .telemetry import Metrics, note_change

log = logging.getLogger(__name__)
WRITERS = 8  # uploads that write or wait for a model at once


class Engines:
    """The models of a server. Requests may name the default, those ever loaded, and the published encoders.

    Args:
        default: source of the default model; None means the best starter.
        settings: for the engines.
        metrics: receives counts and times.
        load: makes the encoder of a source; by default `load_encoder` with the backend of the settings.
    """

    def __init__(
        self,
        default: str | None,
        settings: Settings,
        metrics: Metrics | None = None,
        *,
        load: Callable[[str], Encoder] | None = None,
    ) -> None:
        self.default = default or default_model()
        self.metrics = metrics or Metrics()
        self._settings = settings
        # looked up on the disk once: requests ask for the names of all models
        self._published = [name for name, model in MODELS.items() if model.available]
        self._load = load or partial(load_encoder, backend=settings.backend)
        self._engines: dict[str, Engine] = {}  # by source
        self._loading: dict[str, Future[Engine]] = {}
        self._lock = threading.Lock()
        self._closed = False
        # from here on, this process decodes no image itself
        self._decoding = ExitStack()
        limits = DecodingLimits(settings.decode_cpu_s, settings.decode_memory)
        killed = lambda reason: self.metrics.decoders_killed.labels(reason).inc()  # noqa: E731
        self._decoding.enter_context(decoding_processes(settings.decode_threads, limits, killed))

    def get(self, source: str | None = None) -> Engine:
        """Return the engine of a source. Block while it loads; other models continue.

        Raises:
            ModelError: the encoder is unavailable. The next caller tries again.
            ModelFilesMissing: the source, which may come from a stored job, is a file of Python that the server was not
                started with.
            NotReady: the server is shutting down.
        """
        source = source or self.default
        if split_reading(source)[0] != split_reading(self.default)[0]:
            recorded_source(source, "this collection, probe or job")
        with self._lock:
            if source in self._engines:
                return self._engines[source]
            is_first = source not in self._loading
            future = self._loading.setdefault(source, Future())
        with loading():
            if is_first:
                try:
                    future.set_result(self._start(source))
                except BaseException as error:  # noqa: BLE001  # waiting callers must see any error
                    future.set_exception(error)
                with self._lock:
                    del self._loading[source]
            return future.result()

    async def get_async(self, source: str | None = None) -> Engine:
        """Return what `get` does, for the event loop."""
        return self.loaded(source or self.default) or await asyncio.to_thread(self.get, source)

    def loaded(self, source: str) -> Engine | None:
        """Return the engine of a source if it is in memory."""
        return self._engines.get(source)

    def by_fingerprint(self, fingerprint: str) -> Engine | None:
        """Return the engine with this fingerprint if it is in memory, from whatever source."""
        return next((engine for engine in self.engines if engine.fingerprint == fingerprint), None)

    def served(self) -> list[str]:
        """Return the sources that requests may name."""
        with self._lock:
            return list(dict.fromkeys([self.default, *self._engines, *self._published]))

    @property
    def engines(self) -> list[Engine]:
        """The engines in memory."""
        with self._lock:
            return list(self._engines.values())

    @property
    def fault(self) -> str | None:
        """What is wrong with any model; None if all threads work."""
        return "; ".join(engine.fault for engine in self.engines if engine.fault is not None) or None

    @property
    def default_works(self) -> bool:
        """Whether the default model has no fault. Faults of other models do not make the server unready."""
        engine = self.loaded(self.default)
        return engine is None or engine.fault is None

    @property
    def in_work(self) -> int:
        """Images that hold a permit."""
        return sum(engine.in_work for engine in self.engines)

    def close(self, timeout: float | None = None) -> None:
        """Refuse new work in all engines, then finish what is in progress and end them; see `Engine.close`."""
        with self._lock:
            self._closed = True
        for engine in self.engines:
            engine.drain()
        for engine in self.engines:
            engine.close(timeout)
        self._decoding.close()

    def _start(self, source: str) -> Engine:
        if self._closed:
            raise shutting_down()
        engine = Engine(self._load(source), self._settings, self.metrics, source)
        try:
            engine.warm_up()
            with self._lock:
                if self._closed:
                    raise shutting_down()
                self._engines[source] = engine
        except BaseException:
            engine.close(0)
            raise
        self.metrics.models_loaded.inc()
        log.info("%s loaded on %s", source, engine.encoder.backend.name)
        return engine


# ---- add images


class Ingest:
    """Add uploaded images to collections: the embedding is awaited, threads only decode and write.

    It has separate threads, so that requests that only read never wait for decoding or for the disk.

    Args:
        threads: number of images decoded at once, for thumbnails and hashes.
    """

    def __init__(self, threads: int) -> None:
        self._decoders = CapacityLimiter(threads)
        self.writers = CapacityLimiter(WRITERS)

    async def add(self, bench: Workbench, name: str, images: AddRequest) -> list[ImageError | None]:
        """Add images as `Workbench.add_images` does; stop before the write if the client disconnects.

        Raises:
            CollectionNotFound, FingerprintMismatch, RequestTooLarge, Overloaded, NotReady, DeadlineExceeded.
            ClientDisconnect: the client has disconnected.
        """
        collection, model = await to_thread.run_sync(_target, bench, name, limiter=self.writers)
        with dropped_if_disconnected():
            items = await self._embed(images.images, model)

        def add() -> list[ImageError | None]:
            errors = bench.add_images(name, images, embedded=(collection, items))
            note_changes(bench, name, errors.count(None))
            return errors

        return await to_thread.run_sync(add, limiter=self.writers)

    async def _embed(self, images: Sequence[NewImage], model: Engine) -> list[Item | ImageError]:
        """Embed and decode the images. The engine comes first, because it may refuse the request."""
        vectors = await model.embed_each_async([image.image for image in images])

        async def item(image: NewImage, vector: np.ndarray | ImageError) -> Item | ImageError:
            if isinstance(vector, ImageError):
                return vector
            read = partial(read_image, image, model.reading, with_image=False)
            result = await to_thread.run_sync(read, limiter=self._decoders)
            return with_vector(result, vector, model.name)

        return await asyncio.gather(*map(item, images, vectors))


def _target(bench: Workbench, name: str) -> tuple[Collection, Engine]:
    bench.store.refuse_if_read_only()
    collection = bench.collection(name)
    return collection, cast(Engine, bench.embedder_of(collection))


def note_changes(bench: Workbench, name: str, count: int) -> None:
    """Record a write for the log. The collection may have been dropped since, but the write was answered."""
    seconds = 0.0
    with suppress(StoreError):
        seconds = bench.collection(name).statistics().commit_seconds
    note_change(count, seconds)
