"""Close the files of collections that are not used: by age, memory and open files. The next call opens them again."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable

from nnclr_hub.errors import StoreError
from nnclr_hub.store.embedded.collection import EmbeddedCollection
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.sqlite import open_files_limit

log = logging.getLogger(__name__)
FILES_EACH = 10  # open files of a collection that few threads use
SPARE_FILES = 24  # that other code may open at the same time
MIN_OPEN = 2  # collections that may be open even if that is too many files
CHECK_SECONDS = 15.0


class IdleCollections:
    """Closes collections, those first that were not used for the longest time.

    Args:
        opened: returns the collections of the store.
        settings: of the store.
    """

    def __init__(
        self, opened: Callable[[], list[EmbeddedCollection]], settings: StoreSettings, watch: Callable[[], None]
    ) -> None:
        self._opened = opened
        self._watch = watch
        self._settings = settings
        self._closing = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def make_room(self) -> None:
        """Close collections if too many files are open for another one."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="idle collections", daemon=True)
                self._thread.start()
        in_use = self._in_use()
        left = len(in_use)
        for collection in in_use:
            if left < MIN_OPEN or open_files_limit() - _open_files(left) >= FILES_EACH + SPARE_FILES:
                return
            left -= _suspend(collection)

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _in_use(self) -> list[EmbeddedCollection]:
        return sorted(
            (one for one in self._opened() if not one.suspended), key=lambda one: one.idle_seconds, reverse=True
        )

    def _run(self) -> None:
        while not self._closing.wait(min(CHECK_SECONDS, self._settings.close_after / 4)):
            try:
                self._watch()
                self._close_idle()
            except Exception:  # the thread must not end
                log.exception("idle collections were not closed")

    def _close_idle(self) -> None:
        in_use = self._in_use()
        total = sum(one.index_bytes for one in in_use)
        for collection in in_use:
            old = collection.idle_seconds > self._settings.close_after
            large = total > self._settings.total_memory and collection is not in_use[-1]
            size = collection.index_bytes
            if (old or large) and not collection.busy and _suspend(collection):
                total -= size


def _suspend(collection: EmbeddedCollection) -> bool:
    try:
        return collection.suspend()
    except StoreError as error:
        log.warning("collection %s was not closed cleanly (%s)", collection.name, error)
        return False
    except Exception:  # of faiss, for one; the thread must continue with the other collections
        log.exception("collection %s was not closed", collection.name)
        return False


def _open_files(collections: int) -> int:
    """Return how many files this process has open, or an estimate for so many collections."""
    try:
        return len(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))
    except OSError:  # no file is left to list them with
        return collections * FILES_EACH + SPARE_FILES
