"""Memory of the process that is no longer used, given back to the system."""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from typing import Any

import numpy as np

_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def trim() -> None:
    """Give freed memory back to the system; does nothing where this is not possible.

    Lists of an inverted file grow by copies, and glibc keeps the freed memory for itself.
    """
    if sys.platform == "linux":
        release = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if release is not None:
            release(0)


def free_unlocked(owner: Any, *arrays: np.ndarray) -> None:
    """Give the pages of arrays back as soon as nobody uses their owner, before its destructor frees them.

    faiss's destructors hold Python's lock, and freeing a gigabyte takes 0.1 s of CPU time. For a thread of low priority
    on a busy machine that is seconds, in which no other thread could run.

    Args:
        owner: whose destructor frees the arrays; another call for it does nothing.
        arrays: views of memory that `malloc` returned.
    """
    if sys.platform != "linux" or owner in _owners:
        return
    _owners.add(owner)
    places = [(array.ctypes.data, array.nbytes) for array in arrays]
    weakref.finalize(owner, _give_back, places).atexit = False


def _give_back(places: list[tuple[int, int]]) -> None:
    """Give back the whole pages of memory, each given by address and bytes; calls by ctypes do not hold the lock."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for address, size in places:
        first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            advise(first, length, mmap.MADV_DONTNEED)
