"""AccessControl: the ASGI layer that every request passes first.

It checks, in this order: the Host header and the origin of the requesting page (origins.py), then the key or session
(keyholders.py) and whether its scopes include the one that the route requires (access.py). Every response, also an
error, gets the security headers.

Behind it, `scope["user"].display_name` is the name of the key, or the client's address on a server without keys.
`scope["auth"].scopes` lists what the key allows: "read", "write".
"""

from __future__ import annotations

from starlette.authentication import AuthCredentials, SimpleUser
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import NNCLRHubError, OpenedForReading

from ..keys import WRITE, Key
from ..problems import error_response, status_of
from ..settings import Settings
from . import login
from .access import LOGIN, LOGOUT, Access, AccessRules, Refusal
from .keyholders import Keyholders, caller_of
from .origins import OriginPolicy

READ_ONLY = "This server is read-only; send writes to the server that owns the store."
NO_KEY = Key("", (), b"")  # for routes that need none
COOKIE = "nnclr_session"


class AccessControl:
    """Pass a request on, or answer why it is refused.

    Args:
        app: the app behind this layer.
        access: what each route requires.
        settings: keys, hosts and origins.
        read_only: whether to refuse every write, whatever the key.

    Raises:
        InvalidRequest: a key in the settings is malformed or too weak.
    """

    def __init__(self, app: ASGIApp, access: AccessRules, settings: Settings, *, read_only: bool = False) -> None:
        self._app = app
        self._access = access
        self._read_only = read_only
        self._origins = OriginPolicy(settings)
        self._keyholders = Keyholders(settings.keys())
        secret, seconds = settings.session_secret.get_secret_value(), int(settings.session_hours * 3600)

        def with_session(name: str, *, secure: bool) -> ASGIApp:
            return SessionMiddleware(self._admit, secret, name, seconds, same_site="strict", https_only=secure)

        # browsers accept a cookie with the prefix __Host- only over HTTPS and for exactly this host
        self._by_scheme = {
            "http": with_session(COOKIE, secure=False),
            "https": with_session(f"__Host-{COOKIE}", secure=True),
        }
        self._with_cors = CORSMiddleware(
            self._with_session,
            settings.cors_origins,
            ("GET", "POST", "PUT", "PATCH", "DELETE"),
            ("Authorization", "Idempotency-Key", "X-Request-Id", "Upload-Offset", "Upload-Complete"),
            expose_headers=("Location", "Retry-After", "Server-Timing", "X-Request-Id"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, send = Headers(scope=scope), with_security_headers(send)
        required = self._access.of(scope.get("method", "GET"), scope["path"])
        state = scope.setdefault("state", {})
        state["route"] = required.route  # for the request log, also of refused requests
        state["streamed"] = required.streamed  # for the limits of bodies
        state["writes"] = required.scope == WRITE  # for the audit log
        state["required"] = required
        refusal = self._origins.refusal(scope, headers)
        if refusal is not None:
            await self._refuse(refusal, scope, receive, send)
        elif self._origins.lists(headers):
            await self._with_cors(scope, receive, send)
        else:
            await self._with_session(scope, receive, send)

    async def _with_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._by_scheme.get(scope.get("scheme", ""), self._admit) if self._keyholders else self._admit
        await app(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the key, and pass the request on."""
        headers, address, state = Headers(scope=scope), caller_of(scope.get("client")), scope["state"]
        scope.setdefault("session", {})
        key = self._key(scope, headers, state["required"], address)
        if isinstance(key, Refusal):
            await self._refuse(key, scope, receive, send)
        elif scope["path"] in (LOGIN, LOGOUT):
            response = await self._log_in_or_out(Request(scope, receive), address)
            await response(scope, receive, send)
        else:
            state["key_name"] = key.name  # for the request log
            scope["user"], scope["auth"] = SimpleUser(key.name or address), AuthCredentials(list(key.scopes))
            try:
                state["required"].check_query(scope["query_string"])
            except NNCLRHubError as error:  # the error handlers of the routes do not run here
                await error_response(scope["path"], error)(scope, receive, send)
                return
            await self._app(scope, receive, send)

    def _key(self, scope: Scope, headers: Headers, required: Access, address: str) -> Key | Refusal:
        if required.scope is None:
            return NO_KEY
        key = self._keyholders.of_request(scope, headers, address)
        if isinstance(key, Key) and required.scope not in key.scopes:
            return Refusal(403, "forbidden", "This key may read but not write; use a key with the write scope.")
        if isinstance(key, Key) and self._read_only and required.scope == WRITE:
            error = OpenedForReading(READ_ONLY)
            return Refusal(status_of(error), error.code, str(error))
        return key

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.code})
            return
        accepts_html = scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", "")
        response = refusal.response(scope["path"])
        if refusal.status == 401 and accepts_html:
            response = login.to_login(scope["path"])
        await response(scope, receive, send)

    async def _log_in_or_out(self, request: Request, address: str) -> Response:
        if not self._keyholders:
            return RedirectResponse("/", 303)
        if request.url.path == LOGOUT:
            if request.method != "POST":  # otherwise any web page could log a user out by a link
                return RedirectResponse(LOGIN, 303)
            self._keyholders.end(request.session)
            return RedirectResponse(LOGIN, 303, {"Clear-Site-Data": '"cache"'})
        if request.method != "POST":
            return login.form(request, self._keyholders.of_session(request.session))
        try:
            secret, target = await login.read_form(request)
        except NNCLRHubError as error:
            return error_response(request.url.path, error)
        key = self._keyholders.of_secret(secret, address)
        if isinstance(key, Refusal):
            return login.refused(key, target)
        self._keyholders.begin(request.session, key)
        return RedirectResponse(target, 303)


# ---- security headers of every response; headers that a response already has are kept

ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=(), payment=(), usb=()",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
}
_ADDED = [(name.lower().encode(), value.encode("latin-1")) for name, value in ALWAYS.items()]  # encoded once


def with_security_headers(send: Send) -> Send:
    """Wrap `send` to add the headers to the start of a response."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", ())}
            message["headers"] = [*message.get("headers", ()), *(one for one in _ADDED if one[0] not in present)]
        await send(message)

    return with_headers
