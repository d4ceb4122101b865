"""Where images are written to, and when: side by side, but never while a collection takes another's place."""

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
    """A collection that is written to, and the embedder whose vectors it holds."""

    collection: Collection
    embedder: Embedder


# entered for each batch anew: the collection to write to comes first, then the one that takes its place, if any
Writing = Callable[[], AbstractContextManager[Sequence[Target]]]


class Gate:
    """A lock that many may share, or one hold alone; who waits to be alone goes before those who come later.

    Args:
        shut: nobody may enter, for the store was opened for reading: OpenedForReading.
    """

    def __init__(self, *, shut: bool = False) -> None:
        self._shut = shut
        self._changed = threading.Condition()
        self._sharing = 0
        self._taken = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Waits for whoever is alone, or wants to be. Not to be entered twice by one thread."""
        self.refuse_if_shut()
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
        """Waits until nobody shares."""
        self.refuse_if_shut()
        with self._changed:
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

    def refuse_if_shut(self) -> None:
        """Raises OpenedForReading: for who would only enter after long work."""
        if self._shut:
            raise OpenedForReading
