"""What keeps a collection quick without anybody asking: folds and snapshots, on a thread of its own."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.store.ann.kinds import Stopped

log = logging.getLogger(__name__)
# after a failure, so that a full disk is not asked again at once
PAUSE_SECONDS = 30.0
NICE = 10
# without a change, after which there is time for what is not urgent
IDLE_SECONDS = 3.0


class Maintenance:
    """Does what is due, whenever it is woken.

    Args:
        name: of the thread.
        duties: each does its work if that is due, and says whether it did; called again until none is. The argument
            says whether nobody has woken it for a while.
    """

    def __init__(self, name: str, *duties: Callable[[bool], bool]) -> None:
        self._duties = duties
        self._wake = threading.Event()
        self._closing = False
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Has it look whether something is due."""
        self._wake.set()

    def stopping(self) -> bool:
        """Whether long work should be given up."""
        return self._closing

    def close(self) -> None:
        """Gives up what is under way and ends the thread."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # where a thread, and those it starts, can make way for all others
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        idle = True
        while True:
            # something that failed is tried again without being asked
            idle = not self._wake.wait(None if idle and self.failure is None else IDLE_SECONDS)
            self._wake.clear()
            if self._closing:
                return
            try:
                while not self._closing and sum(duty(idle) for duty in self._duties):
                    pass
                self.failure = None
            except Stopped:
                return
            except (NNCLRHubError, MemoryError, OSError, RuntimeError) as error:  # faiss's errors are RuntimeErrors
                # searches and writes go on without it
                log.exception("maintenance failed")
                self.failure = str(error) or type(error).__name__
                self._rest()

    def _rest(self) -> None:
        until = time.monotonic() + PAUSE_SECONDS
        while not self._closing and time.monotonic() < until:
            time.sleep(0.1)
