"""ModelMemory: the engines in memory, and which one is unloaded when another needs the space.

    memory = ModelMemory(Settings(model_memory="4GB"), Metrics())
    with memory.held("local-dir:/models/mine") as engine:       # loads it, while others continue
        engine.run([data])

A held engine stays in memory. Of those that nobody holds, the one that was released first is unloaded, and loads
again when it is needed. Space is reserved by the size of the weights file before a model loads, and corrected
afterwards, when the memory of its backend is known.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ModelError, Overloaded
from nnclr_hub.hub.sources import PYTHON, resolve, split_appended

from .deadline import loading
from .engine import Engine
from .engine.admission import shutting_down
from .settings import Settings
from .telemetry import Metrics

log = logging.getLogger(__name__)


@dataclass
class _Slot:
    """A source that was requested, and its engine while it is in memory.

    size: bytes of its weights.
    released: increases with each release, so that the smallest is the least recently used.
    """

    engine: Engine | None = None
    loading: Future[Engine] | None = None
    holders: int = 0
    released: int = 0
    size: int = 0
    fingerprint: str = ""


class ModelMemory:
    """The engines in memory.

    Args:
        settings: for the engines, and model_memory.
        metrics: receives counts and sizes.
        load: makes the encoder of a source; by default `load_encoder` with the backend of the settings.
        weigh: returns the bytes that a source takes at least; by default `weight_of`.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        load: Callable[[str], Encoder] | None = None,
        weigh: Callable[[str], int] | None = None,
    ) -> None:
        self.settings = settings
        self._metrics = metrics
        self._load = load or partial(load_encoder, backend=settings.backend)
        self._weigh = weigh or weight_of
        self._slots: dict[str, _Slot] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._releases = count(1)
        self._closed = False

    @property
    def engines(self) -> list[Engine]:
        """The engines in memory."""
        with self._lock:
            return [slot.engine for slot in self._slots.values() if slot.engine is not None]

    def engine(self, source: str) -> Engine | None:
        """Return the engine of a source if it is in memory, to inspect but not to use: it is not held."""
        with self._lock:
            slot = self._slots.get(source)
            return None if slot is None else slot.engine

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints by source of every model that was ever loaded, those in memory first."""
        with self._lock:
            slots = sorted(self._slots.items(), key=lambda pair: pair[1].engine is None)
            return {source: slot.fingerprint for source, slot in slots if slot.fingerprint}

    @contextmanager
    def held(self, source: str) -> Iterator[Engine]:
        """Hold the engine of a source in memory. Blocks while it loads.

        Raises:
            ModelError: the encoder is unavailable, or larger than the memory for models.
            Overloaded: that memory is full of models that are in use.
        """
        engine = self._hold(source)
        try:
            yield engine
        finally:
            self.release(source)

    def hold_loaded(self, source: str) -> Engine | None:
        """Return the engine of a source if it is in memory, held until `release`."""
        with self._lock:
            slot = self._slots.get(source)
            if slot is None or slot.engine is None:
                return None
            slot.holders += 1
            return slot.engine

    def release(self, source: str) -> None:
        """Undo one hold."""
        with self._lock:
            slot = self._slots[source]
            slot.holders -= 1
            slot.released = next(self._releases)

    def close(self, timeout: float | None = None) -> None:
        """Refuse new work in all engines, then finish what is in progress and end them; see `Engine.close`."""
        with self._lock:
            self._closed = True
        for engine in self.engines:
            engine.drain()
        for engine in self.engines:
            engine.close(timeout)

    # ---- loading

    def _hold(self, source: str) -> Engine:
        with self._lock:
            slot = self._slots.setdefault(source, _Slot())
            slot.holders += 1
            if slot.engine is not None:
                return slot.engine
            is_first = slot.loading is None
            future = slot.loading = slot.loading or Future()
        try:
            with loading():
                if is_first:
                    self._fill(source, slot, future)
                return future.result()
        except BaseException:
            self.release(source)
            raise

    def _fill(self, source: str, slot: _Slot, loading: Future[Engine]) -> None:
        """Load for all callers that wait. A failure is raised in each of them; the next caller tries again."""
        try:
            engine = self._start(source, slot)
        except BaseException as error:  # noqa: BLE001  # waiting callers must see any error
            with self._lock:
                slot.loading = None
            loading.set_exception(error)
        else:
            with self._lock:
                slot.engine, slot.loading, slot.fingerprint = engine, None, engine.encoder.fingerprint
            loading.set_result(engine)

    def _start(self, source: str, slot: _Slot) -> Engine:
        self._check_open()
        slot.size = 0
        try:
            self._reserve(source, slot, self._weigh(source))
            encoder = self._load(source)
            self._reserve(source, slot, encoder.weight_bytes + (encoder.backend.memory or 0))
            engine = self._warm(encoder)
        except BaseException:
            with self._lock:
                self._account(-slot.size)
            raise
        self._metrics.models_loaded.inc()
        log.info("%s loaded on %s", source, encoder.backend.name)
        return engine

    def _warm(self, encoder: Encoder) -> Engine:
        engine = Engine(encoder, self.settings, self._metrics)
        try:
            engine.warm_up()
            self._check_open()
        except BaseException:
            engine.close(0)
            raise
        return engine

    def _check_open(self) -> None:
        if self._closed:
            raise shutting_down()

    def _reserve(self, source: str, slot: _Slot, size: int) -> None:
        """Reserve memory for a model in place of what it has, and unload idle models if needed."""
        limit = self.settings.model_memory
        if limit is not None and size > limit:
            raise ModelError(
                f"The model takes {size:,} bytes and NNCLR_MODEL_MEMORY is {limit:,}; raise it to load this model."
            )
        unloaded: list[Engine] = []
        with self._lock:
            idle = sorted(
                (one for one in self._slots.values() if one.engine and not one.holders), key=lambda one: one.released
            )
            more = size - slot.size
            # check first: unloading models does not help if the rest is still too large
            if limit is not None and self._bytes - sum(one.size for one in idle) + more > limit:
                raise Overloaded("The memory for models is full of models that are in use; try again in a moment.")
            for one in idle:
                if limit is not None and self._bytes + more > limit and one.engine is not None:
                    unloaded.append(one.engine)
                    one.engine = None
                    self._account(-one.size)
            self._account(more)
            slot.size = size
        for engine in unloaded:
            log.info("%s unloaded to make space for %s", engine.encoder.name, source)
            self._metrics.evictions.inc()
            self._metrics.models_loaded.dec()
            engine.close()
        if unloaded:
            gc.unfreeze()  # `run` freezes all objects at the start; the unloaded weights must be collected again

    def _account(self, size: int) -> None:
        self._bytes += size
        self._metrics.model_bytes.inc(size)


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
