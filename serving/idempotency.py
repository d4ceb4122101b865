"""Idempotency-Key: a POST that is sent again gets the answer of the first, and is not done again.

    POST /api/v1/collections/photos/items       Idempotency-Key: 5f0c...
    200, and sent again: the same 200 with Idempotency-Replayed: true

Routes that change nothing ignore the key, for there is nothing to be done twice.

A pure ASGI layer behind the door, which knows who asks. The key belongs to the caller, and to one request: method,
path, query and body. The answer is durable before its last byte is sent, so who has it can rely on it; if the server
dies before that, the request is done again. Only definite answers are kept: not those that say to come back later.
"""

from __future__ import annotations

import hashlib
import logging
import re
from typing import Any, NamedTuple

from anyio.to_thread import run_sync
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import NNCLRHubError, StoreError

from .keys import WRITE
from .problems import problem, told
from .replies import Replies, Reply
from .request_bodies import in_thread_if_large
from .security.access import AccessRules

log = logging.getLogger(__name__)
MARK = "idempotent_request"  # in the scope's state: what is the same for the same request with the same key
LARGEST = 8 << 20  # bytes of one answer; a larger one is sent, and not kept
LATER = (408, 425, 429, 499)  # and all above; 499: the client went away, and may come back
# of the first answer alone
OF_ONE_ANSWER = (b"x-request-id", b"server-timing", b"date")
_KEY = re.compile(r"[!-~]{1,255}")
_BOUNDARY = re.compile(rb'boundary="?([^";,\s]{1,200})"?', re.IGNORECASE)


class _Asked(NamedTuple):
    """A request with a key.

    name: by what its answer is kept: the key as its caller's own.
    caller: who asks.
    request: what tells it from another request.
    """

    name: str
    caller: str
    request: str


class Idempotency:
    """See the module.

    Args:
        app: what answers.
        replies: keeps its answers.
        access: tells which routes change something.
    """

    def __init__(self, app: ASGIApp, replies: Replies, access: AccessRules) -> None:
        self._app = app
        self._access = access
        self._replies = replies
        self._in_flight: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if self._changes(scope) else None
        key = headers.get("idempotency-key") if headers is not None else None
        if headers is None or key is None:
            await self._app(scope, receive, send)
            return
        if not _KEY.fullmatch(key):
            detail = "An Idempotency-Key is 1 to 255 visible characters of ASCII, such as a UUID."
            await _refusal(scope["path"], 422, "idempotency_key_invalid", detail)(scope, receive, send)
            return
        try:
            body = await _whole(receive)
        except NNCLRHubError as error:  # no route is there yet whose errors others would answer
            await told(scope["path"], error)(scope, receive, send)
            return
        if body is not None:
            caller = _hash(str(scope.get("state", {}).get("key_name") or headers.get("authorization", "")).encode())
            name = _hash(caller.encode(), key.encode())
            request = await in_thread_if_large(len(body), _print, scope, headers, body)
            scope.setdefault("state", {})[MARK] = f"{name}{request}"
            await self._once(_Asked(name, caller, request), scope, body, receive, send)

    async def _once(self, asked: _Asked, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """The answer that is kept, or a new one."""
        path, name = scope["path"], asked.name
        if name in self._in_flight:
            detail = "The first request with this Idempotency-Key is still at work: ask again in a moment."
            wait = {"Retry-After": "1"}
            await problem(path, 409, "idempotency_in_flight", detail, headers=wait)(scope, receive, send)
            return
        self._in_flight.add(name)
        try:
            there = await run_sync(self._replies.get, name)
            if there is None:
                await self._app(scope, _again(body, receive), _Keeping(send, self._replies, asked))
            elif there[0] != asked.request:
                detail = "This Idempotency-Key came with another request before: take a new key for a new request."
                await _refusal(path, 422, "idempotency_mismatch", detail)(scope, receive, send)
            else:
                await _replay(there[1], send)
        except StoreError as error:
            await told(path, error)(scope, receive, send)
        finally:
            self._in_flight.discard(name)

    def _changes(self, scope: Scope) -> bool:
        """Return whether a request is a POST that changes something, so that it must not be done twice."""
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith(("/api/", "/v1/")):
            return False
        return self._access.of("POST", scope["path"]).scope == WRITE


class _Keeping:
    """`send` that keeps an answer before its last part goes out."""

    def __init__(self, send: Send, replies: Replies, asked: _Asked) -> None:
        self._send, self._replies, self._asked = send, replies, asked
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
            asked = self._asked
            await run_sync(self._replies.put, asked.name, asked.caller, asked.request, Reply(status, headers, body))
        except StoreError as error:  # it is done, and has to be answered
            log.warning("an answer could not be kept for its Idempotency-Key (%s)", error)


def _refusal(path: str, status: int, code: str, detail: str) -> JSONResponse:
    """A problem; OpenAI knows no 422."""
    return problem(path, 400 if path.startswith("/v1/") and status == 422 else status, code, detail)


async def _replay(reply: Reply, send: Send) -> None:
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
