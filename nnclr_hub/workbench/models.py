"""The encoders that a workbench can use, by source."""

from __future__ import annotations

import threading
from typing import Protocol

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import ModelError
from nnclr_hub.hub.registry import default_model
from nnclr_hub.hub.sources import PYTHON, recorded_source, resolve, split_appended
from nnclr_hub.store.base import CollectionSpec


class Models(Protocol):
    """Provides embedders by source."""

    @property
    def default(self) -> str:
        """Source of the embedder to use if no source is named."""
        ...

    def get(self, source: str | None = None) -> Embedder:
        """Return the embedder of a source (see `nnclr_hub.hub.sources`); None: the default."""
        ...

    def by_fingerprint(self, fingerprint: str) -> Embedder | None:
        """Return the embedder of that fingerprint, if it was already loaded from any source."""
        ...


def embedder_for(models: Models, spec: CollectionSpec) -> Embedder:
    """Return the embedder whose vectors a collection holds, by its fingerprint or by the source that it came from.

    If that source no longer exists, or is on another machine, the default is tried.
    """
    found = models.by_fingerprint(spec.fingerprint) if spec.fingerprint else None
    if found is not None:
        return found
    try:
        return models.get(recorded_source(spec.model, "this collection") or None)
    except ModelError:
        default = models.get()
        if not spec.fingerprint or default.fingerprint != spec.fingerprint:
            raise
        return default


def check_model(model: str | None, backend: str | None = None) -> str:
    """Return the source of an encoder, after all checks that need no torch, whose import takes seconds.

    Args:
        model: None: the best starter.
        backend: None: the default.

    Raises:
        ModelError: it is unavailable; see `nnclr_hub.hub.sources.resolve`.
        InvalidRequest: there is no such backend.
    """
    from nnclr_hub.encoder.backends import default_backend, parse_backend

    parse_backend(backend or default_backend())
    source = model or default_model()
    if not source.startswith(PYTHON):
        resolve(split_appended(source)[0])
    return source


class Encoders:
    """Load each encoder on its first use and keep it.

    Args:
        default: source of the encoder to use if none is named; None: the best starter.
        device: "cpu", "cuda", ...; None: the GPU if there is one.
        backend: what runs the network, as in `load_encoder`.
    """

    def __init__(self, default: str | None = None, *, device: str | None = None, backend: str | None = None) -> None:
        self._default, self._device, self._backend = default, device, backend
        self._loaded: dict[str, Embedder] = {}
        self._lock = threading.Lock()

    @property
    def default(self) -> str:
        return self._default or default_model()

    def get(self, source: str | None = None) -> Embedder:
        """Return the encoder of that source, loaded once, or raise ModelError."""
        source = source or self.default
        with self._lock:  # two callers at once must not load it twice
            if source not in self._loaded:
                check_model(source, self._backend)
                from nnclr_hub.encoder.loader import load_encoder

                self._loaded[source] = load_encoder(source, device=self._device, backend=self._backend)
            return self._loaded[source]

    def by_fingerprint(self, fingerprint: str) -> Embedder | None:
        """Return the encoder of that fingerprint, if it was already loaded from any source."""
        with self._lock:
            loaded = list(self._loaded.values())
        return next((embedder for embedder in loaded if embedder.fingerprint == fingerprint), None)
