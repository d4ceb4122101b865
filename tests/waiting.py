"""Waiting for what other threads and processes do: on a condition, far longer than it takes on a busy machine."""

import time
from collections.abc import Callable

PATIENCE_S = 120.0


def until(condition: Callable[[], object]) -> None:
    """Returns once it holds; fails if it never does."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)
