"""How much a caller may do: token buckets of requests and of images, and of wrong keys.

A bucket holds a minute's worth and fills at an even rate. It belongs to a key's name, or without keys to
the client's address; the 10,000 callers that came last are remembered.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from nnclr_hub.errors import RateLimited

REMEMBERED = 10_000


class Buckets:
    """One bucket a caller.

    Args:
        a_minute: tokens that come in a minute; 0: no limit.
        size: of a bucket; a minute's worth at least.
        clock: seconds, for tests.
    """

    def __init__(self, a_minute: int, size: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = max(a_minute, size)
        self._a_second = a_minute / 60
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> tokens, when

    @property
    def on(self) -> bool:
        return self._a_second > 0

    def left(self, caller: str) -> float:
        """Tokens in the caller's bucket now."""
        tokens, when = self._left.get(caller, (self.size, self._clock()))
        return min(self.size, tokens + (self._clock() - when) * self._a_second)

    def take(self, caller: str, count: int = 1) -> float:
        """Takes tokens if they are there; returns the seconds until they will be, 0 if they were."""
        if not self.on:
            return 0.0
        left, count = self.left(caller), min(count, self.size)  # more than a bucket could never be had
        if left < count:
            return (count - left) / self._a_second
        self._left[caller] = (left - count, self._clock())
        self._left.move_to_end(caller)
        while len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return 0.0

    def headers(self, caller: str, what: str) -> dict[str, str]:
        """OpenAI's headers for what is left."""
        if not self.on:
            return {}
        left = self.left(caller)
        return {
            f"x-ratelimit-limit-{what}": str(self.size),
            f"x-ratelimit-remaining-{what}": str(int(left)),
            f"x-ratelimit-reset-{what}": f"{math.ceil((self.size - left) / self._a_second)}s",
        }


@dataclass(frozen=True)
class Allowance:
    """What one caller may still do."""

    caller: str
    requests: Buckets
    images: Buckets

    def charge_request(self) -> None:
        """Counts one request.

        Raises:
            RateLimited: there were too many in the last minute.
        """
        self._charge(self.requests, 1, "requests")

    def charge_images(self, count: int) -> None:
        """Counts images.

        Raises:
            RateLimited: there were too many in the last minute; none of these is counted.
        """
        self._charge(self.images, count, "pictures")

    def headers(self) -> dict[str, str]:
        """The x-ratelimit headers of an answer; none where there is no limit."""
        return self.requests.headers(self.caller, "requests") | self.images.headers(self.caller, "images")

    def _charge(self, buckets: Buckets, count: int, what: str) -> None:
        wait = buckets.take(self.caller, count)
        if wait > 0:
            raise RateLimited(
                f"Above the {buckets.size} {what} a minute that {self.caller} may send: wait {math.ceil(wait)} s.", wait
            )


# set by the door for the request in work, and by the page in the threads that it works in
_current: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


def use(allowance: Allowance) -> None:
    """Makes it that of the request in work."""
    _current.set(allowance)


def charge_images(count: int) -> None:
    """Counts images of the request in work; none where there is no request, as in a job.

    Raises:
        RateLimited: its caller sent too many in the last minute.
    """
    allowance = _current.get()
    if allowance is not None:
        allowance.charge_images(count)


def caller_of(client: tuple[str, int] | None) -> str:
    """A name for a client's address: of an IPv6 one the network, for every machine has 2^64 of them."""
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0]) if client else None
    except ValueError:
        address = None
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address or "unknown")
