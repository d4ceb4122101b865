"""The door: who may come in, from where, and with how much.

Three pure ASGI layers, outermost first: the Host header must be a name of ours (or a page elsewhere
could reach a server on this machine by a name of its own), a write must not come from a page of
another origin, keys where there are any, and a body may not be larger than the limit, counted while
it streams in.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import RequestTooLarge

from .problems import problem
from .settings import Settings

SAFE = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = ("/healthz", "/readyz")
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]", "::1")


class Door:
    """Checks Host, Origin, key and size before the app sees a request."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._hosts = {settings.host, *LOCAL_NAMES, *settings.allowed_hosts} if settings.is_local else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope, Headers(scope=scope))
        if refusal is not None:
            await problem(scope["path"], *refusal)(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str, str] | None:
        """(status, code, sentence) if the request may not come in."""
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            return 403, "host_not_allowed", f"The host {host!r} is not one of this server's: use 127.0.0.1."
        writes = scope.get("method", "GET") not in SAFE
        origin = headers.get("origin")
        if writes and origin is not None and urlsplit(origin).netloc != host:
            return 403, "origin_not_allowed", f"A page of {origin} may not write here."
        if self._settings.has_keys and scope["path"] not in OPEN_PATHS:
            return self._key_refusal(scope, headers, writes)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._settings.max_bytes:
            return 413, RequestTooLarge.code, self._too_large()
        return None

    def _key_refusal(self, scope: Scope, headers: Headers, writes: bool) -> tuple[int, str, str] | None:
        kind, _, key = headers.get("authorization", "").partition(" ")
        may_write = _matches(key, self._settings.write_keys)
        if kind.lower() != "bearer" or not (may_write or _matches(key, self._settings.api_keys)):
            return 401, "unauthorized", "This server needs a key: send the header Authorization: Bearer KEY."
        reads = not writes or scope["path"].endswith(("/search", "/embed", "/embeddings"))
        if not (reads or may_write):
            return 403, "forbidden", "This key may read but not write."
        return None

    def _counted(self, receive: Receive) -> Receive:
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            if message["type"] == "http.request":
                total += len(message.get("body", b""))
                if total > self._settings.max_bytes:
                    raise RequestTooLarge(self._too_large())
            return message

        return counted

    def _too_large(self) -> str:
        return f"The request is above the limit of {self._settings.max_bytes / 1e6:g} MB: send fewer pictures at once."


def _name(host: str) -> str:
    """The Host header without its port."""
    return host if host.endswith("]") else host.rsplit(":", 1)[0] if ":" in host else host


def _matches(key: str, keys: Iterable[SecretStr]) -> bool:
    """Compares with all keys, each in constant time; the time does not tell which one was near."""
    return sum(hmac.compare_digest(key.encode(), one.get_secret_value().encode()) for one in keys) > 0
