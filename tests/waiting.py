"""Wait for other threads and processes, on a condition, for far longer than a busy machine needs."""

import time
from collections.abc import Callable

PATIENCE_S = 120.0


def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds; fail if it never does."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.005)
