"""Access control: which requests the server accepts. docs/security.md explains which attack each part prevents.

    rules = AccessRules(ROUTERS)            # raises TypeError for a route without a declared scope
    rules.of("POST", "/api/v1/embed")       # Access(scope="read")

`AccessControl` is the ASGI layer that every request passes first. It checks, in this order: the Host header and the
origin of the requesting page, then the key and whether its scopes include the one that the route requires. Every
response, also an error, gets the security headers.

The key is in the Authorization header, or in the session that a login started. A session is starlette's: a signed
cookie, which does not reveal the key. Scripts cannot read it (HttpOnly), and browsers send it only from our own pages
(SameSite=Strict). Programs send their key instead.

Behind this layer, `scope["user"].display_name` is the name of the key, or the client's address on a server without
keys. `scope["auth"].scopes` lists what the key allows: "read", "write".
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import ipaddress
import logging
import re
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.authentication import AuthCredentials, SimpleUser
from starlette.datastructures import Headers, QueryParams
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import InvalidRequest, NNCLRHubError, OpenedForReading, RequestTooSlow

from .keys import READ, WRITE, Key
from .problems import Refused, error_response, status_of
from .settings import Settings, is_loopback

log = logging.getLogger(__name__)
APP = "/app"  # the files of the web app, whose page is at /
SAFE = ("GET", "HEAD", "OPTIONS")
BROWSER = frozenset({b"origin", b"sec-fetch-site"})  # headers by which a browser says which page sends a request
LONG = 256  # characters of a path that is not remembered
COOKIE = "nnclr_session"
NO_KEY = Key("", (), b"")  # for routes that need none
ANYONE = Key("", (READ, WRITE), b"")  # every client of a server without keys
WRONG_KEYS_S = 60.0  # between two lines of the log about wrong keys
MAX_ENDED = 100_000  # ended sessions that are remembered
LOGIN, LOGOUT = "/login", "/logout"
MAX_FORM = 4096  # bytes
FORM_S = 10.0
_STYLE = (
    "body{font-family:system-ui,sans-serif;max-width:26rem;margin:15vh auto;padding:0 1rem;color:#1f2937}"
    "input,button{font:inherit;padding:.6rem;box-sizing:border-box;width:100%;margin-top:.5rem;border-radius:.4rem;"
    "border:1px solid #6b7280}button{background:#c2410c;color:#fff;border:0;cursor:pointer}"
    "[role=alert]{color:#b91c1c}"
)
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_NEXT = ("/", "/docs")


# ---- what each route requires


@dataclass(frozen=True)
class Access:
    """What a request needs.

    scope: READ or WRITE, which the key must have; None: no key needed.
    streamed: whether the route writes the body to disk as it arrives, so that it may be large and take long.
    route: template of the path; "" outside of the API's routes.
    query: names of the query parameters; None: any.
    """

    scope: str | None
    streamed: bool = False
    route: str = ""
    query: tuple[str, ...] | None = None

    def check_query(self, text: bytes) -> None:
        """Raise InvalidRequest for a query parameter that is unknown or given twice. No misspelled one is ignored."""
        if not text or self.query is None:
            return
        given = QueryParams(text)
        for name in given:
            if name not in self.query:
                expected = f"expected {', '.join(self.query)}" if self.query else "it has no parameters"
                raise InvalidRequest(f"This path has no query parameter {name!r:.100}; {expected}.")
            if (count := len(given.getlist(name))) > 1:
                raise InvalidRequest(f"The query parameter {name} is given {count} times; give it once.")


class AccessRules:
    """What `Router.on` declares for all routes, found by method and path.

    A path that no route matches needs READ for a safe method, else WRITE. So an unknown path is closed, not open.

    Args:
        routers: all routers of the app, in the order in which it includes them.

    Raises:
        TypeError: a route declares no scope.
    """

    def __init__(self, routers: Iterable[APIRouter] = ()) -> None:
        routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
        self._routes = [(route.methods or set(), route.path_regex, _access_of(route)) for route in routes]
        self._recent = lru_cache(1024)(self._find)  # most paths have no parameters, and repeat

    def of(self, method: str, path: str) -> Access:
        """Return what a request needs."""
        return self._recent(method, path) if len(path) < LONG else self._find(method, path)

    def _find(self, method: str, path: str) -> Access:
        method_of_route = "GET" if method == "HEAD" else method
        for methods, pattern, access in self._routes:
            if method_of_route in methods and pattern.fullmatch(path):
                return access
        # the files of the web app hold no data; its scripts send the key
        public = path in (LOGIN, LOGOUT) or (method != "POST" and re.fullmatch(f"{APP}(/.*)?", path))
        if public and method in ("GET", "HEAD", "POST"):
            return Access(None)
        return Access(READ if method in SAFE else WRITE)


def _access_of(route: APIRoute) -> Access:
    access: Access | None = getattr(route.endpoint, "__access__", None)
    if access is None:
        raise TypeError(f"Route {route.path} declares no scope; use Router.on.")
    return replace(access, route=route.path, query=_query_names(route.dependant) if route.include_in_schema else None)


def _query_names(dependant: Dependant) -> tuple[str, ...]:
    own = [param.alias for param in dependant.query_params]
    return (*own, *(name for inner in dependant.dependencies for name in _query_names(inner)))


# ---- other web pages in the user's browser

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+?)[.]?(?::(\d{1,5}))?")
_PORTS = {"http": "80", "https": "443"}


class OriginPolicy:
    """Check Host, Origin and Sec-Fetch-Site against the settings host, allowed_hosts, keys and cors_origins.

    A browser sends requests of any page to any address, including servers on its own machine. Therefore:

    - the Host header must be one of our names. Otherwise another site could point its name at us and read our
      responses (DNS rebinding);
    - writes must come from our own origin, or from one that the settings list;
    - requests that the browser labels as cross-site (Sec-Fetch-Site) are refused.

    Programs send neither Origin nor Sec-Fetch-Site and are not affected. Starlette's TrustedHostMiddleware answers
    without a code, takes the first of two Host headers, and cannot allow IP addresses alone.
    """

    def __init__(self, settings: Settings) -> None:
        local = is_loopback(settings.host)
        # a public server cannot know all of its names, and a page that rebinds one of them has no key
        self._checked = local or bool(settings.allowed_hosts) or not settings.has_keys
        own = (settings.host, f"[{settings.host}]", socket.gethostname(), "127.0.0.1", "localhost", "[::1]")
        self._hosts = {name.lower() for name in (*own, *settings.allowed_hosts)}
        self._literals = not local  # no page can rebind an IP address
        self._listed = frozenset(settings.cors_origins)

    def lists(self, headers: Headers) -> bool:
        """Return whether the settings allow the request's origin to use the API."""
        return bool(self._listed) and headers.get("origin") in self._listed

    def check(self, method: str, headers: Headers) -> None:
        """Raise Refused for a request of another page, or to a name that is not ours."""
        values = headers.getlist("host")
        host = _HOST.fullmatch(values[0].lower()) if len(values) == 1 else None
        if self._checked and not (host and self._is_allowed(host[1])):
            raise Refused(
                "host_not_allowed",
                f"The host {', '.join(values)!r:.100} is not allowed; the operator of this server can add it to "
                "NNCLR_ALLOWED_HOSTS.",
            )
        if self.lists(headers) or not BROWSER.intersection(name for name, _ in headers.raw):
            return
        origin, writes = headers.get("origin"), method not in SAFE
        own = host is not None and origin is not None and _is_own(origin, host)
        cross_site = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        followed_link = not writes and headers.get("sec-fetch-mode") == "navigate"
        if (writes and origin is not None and not own) or (cross_site and not own and not followed_link):
            raise Refused(
                "origin_not_allowed",
                f"Pages of {origin or 'another site'!r:.100} may not use this server; its operator can add the origin "
                "to NNCLR_CORS_ORIGINS.",
            )

    def _is_allowed(self, name: str) -> bool:
        if name in self._hosts:
            return True
        try:
            return self._literals and bool(ipaddress.ip_address(name.strip("[]")))
        except ValueError:
            return False


