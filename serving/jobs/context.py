"""What the work of a job sees of its job: parameters, progress, cancellation, and models that wait for the engine."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np

from nnclr_hub.encoder.embedder import Embedder, ImageLike
from nnclr_hub.errors import DeadlineExceeded, ImageError, NotReady, Overloaded, RequestTooLarge
from nnclr_hub.hub.sources import recorded_source, split_reading
from nnclr_hub.store.records import Records
from nnclr_hub.workbench import Models, Workbench
from nnclr_hub.workbench.tasks import Cancelled, Interrupted

T = TypeVar("T")
CHECK_S = 0.05
NO_NOTES: Mapping[str, Any] = MappingProxyType({})
# names of job parameters
UPLOAD = "upload"  # the ticket of uploaded files that wait for the job
ROOT = "root"  # the source folder to read, by its path: its number may change when the server restarts
# of the retries while the engine is busy
MAX_WAIT_S = 5.0
IMAGES_PER_CALL = 32  # few, so that requests get their turn in between


@dataclass(frozen=True)
class Signals:
    """Events that end the work: its job is cancelled, or the server stops."""

    cancel: threading.Event
    stop: threading.Event


@dataclass(frozen=True)
class Outcome:
    """The outcome of the work.

    result: JSON, stored with the job.
    commit: stores what the job made, in the same transaction as the job's final state. It may raise to refuse.
    """

    result: Mapping[str, Any]
    commit: Callable[[Records], None] = lambda records: None


class JobContext:
    """What the work sees of its job.

    Args:
        params: the job's parameters.
        input: bytes that were submitted with it.
        bench: collections and models. Its copy here embeds with retries while the engine is busy.
        source_folders: folders that the work may read.
        signals: end the work.
        report: called with (done, total).
        notes: what an earlier attempt saved.
        save: makes new notes durable.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        input: bytes,
        bench: Workbench,
        source_folders: tuple[Path, ...],
        signals: Signals,
        report: Callable[[int, int], None],
        notes: Mapping[str, Any] = NO_NOTES,
        save: Callable[[Mapping[str, Any]], None] = lambda notes: None,
    ) -> None:
        self.params = params
        self.input = input
        self.source_folders = source_folders
        self.bench = copy.copy(bench)  # shares the store and the locks
        self.bench.source_folders = source_folders
        self.bench.models = RetryingModels(bench.models, self.wait)
        self._signals = signals
        self._report = report
        self.notes = notes
        self._save = save

    def keep(self, notes: Mapping[str, Any]) -> None:
        """Save notes for a later attempt; they are durable when this returns."""
        self._save(notes)
        self.notes = notes

    def progress(self, done: int, total: int) -> None:
        """Report progress.

        Raises:
            Cancelled, Interrupted: the work must end.
        """
        self.check()
        self._report(done, total)

    def check(self) -> None:
        """Raise Cancelled or Interrupted if the work must end."""
        if self._signals.stop.is_set():
            raise Interrupted
        if self._signals.cancel.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Sleep, but raise Cancelled or Interrupted as soon as the work must end."""
        while seconds > 0:
            self.check()
            self._signals.cancel.wait(min(seconds, CHECK_S))
            seconds -= CHECK_S
        self.check()


# ---- models that wait while the engine is busy: requests get 429 then, but background work comes back later


class RetryingModels:
    """Models whose embedders retry while the engine is busy.

    The sources come from stored jobs, and the store may come from elsewhere. So they may not name a file of Python,
    except that of the server's own --model.

    Args:
        models: the models of the server.
        wait: sleeps for some seconds; may raise to end the work.
    """

    def __init__(self, models: Models, wait: Callable[[float], None]) -> None:
        self._models = models
        self._wait = wait

    @property
    def default(self) -> str:
        return self._models.default

    def get(self, source: str | None = None) -> Embedder:
        """See `Models.get`.

        Raises:
            ModelFilesMissing: the source is a file of Python that the server was not started with.
        """
        if source and split_reading(source)[0] != split_reading(self.default)[0]:
            source = recorded_source(source, "this job")
        return self._retrying(self._retry(lambda: self._models.get(source)))

    def by_fingerprint(self, fingerprint: str) -> Embedder | None:
        """See `Models.by_fingerprint`."""
        found = self._retry(lambda: self._models.by_fingerprint(fingerprint))
        return None if found is None else self._retrying(found)

    def _retrying(self, embedder: Embedder) -> Embedder:
        return cast(Embedder, RetryingEmbedder(embedder, self._wait))

    def _retry(self, get: Callable[[], T]) -> T:
        while True:
            try:
                return get()
            except Overloaded as error:  # the memory for models is full of models that are in use
                self._wait(min(error.retry_after, MAX_WAIT_S))


class RetryingEmbedder:
    """An embedder that retries while the engine is busy."""

    def __init__(self, embedder: Embedder, wait: Callable[[float], None]) -> None:
        self._embedder = embedder
        self._wait = wait

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
