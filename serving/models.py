"""Models by source: what the server's workbench takes its embedders from.

engines = Engines("nnclr_resnet18_small_cpu_starter", Settings(model_memory="4GB"))
model = engines.get("local-dir:/models/mine")
model.embed_each([data])
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np

from nnclr_hub.encoder.attending import Attends
from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import ModelError
from nnclr_hub.hub.registry import MODELS, default_model

from .edge.rate_limits import charge_images
from .engine import Engine, Result, Task
from .model_memory import ModelMemory
from .settings import Settings
from .telemetry import Metrics


class Model(Attends):
    """An `Embedder` whose engine may go out of memory and come back: good for as long as anybody wants.

    config: the model folder's config.json, if it came from one.
    preprocessing: what its encoder wants done to an image.

    Args:
        memory: where its engine is.
        source: its name.
        engine: as it is now.
    """

    def __init__(self, memory: ModelMemory, source: str, engine: Engine) -> None:
        self.name = source
        self._memory = memory
        self.config = engine.encoder.config
        self.preprocessing = engine.encoder.transform.preprocessing
        self._fingerprint = engine.fingerprint
        self._embed_dim = engine.embed_dim

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def embed_dim(self) -> int:
        return self._embed_dim

    @property
    def heads(self) -> int | None:
        """See `Attends.heads`."""
        with self._memory.held(self.name) as engine:
            return engine.heads

    def embed_each(self, images: Iterable[ImageLike], *, deadline_s: float | None = None) -> list[Result]:  # type: ignore[override]
        """See `Engine.embed_each`."""
        return self.each(images, deadline_s=deadline_s)

    async def embed_each_async(self, images: Sequence[ImageLike], *, deadline_s: float | None = None) -> list[Result]:
        """See `Engine.embed_each_async`."""
        return await self.each_async(images, deadline_s=deadline_s)

    def embed(self, images: Iterable[ImageLike]) -> np.ndarray:  # type: ignore[override]
        """See `Engine.embed`."""
        images = list(images)
        with self._counted(len(images)) as engine:
            return engine.embed(images)

    def each(
        self, images: Iterable[ImageLike], errand: Task | None = None, *, deadline_s: float | None = None
    ) -> list[Any]:
        """See `Engine.each`."""
        images = list(images)
        with self._counted(len(images)) as engine:
            return engine.each(images, errand, deadline_s=deadline_s)

    async def each_async(
        self, images: Sequence[ImageLike], errand: Task | None = None, *, deadline_s: float | None = None
    ) -> list[Any]:
        """See `Engine.each_async`."""
        async with self._held_async() as engine:
            return await engine.each_async(images, errand, deadline_s=deadline_s)

    def tokens(self, images: Iterable[ImageLike]) -> np.ndarray:  # type: ignore[override]
        """See `Engine.tokens`."""
        images = list(images)
        with self._counted(len(images)) as engine:
            return engine.tokens(images)

    def look(
        self, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike] = ()
    ) -> list[AttentionMap]:
        """See `Engine.look`."""
        with self._counted(1 + len(targets)) as engine:
            return engine.look(settings, image, targets)

    async def look_async(
        self,
        settings: AttentionSettings,
        image: ImageLike,
        targets: Sequence[ImageLike] = (),
        *,
        deadline_s: float | None = None,
    ) -> list[AttentionMap]:
        """See `Engine.look_async`."""
        async with self._held_async() as engine:
            return await engine.look_async(settings, image, targets, deadline_s=deadline_s)

    @asynccontextmanager
    async def _held_async(self) -> AsyncIterator[Engine]:
        while (engine := self._memory.hold_loaded(self.name)) is None:
            await asyncio.to_thread(self._load)
        try:
            yield self._same(engine)
        finally:
            self._memory.release(self.name)

    @contextmanager
    def _counted(self, images: int) -> Iterator[Engine]:
        """The engine for who asks from a thread: for a request, its images count, as those of a route do when read.

        Raises:
            RateLimited: the request's caller sent too many in the last minute.
        """
        charge_images(images)
        with self._memory.held(self.name) as engine:
            yield self._same(engine)

    def _load(self) -> None:
        with self._memory.held(self.name):
            pass  # it is there now

    def _same(self, engine: Engine) -> Engine:
        """The engine, if it came back with the weights that it went with.

        Raises:
            ModelError: the files were replaced meanwhile.
        """
        if engine.fingerprint != self._fingerprint:
            raise ModelError("The model's files were replaced while it was out of memory: ask for it again.")
        return engine


class Engines:
    """Loads and warms each encoder when it is needed, and keeps as many as fit into the memory for models.

    Args:
        default: source to use where none is named; None: the best starter.
        settings: for the engines, and model_memory.
        metrics: filled; None: nobody looks.
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

    def get(self, source: str | None = None) -> Model:
        """The model of that source; blocks while it loads, but nobody who wants another.

        Raises:
            ModelError: the encoder cannot be had, or is larger than the memory for models.
            Overloaded: that memory is full of models that are at work.
        """
        source = source or self.default
        with self._memory.held(source) as engine:
            return Model(self._memory, source, engine)

    def loaded(self, source: str) -> Model | None:
        """The model of that source if it is in memory."""
        engine = self._memory.hold_loaded(source)
        if engine is None:
            return None
        try:
            return Model(self._memory, source, engine)
        finally:
            self._memory.release(source)

    async def get_async(self, source: str | None = None) -> Model:
        """`get` for the event loop: at once where the model is in memory."""
        source = source or self.default
        return self.loaded(source) or await asyncio.to_thread(self.get, source)

    def by_fingerprint(self, fingerprint: str) -> Model | None:
        """The model of that fingerprint if it was ever loaded, whatever its source was called."""
        for source, known in self._memory.fingerprints.items():
            if known == fingerprint:
                return self.get(source)
        return None

    def served(self) -> list[str]:
        """Sources that a request may ask for: the default, what was loaded, and the published encoders."""
        return list(dict.fromkeys([self.default, *self._memory.fingerprints, *MODELS]))

    @property
    def illness(self) -> str | None:
        """What is wrong with any model, in words; None: every thread works."""
        return "; ".join(engine.illness for engine in self._memory.engines if engine.illness is not None) or None

    @property
    def healthy(self) -> bool:
        """Whether the default model works, or will when it is asked for: another's illness is its own."""
        engine = self._memory.engine(self.default)
        return engine is None or engine.healthy

    @property
    def in_work(self) -> int:
        """Images that hold a permit."""
        return sum(engine.in_work for engine in self._memory.engines)

    def drain(self) -> None:
        """Takes no more work, and goes on with what it has."""
        self._memory.drain()

    def close(self, timeout: float | None = None) -> None:
        """Finishes what is in work, and ends every engine; see `Engine.close`."""
        self._memory.close(timeout)
