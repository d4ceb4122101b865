"""Engines by source: what the server's workbench takes its embedders from."""

from __future__ import annotations

import threading

from nnclr_hub.encoder.encoder import load_encoder
from nnclr_hub.hub.registry import MODELS, default_model

from .engine import Engine
from .settings import Settings


class Engines:
    """Loads and warms each encoder on its first use and keeps its engine.

    Args:
        default: source to use where none is named; None: the best starter.
        settings: for the engines.
    """

    def __init__(self, default: str | None, settings: Settings) -> None:
        self.default = default or default_model()
        self._settings = settings
        self._engines: dict[str, Engine] = {}
        self._lock = threading.Lock()

    def get(self, source: str | None = None) -> Engine:
        """The engine of that source; blocks while it loads.

        Raises:
            ModelError: the encoder cannot be had.
        """
        source = source or self.default
        with self._lock:
            if source not in self._engines:
                engine = Engine(load_encoder(source, backend=self._settings.backend), self._settings)
                engine.warm_up()
                self._engines[source] = engine
            return self._engines[source]

    def served(self) -> list[str]:
        """Names that a request may ask for: the default, what is loaded, and the published encoders."""
        return list(dict.fromkeys([self.default, *self._engines, *MODELS]))

    @property
    def healthy(self) -> bool:
        return all(engine.healthy for engine in list(self._engines.values()))

    def close(self) -> None:
        """Drains every engine."""
        for engine in list(self._engines.values()):
            engine.close()
