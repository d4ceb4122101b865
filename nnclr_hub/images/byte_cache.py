"""ByteCache: large parts of files in memory, the least recently used of which are dropped.

cache = ByteCache(1 << 30)
part = cache.get(("s3://bucket/a.tar", 3), lambda: read_part(3), len)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class ByteCache:
    """Values under keys, read once also if several threads need one at the same time.

    Args:
        limit: bytes of all values; the newest one stays even if it has more.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._total = limit, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._reading: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], Any], size_of: Callable[[Any], int]) -> Any:
        """Return the value of a key; `read` makes it if it is not there, and `size_of` returns its bytes."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
            one = self._reading.setdefault(key, threading.Lock())
        with one:  # the other threads wait for the one that reads
            with self._lock:
                if key in self._values:
                    return self._values[key][0]
            value = read()
            with self._lock:
                self._values[key] = value, size_of(value)
                self._total += self._values[key][1]
                self._reading.pop(key, None)
                while self._total > self._limit and len(self._values) > 1:
                    self._total -= self._values.popitem(last=False)[1][1]
            return value
