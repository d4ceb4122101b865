"""Which engines are in memory: who holds one, and which one goes when another needs the room.

    memory = ModelMemory(Settings(model_memory="4GB"), Metrics())
    with memory.held("local-dir:/models/mine") as engine:       # loads it, while others go on
        engine.embed_each([data])

Whoever works with an engine holds it, so that it stays. Of those that nobody holds, the one that was used longest
ago goes, and comes back when it is asked for again. Room is made before a model is loaded, by the size of its file;
what its backend holds beside the weights shows only then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

from nnclr_hub.encoder.encoder import Encoder, load_encoder
from nnclr_hub.errors import ModelError, NotReady, Overloaded
from nnclr_hub.hub.sources import resolve

from . import garbage
from .engine import Engine
from .settings import Settings
from .telemetry import Metrics

log = logging.getLogger(__name__)


@dataclass
class _Slot:
    """A source that was asked for: its engine while it is in memory, and what is known of it.

    size: bytes of its weights.
    used: the larger, the later somebody let go of it.
    """

    engine: Engine | None = None
    loading: Future[Engine] | None = None
    holders: int = 0
    used: int = 0
    size: int = 0
    fingerprint: str = ""


class ModelMemory:
    """See the module.

    Args:
        settings: for the engines, and model_memory.
        metrics: filled.
        load: makes the encoder of a source; None: `load_encoder` with the backend of the settings.
        weigh: the bytes that a source will at least take; None: `weight_of`.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        load: Callable[[str], Encoder] | None = None,
        weigh: Callable[[str], int] | None = None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._load = load or partial(load_encoder, backend=settings.backend)
        self._weigh = weigh or weight_of
        self._slots: dict[str, _Slot] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._clock = count(1)
        self._closed = False

    @property
    def engines(self) -> list[Engine]:
        """Those in memory."""
        with self._lock:
            return [slot.engine for slot in self._slots.values() if slot.engine is not None]

    def engine(self, source: str) -> Engine | None:
        """That of a source if it is in memory; for a look, not for work."""
        with self._lock:
            slot = self._slots.get(source)
            return None if slot is None else slot.engine

    @property
    def fingerprints(self) -> dict[str, str]:
        """By source: of every model that was ever loaded, those in memory first."""
        with self._lock:
            slots = sorted(self._slots.items(), key=lambda pair: pair[1].engine is None)
            return {source: slot.fingerprint for source, slot in slots if slot.fingerprint}

    @contextmanager
    def held(self, source: str) -> Iterator[Engine]:
        """The engine of a source, which stays for as long as it is held; blocks while it loads.

        Raises:
            ModelError: the encoder cannot be had, or is larger than the memory for models.
            Overloaded: that memory is full of models that are at work.
        """
        engine = self._hold(source)
        try:
            yield engine
        finally:
            self.release(source)

    def hold_loaded(self, source: str) -> Engine | None:
        """The engine of a source if it is in memory; it stays until `release`."""
        with self._lock:
            slot = self._slots.get(source)
            if slot is None or slot.engine is None:
                return None
            slot.holders += 1
            return slot.engine

    def release(self, source: str) -> None:
        """One holder fewer."""
        with self._lock:
            slot = self._slots[source]
            slot.holders -= 1
            slot.used = next(self._clock)

    def drain(self) -> None:
        """Takes no more work, and goes on with what it has."""
        with self._lock:
            self._closed = True
        for engine in self.engines:
            engine.drain()

    def close(self, timeout: float | None = None) -> None:
        """Finishes what is in work, and ends every engine; see `Engine.close`."""
        self.drain()
        for engine in self.engines:
            engine.close(timeout)

    # ---- inside

    def _hold(self, source: str) -> Engine:
        with self._lock:
            slot = self._slots.setdefault(source, _Slot())
            slot.holders += 1
            if slot.engine is not None:
                return slot.engine
            mine = slot.loading is None
            loading = slot.loading = slot.loading or Future()
        try:
            if mine:
                self._fill(source, slot, loading)
            return loading.result()
        except BaseException:
            self.release(source)
            raise

    def _fill(self, source: str, slot: _Slot, loading: Future[Engine]) -> None:
        """Loads for all who wait; a failure is told to each of them, and who comes later tries again."""
        try:
            engine = self._start(source, slot)
        except BaseException as error:  # noqa: BLE001  # a waiting caller must hear of any
            with self._lock:
                slot.loading = None
            loading.set_exception(error)
        else:
            with self._lock:
                slot.engine, slot.loading, slot.fingerprint = engine, None, engine.fingerprint
            loading.set_result(engine)

    def _start(self, source: str, slot: _Slot) -> Engine:
        self._check_open()
        slot.size = 0
        try:
            self._make_room(source, slot, self._weigh(source))
            encoder = self._load(source)
            weights = sum(tensor.nbytes for tensor in encoder.backbone.state_dict().values())
            self._make_room(source, slot, weights + (encoder.backend.memory or 0))
            engine = self._warm(encoder)
        except BaseException:
            with self._lock:
                self._account(-slot.size)
            raise
        self._metrics.models_loaded.inc()
        log.info("%s runs on %s", source, encoder.backend.name)
        return engine

    def _warm(self, encoder: Encoder) -> Engine:
        engine = Engine(encoder, self._settings, self._metrics)
        try:
            engine.warm_up()
            self._check_open()
        except BaseException:
            engine.close(0)
            raise
        return engine

    def _check_open(self) -> None:
        if self._closed:
            raise NotReady("The server is shutting down: try another one, or later.")

    def _make_room(self, source: str, slot: _Slot, size: int) -> None:
        """Takes the memory for a model in place of what it has, from others that nobody holds if need be."""
        most = self._settings.model_memory
        if most is not None and size > most:
            raise ModelError(
                f"The model takes {size:,} bytes, and the server has {most:,} for models: raise NNCLR_MODEL_MEMORY."
            )
        gone: list[Engine] = []
        with self._lock:
            idle = sorted(
                (one for one in self._slots.values() if one.engine and not one.holders), key=lambda one: one.used
            )
            more = size - slot.size
            if most is not None and self._bytes - sum(one.size for one in idle) + more > most:
                raise Overloaded(
                    "The memory for models is full of others that are at work: ask for this one again in a moment."
                )
            for one in idle:
                if most is not None and self._bytes + more > most and one.engine is not None:
                    gone.append(one.engine)
                    one.engine = None
                    self._account(-one.size)
            self._account(more)
            slot.size = size
        for engine in gone:
            log.info("%s goes out of memory for %s", engine.name, source)
            self._metrics.evictions.inc()
            self._metrics.models_loaded.dec()
            engine.close()
        if gone:
            garbage.let_go()

    def _account(self, size: int) -> None:
        self._bytes += size
        self._metrics.model_bytes.inc(size)


def weight_of(source: str) -> int:
    """Bytes of the file of a source's weights, which is fetched if need be; 0 where there is none, as of random ones.

    Raises:
        ModelError: it cannot be had.
    """
    found = resolve(source)
    if found.folder is None or found.seed is not None:
        return 0
    return (found.folder / found.weights).stat().st_size