def _is_own(origin: str, host: re.Match[str]) -> bool:
    """Return whether the origin matches the Host header. Behind a proxy the scheme is unknown, so it is ignored."""
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return False
    named = _HOST.fullmatch(parts.netloc)
    if named is None or parts.scheme not in _PORTS:
        return False
    default = _PORTS[parts.scheme]
    return (named[1], named[2] or default) == (host[1], host[2] or default)


def _may_use_cookie(method: str, headers: Headers) -> bool:
    """Return whether a session is enough: for a request of a page of this server, or a read that the user typed.

    A browser says with each request that may write which page sends it (`Origin`), and to trustworthy addresses also
    how near that page is (`Sec-Fetch-Site`). A page on another port of this host is not ours.
    """
    site = headers.get("sec-fetch-site")
    if method in SAFE:
        return site in (None, "same-origin", "none")
    return urlsplit(headers.get("origin", "")).netloc == headers.get("host") and site in (None, "same-origin")


# ---- the layer


class AccessControl:
    """Pass a request on, or answer why it is refused.

    Args:
        app: the app behind this layer.
        access: what each route requires.
        settings: keys, hosts, origins and sessions.
        read_only: whether to refuse every write, whatever the key.

    Raises:
        InvalidRequest: a key in the settings is malformed or too weak.
    """

    def __init__(self, app: ASGIApp, access: AccessRules, settings: Settings, *, read_only: bool = False) -> None:
        self._app, self._access, self._read_only = app, access, read_only
        self._origins = OriginPolicy(settings)
        self._keys = settings.keys()
        self._has_keys = len(self._keys) > 0
        self._key_of_session = {_session_name(key): key for key in self._keys}
        self._wrong_keys, self._logged = 0, -WRONG_KEYS_S  # since the last line of the log, and when that was written
        self._ended: dict[str, None] = {}  # ids of sessions, the oldest first
        secret, seconds = settings.session_secret.get_secret_value(), int(settings.session_hours * 3600)

        def with_session(name: str, *, secure: bool) -> ASGIApp:
            return SessionMiddleware(self._admit, secret, name, seconds, same_site="strict", https_only=secure)

        # browsers accept a cookie with the prefix __Host- only over HTTPS and for exactly this host
        self._with_session = {
            "http": with_session(COOKIE, secure=False),
            "https": with_session(f"__Host-{COOKIE}", secure=True),
        }
        self._with_cors = CORSMiddleware(
            self._after_origin,
            settings.cors_origins,
            ("GET", "POST", "PUT", "PATCH", "DELETE"),
            ("Authorization", "Idempotency-Key", "X-Request-Id", "Upload-Offset", "Upload-Complete"),
            expose_headers=("Location", "Retry-After", "Server-Timing", "X-Request-Id"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # no route has one
            await send({"type": "websocket.close", "code": 1008, "reason": "not_found"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, send = Headers(scope=scope), with_security_headers(send)
        required = self._access.of(scope["method"], scope["path"])
        # for the logs and the limits of bodies, also of refused requests
        scope.setdefault("state", {})["required"] = required
        try:
            self._origins.check(scope["method"], headers)
        except Refused as error:
            await _refusal(scope, error)(scope, receive, send)
            return
        app = self._with_cors if self._origins.lists(headers) else self._after_origin
        await app(scope, receive, send)

    async def _after_origin(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._with_session.get(scope.get("scheme", ""), self._admit) if self._has_keys else self._admit
        await app(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the key, and pass the request on."""
        app, state, address = self._app, scope["state"], _name_of_client((scope.get("client") or ("",))[0])
        scope.setdefault("session", {})
        try:
            key = self._admitted_key(scope, address)
            state["required"].check_query(scope["query_string"])
            if scope["path"] in (LOGIN, LOGOUT):
                app = await self._log_in_or_out(Request(scope, receive), address)
        except NNCLRHubError as error:  # the error handlers of the routes do not run here
            await _refusal(scope, error)(scope, receive, send)
            return
        state["key_name"] = key.name  # for the request log
        scope["user"], scope["auth"] = SimpleUser(key.name or address), AuthCredentials(list(key.scopes))
        await app(scope, receive, send)

    def _admitted_key(self, scope: Scope, address: str) -> Key:
        """Return the key of a request if it may do what it asks for."""
        needed = scope["state"]["required"].scope
        if needed is None:
            return NO_KEY
        key = self._key_of(scope, Headers(scope=scope), address) if self._has_keys else ANYONE
        if needed not in key.scopes:
            raise Refused("forbidden", "This key may read but not write; use a key with the write scope.")
        if self._read_only and needed == WRITE:
            raise OpenedForReading("This server is read-only; send writes to the server that owns the store.")
        return key

    def _key_of(self, scope: Scope, headers: Headers, address: str) -> Key:
        values = headers.getlist("authorization")
        if values:
            kind, _, secret = values[0].partition(" ")
            if len(values) == 1 and kind.lower() == "bearer":
                return self._key_of_secret(secret.strip(), address)
        elif _may_use_cookie(scope["method"], headers) and (key := self._key_in(scope["session"])) is not None:
            return key
        raise _unauthorized("This server requires a key; send the header Authorization: Bearer KEY.")

    def _key_of_secret(self, secret: str, address: str) -> Key:
        key = self._keys.find(secret)
        if key is not None:
            return key
        self._wrong_keys += 1
        if (now := time.monotonic()) - self._logged > WRONG_KEYS_S:
            log.warning("wrong keys since the last line: %d, the latest from %s", self._wrong_keys, address)
            self._wrong_keys, self._logged = 0, now
        raise _unauthorized("This key is not valid for this server; check it.")

    def _key_in(self, session: dict[str, Any]) -> Key | None:
        return None if session.get("id") in self._ended else self._key_of_session.get(str(session.get("key")))

    async def _log_in_or_out(self, request: Request, address: str) -> Response:
        session = request.session
        if not self._has_keys:
            return RedirectResponse("/", 303)
        if request.url.path == LOGOUT:
            if request.method != "POST":  # otherwise any web page could log a user out by a link
                return RedirectResponse(LOGIN, 303)
            # other servers with this secret accept a copy of the cookie until it expires
            self._ended[session.get("id", "")] = None
            if len(self._ended) > MAX_ENDED:
                del self._ended[next(iter(self._ended))]
            session.clear()
            return RedirectResponse(LOGIN, 303, {"Clear-Site-Data": '"cache"'})
        if request.method != "POST":
            return _login_form(request, self._key_in(session))
        secret, target = await _read_login(request)
        try:
            key = self._key_of_secret(secret, address)
        except Refused as error:
            return _refused_login(error, target)
        # the cookie names the key by a hash, so that each replica accepts it
        session.update(key=_session_name(key), id=secrets.token_hex(16))
        return RedirectResponse(target, 303)


def _refusal(scope: Scope, error: NNCLRHubError) -> Response:
    accepts_html = scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", "")
    if error.code == "unauthorized" and accepts_html:
        return _to_login(scope["path"])
    return error_response(scope["path"], error)


def _unauthorized(detail: str) -> Refused:
    return Refused("unauthorized", detail, {"WWW-Authenticate": 'Bearer realm="nnclr_hub"'})


def _session_name(key: Key) -> str:
    return hashlib.sha256(b"session of " + key.digest).hexdigest()


@lru_cache(4096)
def _name_of_client(text: str) -> str:
    """Return a name for a client's address; for IPv6 its /64 network, because one machine has 2^64 addresses."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)


# ---- the pages of GET and POST /login: plain HTML without scripts


def _to_login(path: str) -> Response:
    """Redirect to the form, which leads back to the path afterwards."""
    return RedirectResponse(f"{LOGIN}?next={quote(_next(path), safe='')}", 303)


def _login_form(request: Request, known: Key | None) -> Response:
    """Return the login form, or a log-out button if the browser is logged in."""
    if known is not None:
        button = f'<form method="post" action="{LOGOUT[1:]}"><button>Log out</button></form>'
        content = f"<p>You are logged in as {html.escape(known.name)}.</p><p><a href='./'>Open the app</a></p>"
        return _page(content + button)
    return _page(_key_form(_next(request.query_params.get("next", ""))))


async def _read_login(request: Request) -> tuple[str, str]:
    """Return the key from the form, and the path to open afterwards.

    Raises:
        RequestTooSlow: the form did not arrive in time.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_FORM:
                    return "", _next("")
    except TimeoutError as error:
        raise RequestTooSlow(f"The login form did not arrive within {FORM_S:g} s; send it again.") from error
    try:
        fields = parse_qs(body.decode("latin-1"), max_num_fields=4)
    except ValueError:  # more fields than the form has
        fields = {}
    return fields.get("key", [""])[0].strip(), _next(fields.get("next", [""])[0])


def _refused_login(error: Refused, target: str) -> Response:
    """Return the form with an error message."""
    page = _page(f'<p role="alert">{html.escape(str(error))}</p>' + _key_form(target), status_of(error))
    page.headers.update(error.headers)
    return page


def _next(path: str) -> str:
    """Return the path if it is one of our pages, or the start page: a login must not redirect elsewhere."""
    return path if path in _NEXT else "/"


def _key_form(target: str) -> str:
    return (
        f'<form method="post" action="{LOGIN[1:]}"><label for="key">Your key for this server</label>'
        '<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>'
        f'<input name="next" type="hidden" value="{html.escape(target)}"><button>Log in</button></form>'
    )


def _page(content: str, status: int = 200) -> Response:
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>nnclr_hub: log in</title><style>{_STYLE}</style><h1>nnclr_hub</h1>{content}</html>"
    )
    return HTMLResponse(text, status, {"Content-Security-Policy": _POLICY})


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
