"""Requests and images per minute that each caller may send.

A caller is the name of a key, or the client's address if the server has no keys.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from dataclasses import dataclass

from nnclr_hub.errors import RateLimited

from ..security.token_buckets import TokenBuckets


@dataclass(frozen=True)
class Allowance:
    """The rates of one caller."""

    caller: str
    requests: TokenBuckets
    images: TokenBuckets

    def charge_request(self) -> None:
        """Count one request.

        Raises:
            RateLimited: the caller sent too many in the last minute.
        """
        self._charge(self.requests, 1, "requests")

    def charge_images(self, count: int) -> None:
        """Count images.

        Raises:
            RateLimited: the caller sent too many in the last minute; none of these is counted.
        """
        self._charge(self.images, count, "images")

    def headers(self) -> dict[str, str]:
        """Return the x-ratelimit headers of a response; none if there is no limit."""
        return self.requests.headers(self.caller, "requests") | self.images.headers(self.caller, "images")

    def _charge(self, buckets: TokenBuckets, count: int, what: str) -> None:
        wait = buckets.take(self.caller, count)
        if wait > 0:
            raise RateLimited(
                f"{self.caller} exceeded {buckets.size} {what} per minute; try again in {math.ceil(wait)} s.", wait
            )


# of the current request: set by EdgeLimits, and by the page in the threads that continue a request
_current: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


def use(allowance: Allowance) -> None:
    """Make it the allowance of the current request."""
    _current.set(allowance)


def charge_images(count: int) -> None:
    """Count images of the current request. Outside a request, as in a job, this does nothing.

    Raises:
        RateLimited: the caller sent too many in the last minute.
    """
    allowance = _current.get()
    if allowance is not None:
        allowance.charge_images(count)
