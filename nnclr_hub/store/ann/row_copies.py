"""Copies of vectors that searches compare with repeatedly, next to each other in memory.

A filter that few rows pass is answered by comparing with each of them. Most of that time is reading the rows, because
they are far apart in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nnclr_hub.store.ann.among import Chosen

LEAST_BYTES = 128 << 10  # fewer are read quickly where they are
SHARE = 16  # a 16th of the vectors of an index may be copied
MOST_BYTES = 64 << 20


class RowCopies:
    """Vectors of the rows that recent searches chose.

    Args:
        vectors: bytes of all vectors of the index, as float32.
    """

    def __init__(self, vectors: int) -> None:
        self._most = min(vectors // SHARE, MOST_BYTES)
        self._lock = threading.Lock()
        self._known: OrderedDict[Chosen, np.ndarray] = OrderedDict()
        self._used = 0

    def find(self, chosen: Chosen, dim: int, read: Callable[[], np.ndarray]) -> np.ndarray | None:
        """Return the vectors (n, D) float32 of rows; None at their first search, or if a copy does not pay.

        Args:
            chosen: n rows; the same object in each search.
            dim: D.
            read: returns the vectors.
        """
        size = chosen.count * (4 * dim + 8)  # with the positions
        if not LEAST_BYTES <= size <= self._most:
            return None
        with self._lock:
            if chosen in self._known:
                self._known.move_to_end(chosen)
                return self._known[chosen]
        if not chosen.searched:
            chosen.searched = True
            return None
        vectors = np.ascontiguousarray(read(), np.float32)
        with self._lock:
            self._used += 0 if chosen in self._known else size
            self._known[chosen] = vectors
            while self._used > self._most:
                dropped, of_it = self._known.popitem(last=False)
                self._used -= of_it.nbytes + 8 * dropped.count
        return vectors
