"""Import the packages of readers while an image is decoded."""

from __future__ import annotations

import signal
from importlib import import_module
from typing import Any


def load(module: str) -> Any:
    """Import a module. Its CPU seconds do not count against the limit of the image that needs it first.

    Raises:
        ImportError: it is not installed.
    """
    remaining = signal.setitimer(signal.ITIMER_PROF, 0)
    try:
        return import_module(module)
    finally:
        signal.setitimer(signal.ITIMER_PROF, *remaining)
