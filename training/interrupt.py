"""Stop a run at the next step, with a checkpoint, on a signal or at a time limit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """Raised when a signal stopped the work; the message states how to continue."""


@contextmanager
def stop_signals(
    event: threading.Event | None = None,
    *,
    ignore_repeats: bool = False,
    until: float | None = None,
) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM or Ctrl-C sets, so that the loop stops at the next step.

    A second signal ends the program at once.

    Args:
        event: one that others may set too; default a new one.
        ignore_repeats: ignore further signals. In a distributed run Ctrl-C reaches each process twice: from the
            terminal and from torchrun.
        until: time limit on the clock of `time.monotonic`, which sets the event as well.
    """
    event = event or threading.Event()
    remaining = 0.0 if until is None else until - time.monotonic()
    timer = threading.Timer(max(0.0, remaining), event.set)
    timer.daemon = True
    if until is not None and remaining <= 0:
        event.set()
    elif until is not None:
        timer.start()

    def handle(number: int, frame: FrameType | None) -> None:
        event.set()
        if not ignore_repeats:
            for one, handler in before.items():
                signal.signal(one, handler)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before.update({one: signal.signal(one, handle) for one in (signal.SIGTERM, signal.SIGINT)})
    try:
        yield event
    finally:
        timer.cancel()
        for one, handler in before.items():
            signal.signal(one, handler)
