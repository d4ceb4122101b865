"""Stored responses for Idempotency-Key, bounded in number, bytes and age.

The caller with the most responses loses its oldest ones first, so no caller can push out those of another.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from nnclr_hub.store.records import Record, Records

REPLY = "reply"
LIFETIME_S = 24 * 3600.0


@dataclass(frozen=True)
class Reply:
    """A stored response."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _Kept:
    """The responses of one caller: time of creation and size by name, oldest first."""

    def __init__(self) -> None:
        self.replies: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self.bytes = 0

    @property
    def oldest(self) -> float:
        return next(iter(self.replies.values()))[0]

    def add(self, name: str, created: float, size: int) -> None:
        self.bytes += size - self.replies.pop(name, (0.0, 0))[1]
        self.replies[name] = (created, size)

    def pop(self) -> str:
        name, (_, size) = self.replies.popitem(last=False)
        self.bytes -= size
        return name


class Replies:
    """Stored responses by name, within limits of number, bytes and age.

    Args:
        records: where they are stored.
        limit: maximum number of responses.
        limit_bytes: maximum size of all responses.
    """

    def __init__(self, records: Records, limit: int, limit_bytes: int) -> None:
        self._records = records
        self._limit, self._limit_bytes = limit, limit_bytes
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] | None = None  # by caller

    def get(self, name: str) -> tuple[str, Reply] | None:
        """Return the hash of the answered request and its response; None if there is none, or it is too old."""
        record = self._records.get(REPLY, name)
        if record is None or time.time() - record.content["created"] > LIFETIME_S:
            return None
        headers = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in record.content["headers"]]
        return record.content["request"], Reply(record.content["status"], headers, record.data or b"")

    def put(self, name: str, caller: str, request: str, reply: Reply) -> None:
        """Store a response, and delete those above the limits."""
        headers = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in reply.headers]
        created, size = time.time(), len(reply.body) + sum(len(key) + len(value) for key, value in reply.headers)
        content = {"created": created, "size": size, "request": request, "status": reply.status, "headers": headers}
        with self._lock:
            kept = self._loaded()
            self._records.put(Record(REPLY, name, {**content, "caller": caller}, reply.body))
            kept.setdefault(caller, _Kept()).add(name, created, size)
            expired = list(self._expired(kept, created))
            if expired:
                self._records.delete(REPLY, *expired)

    def _loaded(self) -> dict[str, _Kept]:
        if self._kept is None:
            self._kept = {}
            for one in sorted(self._records.list(REPLY), key=lambda one: one.content["created"]):
                of_caller = self._kept.setdefault(one.content["caller"], _Kept())
                of_caller.add(one.name, one.content["created"], one.content["size"])
        return self._kept

    def _expired(self, kept: dict[str, _Kept], now: float) -> Iterator[str]:
        """Remove and yield the names of responses that are too old or above the limits."""
        for caller, of_caller in list(kept.items()):
            while of_caller.replies and now - of_caller.oldest > LIFETIME_S:
                yield of_caller.pop()
            if not of_caller.replies:
                del kept[caller]
        while sum(len(one.replies) for one in kept.values()) > self._limit:
            yield max(kept.values(), key=lambda one: len(one.replies)).pop()
        while sum(one.bytes for one in kept.values()) > self._limit_bytes:
            yield max(kept.values(), key=lambda one: one.bytes).pop()
