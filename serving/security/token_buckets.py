"""Token buckets per caller, for request rates and for wrong keys.

A bucket holds a minute's worth of tokens and fills at an even rate.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

REMEMBERED = 10_000  # callers; the one that called least recently is forgotten, and starts with a full bucket


class TokenBuckets:
    """One bucket per caller.

    Args:
        per_minute: tokens added per minute; 0 means no limit.
        size: capacity of a bucket, at least `per_minute`.
        clock: returns seconds; tests replace it.
    """

    def __init__(self, per_minute: int, size: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = max(per_minute, size)
        self._per_second = per_minute / 60
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> tokens, time

    def __len__(self) -> int:
        return len(self._left)

    @property
    def enabled(self) -> bool:
        return self._per_second > 0

    def left(self, caller: str) -> float:
        """Return the tokens in the caller's bucket now."""
        tokens, when = self._left.get(caller, (self.size, self._clock()))
        return min(self.size, tokens + (self._clock() - when) * self._per_second)

    def take(self, caller: str, count: float = 1) -> float:
        """Take tokens if there are enough, and return 0; otherwise return the seconds until there are."""
        if not self.enabled:
            return 0.0
        left, count = self.left(caller), min(count, self.size)  # a bucket never holds more than its size
        if left < count:
            return (count - left) / self._per_second
        self._left[caller] = (left - count, self._clock())
        self._left.move_to_end(caller)
        while len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return 0.0

    def headers(self, caller: str, what: str) -> dict[str, str]:
        """Return OpenAI's rate headers for a caller; none if there is no limit."""
        if not self.enabled:
            return {}
        left = self.left(caller)
        return {
            f"x-ratelimit-limit-{what}": str(self.size),
            f"x-ratelimit-remaining-{what}": str(int(left)),
            f"x-ratelimit-reset-{what}": f"{math.ceil((self.size - left) / self._per_second)}s",
        }


def caller_of(client: tuple[str, int] | None) -> str:
    """Return a name for a client's address; for IPv6 its /64 network, because one machine has 2^64 addresses."""
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0]) if client else None
    except ValueError:
        address = None
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address or "unknown")
