"""Idempotency-Key: a POST that is sent again gets the answer of the first, and is not done again.

    POST /api/v1/collections/photos/items       Idempotency-Key: 5f0c...
    200, and sent again: the same 200 with Idempotency-Replayed: true

A pure ASGI layer behind the door, which knows who asks. The key belongs to the caller, and to one request: method,
path, query and body. The answer is durable before its last byte is sent, so who has it can rely on it; if the server
dies before that, the request is done again. Only definite answers are kept: not those that say to come back later.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from anyio.to_thread import run_sync
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import NNCLRHubError, StoreError
from nnclr_hub.store.records import Record, Records

from .aside import aside
from .privacy import without_paths
from .problems import problem, status_of

log = logging.getLogger(__name__)
REPLY = "reply"
MARK = "idempotent_request"  # in the scope's state: what is the same for the same request with the same key
LIFETIME_S = 24 * 3600.0
LARGEST = 8 << 20  # bytes of one answer; a larger one is sent, and not kept
LATER = (408, 425, 429)  # and all above 499
# of the first answer alone
OF_ONE_ANSWER = (b"x-request-id", b"server-timing", b"date")
_KEY = re.compile(r"[!-~]{1,255}")
_BOUNDARY = re.compile(rb'boundary="?([^";,\s]{1,200})"?', re.IGNORECASE)


@dataclass(frozen=True)
class _Reply:
    """An answer: status, headers, body."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Replies:
    """Answers that are kept, by name, the oldest first to go.

    Args:
        records: where they are kept.
        most: how many; most_bytes: bytes of them.
    """

    def __init__(self, records: Records, most: int, most_bytes: int) -> None:
        self._records = records
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, int]] | None = None  # name: created, bytes
        self._bytes = 0

    def get(self, name: str) -> tuple[str, _Reply] | None:
        """The print of the request that was answered, and its answer; None if there is none, or it is too old."""
        record = self._records.get(REPLY, name)
        if record is None or time.time() - record.content["created"] > LIFETIME_S:
            return None
        headers = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in record.content["headers"]]
        return record.content["request"], _Reply(record.content["status"], headers, record.data or b"")

    def put(self, name: str, request: str, reply: _Reply) -> None:
        """Keeps an answer, and lets go of what is too much."""
        headers = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in reply.headers]
        created, size = time.time(), len(reply.body) + sum(len(key) + len(value) for key, value in reply.headers)
        content = {"created": created, "size": size, "request": request, "status": reply.status, "headers": headers}
        with self._lock:
            kept = self._loaded()
            self._records.put(Record(REPLY, name, content, reply.body))
            self._bytes += size - kept.pop(name, (0.0, 0))[1]
            kept[name] = (created, size)
            self._let_go(kept, created)

    def _loaded(self) -> OrderedDict[str, tuple[float, int]]:
        """What is kept, the oldest first."""
        if self._kept is None:
            found = [(one.content["created"], one.content["size"], one.name) for one in self._records.list(REPLY)]
            self._kept = OrderedDict((name, (created, size)) for created, size, name in sorted(found))
            self._bytes = sum(size for _, size, _ in found)
        return self._kept

    def _let_go(self, kept: OrderedDict[str, tuple[float, int]], now: float) -> None:
        gone = []
        while kept:
            name, (created, size) = next(iter(kept.items()))
            if len(kept) <= self._most and self._bytes <= self._most_bytes and now - created <= LIFETIME_S:
                break
            del kept[name]
            self._bytes -= size
            gone.append(name)
        if gone:
            self._records.delete(REPLY, *gone)


