"""An embedder that waits its turn: requests are refused when the server is busy, background work comes back later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import numpy as np

from nnclr_hub.encoder.embedder import Embedder, ImageLike
from nnclr_hub.errors import DeadlineExceeded, ImageError, NotReady, Overloaded, RequestTooLarge
from nnclr_hub.workbench import Models

T = TypeVar("T")
LONGEST_S = 5.0
AT_ONCE = 32  # images, so that requests get in between


class PatientModels:
    """Embedders of others, each made patient.

    Args:
        models: what hands them out.
        wait: waits for so many seconds; raises what ends the work.
    """

    def __init__(self, models: Models, wait: Callable[[float], None]) -> None:
        self._models = models
        self._wait = wait

    @property
    def default(self) -> str:
        return self._models.default

    def get(self, source: str | None = None) -> Embedder:
        """See `Models.get`."""
        return self._patient(self._patiently(lambda: self._models.get(source)))

    def by_fingerprint(self, fingerprint: str) -> Embedder | None:
        """See `Models.by_fingerprint`."""
        found = self._patiently(lambda: self._models.by_fingerprint(fingerprint))
        return None if found is None else self._patient(found)

    def _patient(self, embedder: Embedder) -> Embedder:
        return cast(Embedder, Patient(embedder, self._wait))

    def _patiently(self, get: Callable[[], T]) -> T:
        while True:
            try:
                return get()
            except Overloaded as error:  # the memory for models is full of others that are at work
                self._wait(min(error.retry_after, LONGEST_S))


class Patient:
    """See the module; an embedder otherwise."""

    def __init__(self, embedder: Embedder, wait: Callable[[float], None]) -> None:
        self._embedder = embedder
        self._wait = wait

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def embed_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """See `Embedder.embed_each`."""
        asked, at_once = list(images), AT_ONCE
        results: list[np.ndarray | ImageError] = []
        while len(results) < len(asked):
            try:
                results += self._embedder.embed_each(asked[len(results) : len(results) + at_once])
            except RequestTooLarge:  # a few large photos, decoded, are more than is ever let in together
                if at_once == 1:
                    raise
                at_once //= 2
            except Overloaded as error:
                self._wait(min(error.retry_after, LONGEST_S))
            except (DeadlineExceeded, NotReady):
                self._wait(1.0)
        return results
