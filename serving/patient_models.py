"""The models of jobs: while the engine is busy, requests get 429, and jobs wait and try again.

bench.models = PatientModels(bench.models, wait)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from nnclr_hub.encoder.embedder import Embedder, ImageLike
from nnclr_hub.errors import DeadlineExceeded, ImageError, NotReady, Overloaded, RequestTooLarge
from nnclr_hub.hub.sources import recorded_source, split_reading
from nnclr_hub.workbench import Models

MAX_WAIT_S = 5.0
IMAGES_PER_CALL = 32  # few, so that requests get their turn in between


class PatientModels:
    """Models whose embedders retry while the engine is busy.

    The sources come from stored jobs, and the store may come from elsewhere. So they may not name a file of Python,
    except that of the server's own --model.

    Args:
        wait: sleeps for some seconds; may raise to end the work.
    """

    def __init__(self, models: Models, wait: Callable[[float], None]) -> None:
        self._models, self._wait = models, wait

    @property
    def default(self) -> str:
        return self._models.default

    def get(self, source: str | None = None) -> Embedder:
        """See `Models.get`; ModelFilesMissing is raised for a Python file that the server was not started with."""
        if source and split_reading(source)[0] != split_reading(self.default)[0]:
            source = recorded_source(source, "this job")
        return cast(Embedder, PatientEmbedder(self._models.get(source), self._wait))

    def by_fingerprint(self, fingerprint: str) -> Embedder | None:
        """See `Models.by_fingerprint`."""
        found = self._models.by_fingerprint(fingerprint)
        return None if found is None else cast(Embedder, PatientEmbedder(found, self._wait))


class PatientEmbedder:
    """An embedder that retries while the engine is busy."""

    def __init__(self, embedder: Embedder, wait: Callable[[float], None]) -> None:
        self._embedder, self._wait = embedder, wait

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def embed_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """See `Embedder.embed_each`."""
        images, per_call = list(images), IMAGES_PER_CALL
        results: list[np.ndarray | ImageError] = []
        while len(results) < len(images):
            try:
                results += self._embedder.embed_each(images[len(results) : len(results) + per_call])
            except RequestTooLarge:  # a few large decoded photos exceed what the engine admits at once
                if per_call == 1:
                    raise
                per_call //= 2
            except Overloaded as error:
                self._wait(min(error.retry_after, MAX_WAIT_S))
            except (DeadlineExceeded, NotReady):
                self._wait(1.0)
        return results
