"""The door: the ASGI layer that every request passes.

In this order: the Host and the origin of the page that asks (sites.py), the key or session and its scope
(callers.py, access.py), the caller's rate (rates.py), the body's size and pace (body.py). Every answer, a
refusal too, goes out with the security headers (headers.py).

Behind it `scope["user"].display_name` is the name of the key, or the client's address where there is none,
and `scope["auth"].scopes` what it allows: "read", "write".
"""

from __future__ import annotations

import math
from functools import partial

from starlette.authentication import AuthCredentials, SimpleUser
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from nnclr_hub.errors import NNCLRHubError, OpenedForReading, RateLimited

from ..keys import WRITE, Key
from ..problems import problem, status_of, told
from ..settings import Settings, is_loopback
from . import login, rates
from .access import LOGIN, LOGOUT, PAGE, Access, AccessRules
from .body import BodyLimits
from .callers import Callers
from .headers import dressed, preflight
from .rates import Allowance, Buckets, caller_of
from .refusal import Refusal
from .session import Sessions
from .sites import Sites, own_names

NOBODY = Key("", (), b"")  # no key was asked for


class Door:
    """Lets a request in, or answers why not.

    Args:
        app: behind the door.
        access: what each request needs.
        settings: keys, hosts, origins, rates and limits.
        read_only: whether to let nothing in that writes, whoever asks.

    Raises:
        InvalidRequest: a key of the settings is no key, or a weak one.
    """

    def __init__(self, app: ASGIApp, access: AccessRules, settings: Settings, *, read_only: bool = False) -> None:
        self._app = app
        self._access = access
        self._read_only = read_only
        keys = settings.keys()
        self._sessions = Sessions(settings.session_hours * 3600)
        self._callers = Callers(keys, self._sessions)
        local = is_loopback(settings.host)
        # where keys protect, a server cannot know all of its names, and a page that rebinds one has no key
        checked = local or settings.allowed_hosts or not len(keys)
        hosts = own_names(settings.host, settings.allowed_hosts) if checked else None
        self._sites = Sites(hosts, literals=not local, origins=settings.cors_origins)
        self._frames = settings.frame_ancestors
        self._requests = Buckets(settings.rate_requests)
        self._images = Buckets(settings.rate_images, settings.max_images)
        self._body = BodyLimits(settings.max_bytes, settings.body_idle_s, settings.body_s, settings.bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, address = Headers(scope=scope), caller_of(scope.get("client"))
        rule = self._access.of(scope.get("method", "GET"), scope["path"])
        key = self._key(scope, headers, rule, address)
        allowance = Allowance(getattr(key, "name", "") or address, self._requests, self._images)
        send = dressed(scope, send, self._sites.cors(headers), allowance, self._frames)
        refusal = key if isinstance(key, Refusal) else self._refusal(headers, rule, allowance)
        if isinstance(refusal, Refusal):
            await self._refuse(refusal, scope, receive, send)
            return
        assert isinstance(key, Key)
        state = scope.setdefault("state", {})
        state["key_name"] = key.name  # for the log
        state["enter"] = partial(rates.use, allowance)  # for who goes on with the request in a thread of its own
        scope["user"], scope["auth"] = SimpleUser(allowance.caller), AuthCredentials(list(key.scopes))
        rates.use(allowance)
        with self._body.limited(receive) as receive:
            if self._is_preflight(scope, headers):
                await Response(status_code=204, headers=preflight(headers["origin"]))(scope, receive, send)
            elif scope["path"] in (LOGIN, LOGOUT):
                answer = await self._log_in_or_out(Request(scope, receive), headers, address)
                await answer(scope, receive, send)
            else:
                await self._app(scope, receive, send)

    # ---- guards

    def _key(self, scope: Scope, headers: Headers, rule: Access, address: str) -> Key | Refusal:
        refusal = self._sites.refusal(scope, headers)
        if refusal is not None:
            return refusal
        if rule.scope is None or self._is_preflight(scope, headers):
            return NOBODY
        key = self._callers.of_request(scope, headers, address)
        if isinstance(key, Key) and rule.scope not in key.scopes:
            return Refusal(403, "forbidden", "This key may read but not write.")
        if isinstance(key, Key) and self._read_only and rule.scope == WRITE:
            error = OpenedForReading()
            return Refusal(status_of(error), error.code, str(error))
        return key

    def _refusal(self, headers: Headers, rule: Access, allowance: Allowance) -> Refusal | None:
        if rule.counted:
            try:
                allowance.charge_request()
            except RateLimited as error:
                wait = str(max(1, math.ceil(error.retry_after)))
                return Refusal(429, error.code, str(error), {"Retry-After": wait})
        return self._body.refusal(headers)

    def _is_preflight(self, scope: Scope, headers: Headers) -> bool:
        asks = scope.get("method") == "OPTIONS" and "access-control-request-method" in headers
        return asks and self._sites.cors(headers) is not None

    # ---- answers

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.code})
            return
        path = scope["path"]
        wants_a_page = scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", "")
        if refusal.status == 401 and wants_a_page:
            await login.to_login(path)(scope, receive, send)
            return
        status = 400 if refusal.status == 415 and path.startswith("/v1/") else refusal.status  # OpenAI knows no 415
        answer = problem(path, status, refusal.code, refusal.detail, headers=refusal.headers)
        await answer(scope, receive, send)

    async def _log_in_or_out(self, request: Request, headers: Headers, address: str) -> Response:
        if not self._callers.needed:
            return RedirectResponse(f"{PAGE}/", 303)
        if request.url.path == LOGOUT:
            return login.log_out(self._sessions, request)
        if request.method != "POST":
            return login.form(request, self._sessions.key(headers))
        try:
            secret, then = await login.sent_key(request)
        except NNCLRHubError as error:  # no route is there whose errors others would answer
            return told(request.url.path, error)
        key = self._callers.of_secret(secret, address)
        if isinstance(key, Refusal):
            return login.refused(key, then)
        return login.log_in(self._sessions, key, request, then)
