"""Stop a run at the next step, with a checkpoint, on a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """Raised when a signal stopped the work; the message states how to continue."""


@contextmanager
def stop_signals(event: threading.Event | None = None, *, ignore_repeats: bool = False) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM, SIGUSR1 or Ctrl-C sets, so that the loop stops at the next step.

    A second signal ends the program at once.

    Args:
        event: one that others may set too; default a new one.
        ignore_repeats: ignore further signals. In a distributed run Ctrl-C reaches each process twice: from the
            terminal and from torchrun.
    """
    event = event or threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        event.set()
        if not ignore_repeats:
            for one, handler in before.items():
                signal.signal(one, handler)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before.update({one: signal.signal(one, handle) for one in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)})
    try:
        yield event
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
