"""WriteLock: writers run side by side, but never while a collection is being swapped for another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import OpenedForReading
from nnclr_hub.store.base import Collection


@dataclass(frozen=True)
class Target:
    """A collection to write to, and the embedder whose vectors it holds."""

    collection: Collection
    embedder: Embedder


# Entered once per write, since a re-embedding may start between two writes. The first target is the collection itself,
# the second, if any, is the collection that will replace it.
OpenTargets = Callable[[], AbstractContextManager[Sequence[Target]]]


class WriteLock:
    """A lock that many may share, or one may hold alone. A thread that waits to be alone blocks later arrivals.

    Args:
        read_only: the store is read-only, so entering raises OpenedForReading.
    """

    def __init__(self, *, read_only: bool = False) -> None:
        self._read_only = read_only
        self._changed = threading.Condition()
        self._sharing = 0
        self._taken = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock together with others. A thread must not enter it twice: it could wait for itself."""
        self.check_writable()
        with self._changed:
            self._changed.wait_for(lambda: not self._taken)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock alone: wait until nobody shares it."""
        self.check_writable()
        with self._changed:
            # taken before the others leave, so that a stream of writers cannot starve this thread
            self._changed.wait_for(lambda: not self._taken)
            self._taken = True
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._sharing == 0)
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()

    def check_writable(self) -> None:
        """Raise OpenedForReading if the store is read-only, before long work that would end in a write."""
        if self._read_only:
            raise OpenedForReading
