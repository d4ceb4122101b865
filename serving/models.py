"""The models of a server: embedders whose engines are loaded when they are needed.

engines = Engines("nnclr_resnet18_starter", Settings(model_memory="4GB"))
model = engines.get("local-dir:/models/mine")
model.embed_each([data])
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import numpy as np

from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings
from nnclr_hub.encoder.decoding_pool import DecodingLimits, decoding_processes
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocessing import EvalTransform
from nnclr_hub.errors import ImageError, InvalidRequest, ModelError, Overloaded
from nnclr_hub.hub.registry import MODELS, default_model

from .deadline import loading
from .engine import Engine, ImageTask, Result
from .engine.attention import AttentionQuery
from .model_memory import ModelMemory
from .settings import Settings
from .telemetry import Metrics


class Model:
    """An `Embedder` on an engine that may be unloaded and loaded again. A Model stays valid throughout.

    Its errors are those of `Engine.run`, and ModelError if the files of the model changed while it was unloaded.

    config: the model folder's config.json, if there is one.
    preprocessing: of its encoder.
    own_transform: whether a function of the user prepares its input, which `preprocessing` does not describe.

    Args:
        memory: loads the engine.
        source: its name there.
        engine: the loaded engine.
    """

    def __init__(self, memory: ModelMemory, source: str, engine: Engine) -> None:
        encoder = engine.encoder
        self.name = encoder.reading.within(source)
        self._source = source
        self.config = encoder.config
        self.preprocessing = encoder.transform.preprocessing
        self.own_transform = not isinstance(encoder.transform, EvalTransform)
        self._memory = memory
        self.reading = encoder.reading
        self.fingerprint, self.embed_dim = encoder.fingerprint, encoder.embed_dim

    @property
    def heads(self) -> int | None:
        """Number of attention heads that `head` selects from; None for networks without them."""
        with self._memory.held(self._source) as engine:
            return engine.encoder.heads

    # ---- from a thread: images count against the rate of the request that the thread works for

    def embed_each(self, images: Iterable[ImageLike]) -> list[Result]:  # type: ignore[override]
        """Return one entry per image: its (D,) float32 unit vector, or its ImageError."""
        return self._run(images)

    def embed(self, images: Iterable[ImageLike]) -> np.ndarray:  # type: ignore[override]
        """Return (N, D) float32 unit rows; raise the first ImageError."""
        vectors = _require_all(self._run(images))
        return np.stack(vectors) if vectors else np.zeros((0, self.embed_dim), np.float32)

    def tokens(self, images: Iterable[ImageLike]) -> np.ndarray:  # type: ignore[override]
        """Return (N, h, w, D) float32 feature maps; raise the first ImageError."""

        def task(encoder: Encoder) -> ImageTask:
            transform = encoder.transform
            return ImageTask(encoder.prepare, lambda crop: encoder.tokens(transform.normalize(crop[np.newaxis]))[0])

        maps = _require_all(self._run(images, task))
        if not maps:
            raise InvalidRequest("tokens needs at least one image.")
        return np.stack(maps)

    def attention_maps(
        self, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike] = ()
    ) -> list[AttentionMap]:
        """Return attention maps; see `Encoder.attention_maps`. Too many pixels together raise RequestTooLarge."""
        with self._memory.held(self._source) as engine:
            query = self._attention_query(engine, settings, image, targets)
            return query.maps(engine.run(query.images, query.task))

    # ---- from the event loop: the route has counted the images when it read them

    async def embed_each_async(self, images: Sequence[ImageLike]) -> list[Result]:
        """Return what `embed_each` does, for the event loop. Cancelling it drops the images that have not started.

        More than a request's usual number of images go through the engine in parts, two at a time. The first part is
        refused if the server is overloaded; the others wait for permits until the deadline.
        """
        settings = self._memory.settings
        # two parts run at a time, and a part of the whole capacity would be refused while another image is in progress
        part = min(settings.max_images, max(1, settings.capacity // 2))
        async with self._held_async() as engine:
            if len(images) <= part:
                return await engine.run_async(images)
            parts = [images[i : i + part] for i in range(0, len(images), part)]
            return await _run_in_parts(engine, parts, settings.deadline_s)

    async def load_attention_async(self) -> None:
        """Build the network that attention needs, which takes seconds the first time."""
        async with self._held_async() as engine:
            with loading():
                await engine.build_async()

    async def attention_maps_async(
        self,
        settings: AttentionSettings,
        image: ImageLike,
        targets: Sequence[ImageLike] = (),
        *,
        deadline_s: float | None = None,
    ) -> list[AttentionMap]:
        """Return what `attention_maps` does, for the event loop."""
        async with self._held_async() as engine:
            query = await asyncio.to_thread(self._attention_query, engine, settings, image, targets)
            results = await engine.run_async(query.images, query.task, deadline_s=deadline_s)
            return await asyncio.to_thread(query.maps, results)

    # ---- internal

    def _run(self, images: Iterable[ImageLike], task: Callable[[Encoder], ImageTask] | None = None) -> list[Any]:
        images = list(images)
        with self._memory.held(self._source) as engine:
            self._check_same(engine)
            return engine.run(images, task and task(engine.encoder))

    def _attention_query(
        self, engine: Engine, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike]
    ) -> AttentionQuery:
        self._check_same(engine)
        return AttentionQuery(
            engine.encoder.attention_extractor, self._memory.settings.attention_side, settings, image, targets
        )

    @asynccontextmanager
    async def _held_async(self) -> AsyncIterator[Engine]:
        while (engine := self._memory.hold_loaded(self._source)) is None:
            await asyncio.to_thread(self._load)
        try:
            self._check_same(engine)
            yield engine
        finally:
            self._memory.release(self._source)

    def _load(self) -> None:
        with self._memory.held(self._source):
            pass

    def _check_same(self, engine: Engine) -> None:
        """Raise ModelError if the engine was loaded again with other weights."""
        if engine.encoder.fingerprint != self.fingerprint:
            raise ModelError("The files of this model changed while it was unloaded; repeat the request.")


class Engines:
    """The models of a server, as many of them in memory as fit.

    Args:
        default: source of the default model; None means the best starter.
        settings: for the engines, and model_memory.
        metrics: receives counts and times.
        load, weigh: see `ModelMemory`.
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
        self.metrics = metrics or Metrics()
        self._memory = ModelMemory(settings, self.metrics, load, weigh)
        # from here on, this process decodes no image itself
        self._decoding = ExitStack()
        limits = DecodingLimits(settings.decode_cpu_s, settings.decode_memory)
        killed = lambda reason: self.metrics.decoders_killed.labels(reason).inc()  # noqa: E731
        self._decoding.enter_context(decoding_processes(settings.decode_threads, limits, killed))

    def get(self, source: str | None = None) -> Model:
        """Return the model of a source. Block while it loads; other models continue.

        Raises:
            ModelError: the model is unavailable, or larger than the memory for models.
            Overloaded: that memory is full of models that are in use.
        """
        source = source or self.default
        with self._memory.held(source) as engine:
            return Model(self._memory, source, engine)

    def loaded(self, source: str) -> Model | None:
        """Return the model of a source if it is in memory."""
        engine = self._memory.hold_loaded(source)
        if engine is None:
            return None
        try:
            return Model(self._memory, source, engine)
        finally:
            self._memory.release(source)

    async def get_async(self, source: str | None = None) -> Model:
        """Return what `get` does, for the event loop."""
        source = source or self.default
        return self.loaded(source) or await asyncio.to_thread(self.get, source)

    def by_fingerprint(self, fingerprint: str) -> Model | None:
        """Return the model with this fingerprint if it was ever loaded, from whatever source."""
        for source, known in self._memory.fingerprints.items():
            if known == fingerprint:
                return self.get(source)
        return None

    def served(self) -> list[str]:
        """Return the sources that requests may name: the default, those ever loaded, and the published encoders."""
        published = (name for name, model in MODELS.items() if model.available)
        return list(dict.fromkeys([self.default, *self._memory.fingerprints, *published]))

    @property
    def fault(self) -> str | None:
        """What is wrong with any model; None if all threads work."""
        return "; ".join(engine.fault for engine in self._memory.engines if engine.fault is not None) or None

    @property
    def default_works(self) -> bool:
        """Whether the default model has no fault. Faults of other models do not make the server unready."""
        engine = self._memory.engine(self.default)
        return engine is None or engine.fault is None

    @property
    def in_work(self) -> int:
        """Images that hold a permit."""
        return sum(engine.in_work for engine in self._memory.engines)

    def close(self, timeout: float | None = None) -> None:
        """Finish what is in progress, and end every engine; see `Engine.close`."""
        self._memory.close(timeout)
        self._decoding.close()


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


def _require_all(results: list[Any]) -> list[Any]:
    """Return the results; raise the first ImageError among them."""
    for result in results:
        if isinstance(result, ImageError):
            raise result
    return results
