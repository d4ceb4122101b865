"""Idempotency-Key: a POST that is sent again gets the stored response of the first, and is not executed again.

    POST /api/v1/collections/photos/items       Idempotency-Key: 5f0c...
    200; sent again, the same 200 with Idempotency-Replayed: true

Routes that change nothing ignore the key.

This is a pure ASGI layer after access control, which identifies the caller. A key belongs to one caller and one
request: method, path, query and body. The response is durable before its last byte is sent. If the server dies before
that, the request is executed again. Responses that ask the client to retry later are not stored.
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
from .problems import error_response, problem
from .replies import Replies, Reply
from .request_bodies import in_thread_if_large
from .security.access import AccessRules

log = logging.getLogger(__name__)
STATE_NAME = "idempotent_request"  # in the state of the scope: equal for the same request with the same key
MAX_STORED = 8 << 20  # bytes of one response; a larger one is sent but not stored
INVALID_KEY = "Idempotency-Key must be 1 to 255 visible ASCII characters, such as a UUID."
RETRY_STATUS = (408, 425, 429, 499)  # like all of 500 and above; 499: the client disconnected and may return
# headers of the first response only
NOT_STORED = (b"x-request-id", b"server-timing", b"date")
KEY = re.compile(r"[!-~]{1,255}")
_BOUNDARY = re.compile(rb'boundary="?([^";,\s]{1,200})"?', re.IGNORECASE)


class _Keyed(NamedTuple):
    """A request with a key.

    name: hash of caller and key, under which the response is stored.
    caller: hash of the caller.
    request: hash of the request.
    """

    name: str
    caller: str
    request: str


class Idempotency:
    """Answer a repeated request with the stored response of the first.

    Args:
        app: the next ASGI layer.
        replies: stores the responses.
        access: declares which routes change something.
    """

    def __init__(self, app: ASGIApp, replies: Replies, access: AccessRules) -> None:
        self._app = app
        self._access = access
        self._replies = replies
        self._in_flight: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not any(name == b"idempotency-key" for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = headers["idempotency-key"]
        if not self._changes(scope):
            await self._app(scope, receive, send)
            return
        if not KEY.fullmatch(key):
            await _refusal(scope["path"], 422, "idempotency_key_invalid", INVALID_KEY)(scope, receive, send)
            return
        try:
            body = await _whole(receive)
        except NNCLRHubError as error:  # exception handlers run inside the app, after this layer
            await error_response(scope["path"], error)(scope, receive, send)
            return
        if body is not None:
            caller = _hash(str(scope.get("state", {}).get("key_name") or headers.get("authorization", "")).encode())
            name = _hash(caller.encode(), key.encode())
            request = await in_thread_if_large(len(body), _request_hash, scope, headers, body)
            scope.setdefault("state", {})[STATE_NAME] = f"{name}{request}"
            await self._once(_Keyed(name, caller, request), scope, body, receive, send)

    async def _once(self, keyed: _Keyed, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Send the stored response, or let the app make one."""
        path, name = scope["path"], keyed.name
        if name in self._in_flight:
            detail = "The first request with this Idempotency-Key is still being processed; retry in a second."
            wait = {"Retry-After": "1"}
            await problem(path, 409, "idempotency_in_flight", detail, headers=wait)(scope, receive, send)
            return
        self._in_flight.add(name)
        try:
            stored = await run_sync(self._replies.get, name)
            if stored is None:
                await self._app(scope, _again(body, receive), _StoringSend(send, self._replies, keyed))
            elif stored[0] != keyed.request:
                detail = "This Idempotency-Key was used for a different request; use a new key."
                await _refusal(path, 422, "idempotency_mismatch", detail)(scope, receive, send)
            else:
                await _replay(stored[1], send)
        except StoreError as error:
            await error_response(path, error)(scope, receive, send)
        finally:
            self._in_flight.discard(name)

    def _changes(self, scope: Scope) -> bool:
        """Return whether a request is a POST that changes something, so that it must not be done twice."""
        if scope["method"] != "POST" or not scope["path"].startswith(("/api/", "/v1/")):
            return False
        access = self._access.of("POST", scope["path"])
        return access.scope == WRITE and not access.streamed


class _StoringSend:
    """A `send` that stores the response before its last part is sent."""

    def __init__(self, send: Send, replies: Replies, keyed: _Keyed) -> None:
        self._send, self._replies, self._keyed = send, replies, keyed
        self._start: Message | None = None
        self._parts: list[bytes] | None = []  # None: too large to store

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body" and self._parts is not None:
            self._parts.append(message.get("body", b""))
            if sum(map(len, self._parts)) > MAX_STORED:
                self._parts = None
            elif not message.get("more_body", False):
                await self._keep(b"".join(self._parts))
        await self._send(message)

    async def _keep(self, body: bytes) -> None:
        assert self._start is not None
        status = self._start["status"]
        if status >= 500 or status in RETRY_STATUS:
            return
        headers = [(key, value) for key, value in self._start["headers"] if key.lower() not in NOT_STORED]
        try:
            keyed = self._keyed
            await run_sync(self._replies.put, keyed.name, keyed.caller, keyed.request, Reply(status, headers, body))
        except StoreError as error:  # the request was executed, so the response must still be sent
            log.warning("A response could not be stored for its Idempotency-Key (%s).", error)


def _refusal(path: str, status: int, code: str, detail: str) -> JSONResponse:
    """Return an error response; the OpenAI API has no 422."""
    return problem(path, 400 if path.startswith("/v1/") and status == 422 else status, code, detail)


async def _replay(reply: Reply, send: Send) -> None:
    start: dict[str, Any] = {"type": "http.response.start", "status": reply.status, "headers": list(reply.headers)}
    MutableHeaders(scope=start)["Idempotency-Replayed"] = "true"
    await send(start)
    await send({"type": "http.response.body", "body": reply.body})


async def _whole(receive: Receive) -> bytes | None:
    """Return the body; None if the client disconnects before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that repeats a body that was already read."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _request_hash(scope: Scope, headers: Headers, body: bytes) -> str:
    """Hash a request. The boundary of a form is left out, because a client that retries chooses a new one."""
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
