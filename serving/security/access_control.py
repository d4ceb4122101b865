"""AccessControl: the ASGI layer that every request passes first.

It checks, in this order: the Host header and the origin of the requesting page (origins.py), then the key or session
(authentication.py) and whether its scopes include the one that the route requires (access.py). Every response, also
an error, gets the security headers.

Behind it, `scope["user"].display_name` is the name of the key, or the client's address on a server without keys.
`scope["auth"].scopes` lists what the key allows: "read", "write".
"""

from __future__ import annotations

from starlette.authentication import AuthCredentials, SimpleUser
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import NNCLRHubError, OpenedForReading

from ..keys import WRITE, Key
from ..problems import error_response, status_of
from ..settings import Settings, is_loopback
from . import login
from .access import LOGIN, LOGOUT, Access, AccessRules, Refusal
from .authentication import Authenticator, Sessions, caller_of
from .origins import OriginPolicy, own_names

READ_ONLY = "This server is read-only; send writes to the server that owns the store."
NO_KEY = Key("", (), b"")  # for routes that need none


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
        keys = settings.keys()
        secret = settings.session_secret.get_secret_value().encode()
        self._sessions = Sessions(settings.session_hours * 3600, keys, secret)
        self._authenticator = Authenticator(keys, self._sessions)
        local = is_loopback(settings.host)
        # a public server cannot know all of its names, and a page that rebinds one of them has no key
        checked = local or settings.allowed_hosts or not len(keys)
        hosts = own_names(settings.host, settings.allowed_hosts) if checked else None
        self._origins = OriginPolicy(hosts, literals=not local, origins=settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, address = Headers(scope=scope), caller_of(scope.get("client"))
        send = with_security_headers(send, self._origins.cors(headers))
        required = self._access.of(scope.get("method", "GET"), scope["path"])
        scope.setdefault("state", {})["route"] = required.route  # for the request log, also of refused requests
        key = self._key(scope, headers, required, address)
        if isinstance(key, Refusal):
            await self._refuse(key, scope, receive, send)
        elif self._is_preflight(scope, headers):
            await Response(status_code=204, headers=preflight(headers["origin"]))(scope, receive, send)
        elif scope["path"] in (LOGIN, LOGOUT):
            response = await self._log_in_or_out(Request(scope, receive), headers, address)
            await response(scope, receive, send)
        else:
            state = scope.setdefault("state", {})
            state["key_name"] = key.name  # for the request log
            state["counted"] = required.counted  # for the rate limits of `edge`
            state["streamed"] = required.streamed  # for the limits of bodies
            state["writes"] = required.scope == WRITE  # for the audit log
            scope["user"], scope["auth"] = SimpleUser(key.name or address), AuthCredentials(list(key.scopes))
            await self._app(scope, receive, send)

    def _key(self, scope: Scope, headers: Headers, required: Access, address: str) -> Key | Refusal:
        refusal = self._origins.refusal(scope, headers)
        if refusal is not None:
            return refusal
        if required.scope is None or self._is_preflight(scope, headers):
            return NO_KEY
        key = self._authenticator.of_request(scope, headers, address)
        if isinstance(key, Key) and required.scope not in key.scopes:
            return Refusal(403, "forbidden", "This key may read but not write; use a key with the write scope.")
        if isinstance(key, Key) and self._read_only and required.scope == WRITE:
            error = OpenedForReading(READ_ONLY)
            return Refusal(status_of(error), error.code, str(error))
        return key

    def _is_preflight(self, scope: Scope, headers: Headers) -> bool:
        requests_method = scope.get("method") == "OPTIONS" and "access-control-request-method" in headers
        return requests_method and self._origins.cors(headers) is not None

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.code})
            return
        accepts_html = scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", "")
        response = refusal.response(scope["path"])
        if refusal.status == 401 and accepts_html:
            response = login.to_login(scope["path"])
        await response(scope, receive, send)

    async def _log_in_or_out(self, request: Request, headers: Headers, address: str) -> Response:
        if not self._authenticator.required:
            return RedirectResponse("/", 303)
        if request.url.path == LOGOUT:
            return login.log_out(self._sessions, request)
        if request.method != "POST":
            return login.form(request, self._sessions.key(headers))
        try:
            secret, target = await login.read_form(request)
        except NNCLRHubError as error:  # the error handlers of the routes do not run here
            return error_response(request.url.path, error)
        key = self._authenticator.of_secret(secret, address)
        if isinstance(key, Refusal):
            return login.refused(key, target)
        return login.log_in(self._sessions, key, request, target)


# ---- security headers of every response; headers that a response already has are kept

ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=(), payment=(), usb=()",
}
CSP, NO_STORE = "Content-Security-Policy", {"Cache-Control": "no-store"}
NOTHING = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
EXPOSED = (
    "Location, Retry-After, Server-Timing, X-Request-Id, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    "x-ratelimit-reset-requests, x-ratelimit-limit-images, x-ratelimit-remaining-images, x-ratelimit-reset-images"
)


def with_security_headers(send: Send, origin: str | None) -> Send:
    """Wrap `send` to add the headers to the start of a response.

    Args:
        origin: another origin that may read the response (CORS).
    """

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", ())}
            message["headers"] = [*message.get("headers", ()), *(one for one in _ADDED if one[0] not in present)]
            if origin is not None:
                headers = MutableHeaders(scope=message)
                headers["Access-Control-Allow-Origin"] = origin
                headers["Access-Control-Expose-Headers"] = EXPOSED
                headers.add_vary_header("Origin")
        await send(message)

    return with_headers


def preflight(origin: str) -> dict[str, str]:
    """Return the headers that let another origin send its request, which still needs a key."""
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
        "Access-Control-Allow-Headers": "Authorization, Content-Type, Accept, Idempotency-Key, X-Request-Id, "
        "Upload-Offset, Upload-Complete",
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }


# encoded once, for every response
_ADDED = [
    (name.lower().encode(), value.encode("latin-1")) for name, value in {**ALWAYS, CSP: NOTHING, **NO_STORE}.items()
]
