"""The C library's allocator, set up for training on a CPU."""

from __future__ import annotations

import ctypes

# options of mallopt, from glibc's malloc.h
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Let the process keep the memory of freed tensors for the next step.

    By default, glibc returns large blocks to the system when they are freed. The activations of each step then fill
    fresh pages, and writing the first byte of each page costs more than many of the operations. Does nothing where the
    C library has no such option.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return
    mallopt(MMAP_MAX, 0)
    mallopt(TRIM_THRESHOLD, 2**31 - 1)
    mallopt(TOP_PAD, 256 << 20)  # grow by this many bytes at once
