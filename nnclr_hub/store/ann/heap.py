"""The heap of the process. Lists of an inverted file grow by copies, and glibc keeps the freed memory for itself."""

from __future__ import annotations

import ctypes
import sys


def trim() -> None:
    """Give freed memory back to the system; does nothing where this is not possible."""
    if sys.platform == "linux":
        release = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if release is not None:
            release(0)
