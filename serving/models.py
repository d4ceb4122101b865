"""The models of a server: embedders whose engines are loaded when they are needed, as many as fit into memory.

engines = Engines("nnclr_resnet18_starter", Settings(model_memory="4GB"))
model = engines.get("local-dir:/models/mine")       # loads it, while others continue
model.embed_each([data])
with model.held() as engine:                        # stays in memory
    engine.run([data])

Of the engines that nobody holds, the one that was released first is unloaded, and loads again when it is needed.
Space is reserved by the size of the weights file before a model loads, and corrected when the memory of its backend is
known.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import count
from typing import cast

import numpy as np
from anyio import CapacityLimiter, to_thread
from fastapi import Request

from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.encoder.preprocessing import EvalTransform
from nnclr_hub.errors import ImageError, ModelError, Overloaded, StoreError
from nnclr_hub.hub.registry import MODELS, default_model
from nnclr_hub.hub.sources import PYTHON, resolve, split_appended
from nnclr_hub.images.pool import DecodingLimits, decoding_processes
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.workbench import AddRequest, NewImage, Workbench
from nnclr_hub.workbench.ingestion import read_image, with_vector

from .engine import AttentionQuery, Engine
from .limits import loading, shutting_down, while_connected
from .settings import Settings
from .stages import Result
from .telemetry import Metrics, note_change

log = logging.getLogger(__name__)
WRITERS = 8  # uploads that write or wait for a model at once


class Model:
    """A model and, while it is in memory, its engine. A Model stays valid when the engine is unloaded.

    Its errors are those of `Engine.run`, and ModelError if the files of the model changed while it was unloaded.

    config: the model folder's config.json, if there is one.
    own_transform: whether a function of the user prepares its input, which `preprocessing` does not describe.
    released: increases with each release, so that the smallest is the least recently used.
    size: bytes that are reserved for its weights.
    """

    def __init__(self, source: str, engines: Engines) -> None:
        self.source = self.name = source
        self.fingerprint = ""  # until it was loaded once, as the other facts
        self._engines = engines
        self.engine: Engine | None = None
        self.loading: Future[Engine] | None = None
        self.holders = self.released = self.size = 0

    def start(self, engine: Engine) -> None:
        """Take over a loaded engine, and the facts of its encoder."""
        encoder = engine.encoder
        self.name = encoder.reading.within(self.source)
        self.config, self.reading = encoder.config, encoder.reading
        self.preprocessing = encoder.transform.preprocessing
        self.own_transform = not isinstance(encoder.transform, EvalTransform)
        self.fingerprint, self.embed_dim = encoder.fingerprint, encoder.embed_dim
        self.engine = engine

    @contextmanager
    def held(self) -> Iterator[Engine]:
        """Hold the engine in memory. Blocks while it loads.

        Raises:
            ModelError: the encoder is unavailable, has changed, or is larger than the memory for models.
            Overloaded: that memory is full of models that are in use.
        """
        engine = self._engines.hold(self)
        try:
            yield engine
        finally:
            self._engines.release(self)

    @asynccontextmanager
    async def held_async(self) -> AsyncIterator[Engine]:
        """Hold the engine, for the event loop."""
        while (engine := self._engines.hold_loaded(self)) is None:
            await asyncio.to_thread(self._engines.get, self.source)  # another model may unload it before it is held
        try:
            yield engine
        finally:
            self._engines.release(self)

    def embed_each(self, images: Iterable[ImageLike]) -> list[Result]:
        """Return one entry per image: its (D,) float32 unit vector, or its ImageError.

        For jobs: it blocks the thread, and leaves half of the engine to requests; see `Admission.enter`.
        """
        with self.held() as engine:
            return engine.run(list(images), background=True)

    async def embed_each_async(self, given: Sequence[ImageLike | ImageError]) -> list[Result]:
        """Return what `embed_each` does, for requests. Cancelling it drops the images that have not started.

        Images that could not be received are ImageErrors already, and stay so.

        More than a request's usual number of images go through the engine in parts, two at a time. The first part is
        refused if the server is overloaded; the others wait for permits until the deadline.
        """
        settings, images = self._engines.settings, [one for one in given if not isinstance(one, ImageError)]
        # two parts run at a time, and a part of the whole capacity would be refused while another image is in progress
        part = min(settings.max_images, max(1, settings.capacity // 2))
        async with self.held_async() as engine:
            if len(images) <= part:
                results = await engine.run_async(images)
            else:
                parts = [images[i : i + part] for i in range(0, len(images), part)]
                results = await _run_in_parts(engine, parts, settings.deadline_s)
        left = iter(results)
        return [one if isinstance(one, ImageError) else next(left) for one in given]

    async def load_attention_async(self) -> int | None:
        """Build the network that attention needs, which takes seconds the first time.

        Returns:
            Number of attention heads that `head` selects from; None for networks without them.
        """
        async with self.held_async() as engine:
            with loading():
                await engine.build_async()
            return engine.encoder.heads

    async def attention_maps_async(
        self,
        settings: AttentionSettings,
        image: ImageLike,
        targets: Sequence[ImageLike] = (),
        *,
        deadline_s: float | None = None,
    ) -> list[AttentionMap]:
        """Return attention maps; see `Encoder.attention_maps`. Too many pixels together raise RequestTooLarge."""
        async with self.held_async() as engine:
            max_side = self._engines.settings.attention_side
            make = partial(AttentionQuery, engine.encoder.attention_extractor, max_side, settings, image, targets)
            query = await asyncio.to_thread(make)
            results = await engine.run_async(query.images, query.task, deadline_s=deadline_s)
            return await asyncio.to_thread(query.maps, results)


class Engines:
    """The models of a server.

    Args:
        default: source of the default model; None means the best starter.
        settings: for the engines, and model_memory.
        metrics: receives counts and times.
        load: makes the encoder of a source; by default `load_encoder` with the backend of the settings.
        weigh: returns the bytes that a source takes at least; by default `weight_of`.
    """

    def __init__(
        self,
        default: str | None,
        settings: Settings,
        metrics: Metrics | None = None,
        *,
        load: Callable[[str], Encoder] | None = None,
        weigh: Callable[[str], int] | None = None,
    ) -> None:
        self.default = default or default_model()
        self.settings = settings
        self.metrics = metrics or Metrics()
        # looked up on the disk once: requests ask for the names of all models
        self._published = [name for name, model in MODELS.items() if model.available]
        self._load = load or partial(load_encoder, backend=settings.backend)
        self._weigh = weigh or weight_of
        self._models: dict[str, Model] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._releases = count(1)
        self._closed = False
        # from here on, this process decodes no image itself
        self._decoding = ExitStack()
        limits = DecodingLimits(settings.decode_cpu_s, settings.decode_memory)
        killed = lambda reason: self.metrics.decoders_killed.labels(reason).inc()  # noqa: E731
        self._decoding.enter_context(decoding_processes(settings.decode_threads, limits, killed))

    def get(self, source: str | None = None) -> Model:
        """Return the model of a source. Block while it loads; other models continue. Errors: see `Model.held`."""
        source = source or self.default
        with self._lock:
            model = self._models.setdefault(source, Model(source, self))
        with model.held():
            return model

    async def get_async(self, source: str | None = None) -> Model:
        """Return what `get` does, for the event loop."""
        return self.loaded(source or self.default) or await asyncio.to_thread(self.get, source)

    def loaded(self, source: str) -> Model | None:
        """Return the model of a source if it is in memory."""
        model = self._models.get(source)
        return model if model is not None and model.engine is not None else None

    def by_fingerprint(self, fingerprint: str) -> Model | None:
        """Return the model with this fingerprint if it was ever loaded, from whatever source."""
        with self._lock:
            found = [model for model in self._models.values() if model.fingerprint == fingerprint]
        return self.get(min(found, key=lambda model: model.engine is None).source) if found else None

    def served(self) -> list[str]:
        """Return the sources that requests may name: the default, those ever loaded, and the published encoders."""
        with self._lock:
            ever_loaded = [source for source, model in self._models.items() if model.fingerprint]
        return list(dict.fromkeys([self.default, *ever_loaded, *self._published]))

    @property
    def engines(self) -> list[Engine]:
        """The engines in memory."""
        with self._lock:
            return [model.engine for model in self._models.values() if model.engine is not None]

    @property
    def fault(self) -> str | None:
        """What is wrong with any model; None if all threads work."""
        return "; ".join(engine.fault for engine in self.engines if engine.fault is not None) or None

    @property
    def default_works(self) -> bool:
        """Whether the default model has no fault. Faults of other models do not make the server unready."""
        model = self.loaded(self.default)
        return model is None or model.engine is None or model.engine.fault is None

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

    # ---- memory

    def hold_loaded(self, model: Model) -> Engine | None:
        """Return the engine of a model if it is in memory, held until `release`."""
        with self._lock:
            model.holders += model.engine is not None
            return model.engine

    def release(self, model: Model) -> None:
        """Undo one hold."""
        with self._lock:
            model.holders -= 1
            model.released = next(self._releases)

    def hold(self, model: Model) -> Engine:
        """Load the engine of a model, or wait while another thread does; held until `release`."""
        with self._lock:
            model.holders += 1
            if model.engine is not None:
                return model.engine
            is_first = model.loading is None
            future = model.loading = model.loading or Future()
        try:
            with loading():
                if is_first:
                    self._fill(model, future)
                return future.result()
        except BaseException:
            self.release(model)
            raise

    def _fill(self, model: Model, future: Future[Engine]) -> None:
        """Load for all callers that wait. A failure is raised in each of them; the next caller tries again."""
        try:
            engine = self._start(model)
        except BaseException as error:  # noqa: BLE001  # waiting callers must see any error
            with self._lock:
                model.loading = None
            future.set_exception(error)
            return
        changed = model.fingerprint not in ("", engine.encoder.fingerprint)
        with self._lock:
            model.loading = None
            if changed:  # requests that use the old one must not get vectors of other weights
                old, model = model, Model(model.source, self)
                self._models[model.source], model.size, old.size = model, old.size, 0
            model.start(engine)
        if changed:
            message = "The files of this model changed while it was unloaded; repeat the request."
            future.set_exception(ModelError(message))
        else:
            future.set_result(engine)

    def _start(self, model: Model) -> Engine:
        self._check_open()
        model.size = 0
        try:
            self._reserve(model, self._weigh(model.source))
            encoder = self._load(model.source)
            self._reserve(model, encoder.weight_bytes + (encoder.backend.memory or 0))
            engine = Engine(encoder, self.settings, self.metrics)
            try:
                engine.warm_up()
                self._check_open()
            except BaseException:
                engine.close(0)
                raise
        except BaseException:
            with self._lock:
                self._account(-model.size)
            raise
        self.metrics.models_loaded.inc()
        log.info("%s loaded on %s", model.source, encoder.backend.name)
        return engine

    def _check_open(self) -> None:
        if self._closed:
            raise shutting_down()

    def _reserve(self, model: Model, size: int) -> None:
        """Reserve memory for a model in place of what it has, and unload idle models if needed."""
        limit = self.settings.model_memory
        if limit is not None and size > limit:
            raise ModelError(
                f"The model takes {size:,} bytes and NNCLR_MODEL_MEMORY is {limit:,}; raise it to load this model."
            )
        unloaded: list[Engine] = []
        with self._lock:
            idle = sorted(
                (one for one in self._models.values() if one.engine and not one.holders), key=lambda one: one.released
            )
            more = size - model.size
            # check first: unloading models does not help if the rest is still too large
            if limit is not None and self._bytes - sum(one.size for one in idle) + more > limit:
                raise Overloaded("The memory for models is full of models that are in use; try again in a moment.")
            for one in idle:
                if limit is not None and self._bytes + more > limit and one.engine is not None:
                    unloaded.append(one.engine)
                    one.engine = None
                    self._account(-one.size)
            self._account(more)
            model.size = size
        for engine in unloaded:
            log.info("%s unloaded to make space for %s", engine.encoder.name, model.source)
            self.metrics.evictions.inc()
            self.metrics.models_loaded.dec()
            engine.close()
        if unloaded:
            gc.unfreeze()  # `run` freezes all objects at the start; the unloaded weights must be collected again

    def _account(self, size: int) -> None:
        self._bytes += size
        self.metrics.model_bytes.inc(size)


def weight_of(source: str) -> int:
    """Return the bytes of a source's weights file, downloaded if needed; 0 for random weights and the user's own code.

    Raises:
        ModelError: the source is unavailable.
    """
    plain = split_appended(source)[0]
    if plain.startswith(PYTHON):
        return 0
    found = resolve(plain)
    if found.folder is None or found.seed is not None:
        return 0
    return (found.folder / found.weights).stat().st_size


async def _run_in_parts(engine: Engine, parts: Sequence[Sequence[ImageLike]], seconds: float) -> list[Result]:
    """Return the results of all parts in order."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    slots = asyncio.Semaphore(2)  # while the device runs one part, the next one is decoded

    async def run(number: int) -> list[Result]:
        async with slots:
            while True:
                left = max(0.001, deadline - loop.time())
                try:
                    return await engine.run_async(parts[number], deadline_s=left)
                except Overloaded as error:
                    if number == 0 or left <= error.retry_after:
                        raise
                    await asyncio.sleep(error.retry_after)

    tasks = [asyncio.create_task(run(number)) for number in range(len(parts))]
    try:
        return [result for task in tasks for result in await task]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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

    async def add(self, request: Request, bench: Workbench, name: str, images: AddRequest) -> list[ImageError | None]:
        """Add images as `Workbench.add_images` does; stop before the write if the client disconnects.

        Raises:
            CollectionNotFound, FingerprintMismatch, RequestTooLarge, Overloaded, NotReady, DeadlineExceeded.
            ClientDisconnect: the client has disconnected.
        """
        collection, model = await to_thread.run_sync(_target, bench, name, limiter=self.writers)
        items = await while_connected(request, self._embed(images.images, model))

        def add() -> list[ImageError | None]:
            errors = bench.add_images(name, images, embedded=(collection, items))
            note_changes(bench, name, errors.count(None))
            return errors

        return await to_thread.run_sync(add, limiter=self.writers)

    async def _embed(self, images: Sequence[NewImage], model: Model) -> list[Item | ImageError]:
        """Embed and decode the images. The engine comes first, because it may refuse the request."""
        vectors = await model.embed_each_async([image.image for image in images])

        async def item(image: NewImage, vector: np.ndarray | ImageError) -> Item | ImageError:
            if isinstance(vector, ImageError):
                return vector
            read = partial(read_image, image, model.reading, with_image=False)
            result = await to_thread.run_sync(read, limiter=self._decoders)
            return with_vector(result, vector, model.name)

        return await asyncio.gather(*map(item, images, vectors))


def _target(bench: Workbench, name: str) -> tuple[Collection, Model]:
    bench.store.refuse_if_read_only()
    collection = bench.collection(name)
    return collection, cast(Model, bench.embedder_of(collection))


def note_changes(bench: Workbench, name: str, count: int) -> None:
    """Record a write for the log. The collection may have been dropped since, but the write was answered."""
    seconds = 0.0
    with suppress(StoreError):
        seconds = bench.collection(name).statistics().commit_seconds
    note_change(count, seconds)
