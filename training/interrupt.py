"""Signals, and time that is up: a run ends at the next step, with a checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """A signal ended the work; the message says how it goes on."""


@contextmanager
def stop_signals(*, patient: bool = False, until: float | None = None) -> Iterator[threading.Event]:
    """An event that SIGTERM or Ctrl-C sets; the loop ends at the next step. A second one ends the program at once.

    Args:
        patient: not so, since Ctrl-C reaches a process of a distributed run twice: from the terminal and
            from torchrun.
        until: the time, as `time.monotonic` tells it, that sets the event as well.
    """
    event = threading.Event()
    left = 0.0 if until is None else until - time.monotonic()
    clock = threading.Timer(max(0.0, left), event.set)
    clock.daemon = True
    if until is not None and left <= 0:
        event.set()
    elif until is not None:
        clock.start()

    def handle(number: int, frame: FrameType | None) -> None:
        event.set()
        if not patient:
            for one, handler in before.items():
                signal.signal(one, handler)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before.update({one: signal.signal(one, handle) for one in (signal.SIGTERM, signal.SIGINT)})
    try:
        yield event
    finally:
        clock.cancel()
        for one, handler in before.items():
            signal.signal(one, handler)