class Idempotency:
    """See the module.

    Args:
        app: what answers.
        replies: keeps its answers.
    """

    def __init__(self, app: ASGIApp, replies: Replies) -> None:
        self._app = app
        self._replies = replies
        self._in_flight: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        key = headers.get("idempotency-key") if headers is not None else None
        if headers is None or key is None or not scope["path"].startswith(("/api/", "/v1/")):
            await self._app(scope, receive, send)
            return
        if not _KEY.fullmatch(key):
            detail = "An Idempotency-Key is 1 to 255 visible characters of ASCII, such as a UUID."
            await _refusal(scope["path"], 422, "idempotency_key_invalid", detail)(scope, receive, send)
            return
        try:
            body = await _whole(receive)
        except NNCLRHubError as error:  # no route is there yet whose errors others would answer
            await problem(scope["path"], status_of(error), error.code, str(error))(scope, receive, send)
            return
        if body is not None:
            name, request = _name(scope, headers, key), await aside(len(body), _print, scope, headers, body)
            scope.setdefault("state", {})[MARK] = f"{name}{request}"
            await self._once(name, request, scope, body, receive, send)

    async def _once(self, name: str, request: str, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """The answer that is kept, or a new one."""
        path = scope["path"]
        if name in self._in_flight:
            detail = "The first request with this Idempotency-Key is still at work: ask again in a moment."
            wait = {"Retry-After": "1"}
            await problem(path, 409, "idempotency_in_flight", detail, headers=wait)(scope, receive, send)
            return
        self._in_flight.add(name)
        try:
            there = await run_sync(self._replies.get, name)
            if there is None:
                await self._app(scope, _again(body, receive), _Keeping(send, self._replies, name, request))
            elif there[0] != request:
                detail = "This Idempotency-Key came with another request before: take a new key for a new request."
                await _refusal(path, 422, "idempotency_mismatch", detail)(scope, receive, send)
            else:
                await _replay(there[1], send)
        except StoreError as error:
            detail = without_paths(str(error))
            await problem(path, status_of(error), error.code, detail)(scope, receive, send)
        finally:
            self._in_flight.discard(name)


class _Keeping:
    """`send` that keeps an answer before its last part goes out."""

    def __init__(self, send: Send, replies: Replies, name: str, request: str) -> None:
        self._send, self._replies = send, replies
        self._name, self._request = name, request
        self._start: Message | None = None
        self._parts: list[bytes] | None = []  # None: too much to keep

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body" and self._parts is not None:
            self._parts.append(message.get("body", b""))
            if sum(map(len, self._parts)) > LARGEST:
                self._parts = None
            elif not message.get("more_body", False):
                await self._keep(b"".join(self._parts))
        await self._send(message)

    async def _keep(self, body: bytes) -> None:
        assert self._start is not None
        status = self._start["status"]
        if status >= 500 or status in LATER:
            return
        headers = [(key, value) for key, value in self._start["headers"] if key.lower() not in OF_ONE_ANSWER]
        try:
            await run_sync(self._replies.put, self._name, self._request, _Reply(status, headers, body))
        except StoreError as error:  # it is done, and has to be answered
            log.warning("an answer could not be kept for its Idempotency-Key (%s)", error)


def _refusal(path: str, status: int, code: str, detail: str) -> JSONResponse:
    """A problem; OpenAI knows no 422."""
    return problem(path, 400 if path.startswith("/v1/") and status == 422 else status, code, detail)


async def _replay(reply: _Reply, send: Send) -> None:
    start: dict[str, Any] = {"type": "http.response.start", "status": reply.status, "headers": list(reply.headers)}
    MutableHeaders(scope=start)["Idempotency-Replayed"] = "true"
    await send(start)
    await send({"type": "http.response.body", "body": reply.body})


async def _whole(receive: Receive) -> bytes | None:
    """The body; None if the client goes away before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """`receive` that gives a body that was read already, and then what else comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _name(scope: Scope, headers: Headers, key: str) -> str:
    """By what the answer is kept: the key as its caller's own."""
    caller = scope.get("state", {}).get("key_name") or headers.get("authorization", "")
    return _hash(str(caller).encode(), key.encode())


def _print(scope: Scope, headers: Headers, body: bytes) -> str:
    """What tells one request from another; a form that is written anew has another boundary, and is the same."""
    kind = headers.get("content-type", "").encode("latin-1")
    found = _BOUNDARY.search(kind) if kind.startswith(b"multipart/") else None
    if found is not None:
        body, kind = body.replace(found[1], b""), kind.replace(found[1], b"")
    parts = (scope["method"].encode(), scope["path"].encode("utf-8", "surrogateescape"), scope["query_string"])
    return _hash(*parts, headers.get("accept", "").encode("latin-1"), kind, body)


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
