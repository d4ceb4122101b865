"""What is seen of every request: its id, its time by stage, a metric and one line in the log.

The outermost layer, so that refusals at the door and failures have them too. The id is the client's X-Request-ID
if that can be one, else a new one.
"""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import Overloaded

from .telemetry import Metrics, Timings, current, request_id

log = logging.getLogger("nnclr_hub.access")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# probes, and what a page loads by the hundred: told at debug level, unless something is wrong
ASKED_OFTEN = frozenset({"/healthz", "/readyz", "/metrics", "/api/v1/collections/{name}/items/{id}/thumbnail"})
NOT_LET_IN = frozenset({401, 403, 413, 429, 503, 504, 507})
GONE = 499  # nothing was answered: the client went away, or the server was stopped
_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")


class RequestLog:
    """Goes around the whole app.

    Args:
        app: what answers.
        metrics: what is counted and timed.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = _Seen(scope, receive, send, self._metrics)
        held = current.set(seen.timings), request_id.set(seen.id)
        try:
            await self._app(scope, seen.receive, seen.send)
        except Exception:
            # a problem was answered and the log says why; what broke off in the middle has to be cut off
            if not seen.answered:
                raise
        finally:
            seen.note()
            current.reset(held[0])
            request_id.reset(held[1])


class _Seen:
    """One request on its way through."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, metrics: Metrics) -> None:
        given = Headers(scope=scope).get("x-request-id", "")
        self.id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        self.timings = Timings()
        self.answered = False
        self._scope, self._receive, self._send, self._metrics = scope, receive, send, metrics
        self._begun = time.perf_counter()
        self._reading = 0.0
        self._status = GONE

    async def receive(self) -> Message:
        """Times the body, until it has all come."""
        begun = time.perf_counter()
        message = await self._receive()
        if message["type"] == "http.request" and (message.get("body") or self._reading):
            self._reading += time.perf_counter() - begun
            if not message.get("more_body", False):
                self.timings.add("body", self._reading)
                self._metrics.stage("body", self._reading)
                self._reading = 0.0
        return message

    async def send(self, message: Message) -> None:
        """Adds the headers."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self.id
            total = Timings({**self.timings.seconds, "total": time.perf_counter() - self._begun})
            headers["Server-Timing"] = total.header()
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.answered = True
        await self._send(message)

    def note(self) -> None:
        """Counts and logs."""
        seconds = time.perf_counter() - self._begun
        method = self._scope["method"] if self._scope["method"] in METHODS else "OTHER"
        route = route_of(self._scope)
        self._metrics.requests.labels(method, route, str(self._status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        if self._status in NOT_LET_IN and self.timings.refusal != Overloaded.code:  # those the engine counts
            self._metrics.refused.labels(self.timings.refusal or "other").inc()
        told = {"id": self.id, "method": method, "route": route, "status": self._status, "ms": round(1000 * seconds, 2)}
        about = {"images": self.timings.images, "code": self.timings.refusal, "key": self._key()}
        told |= {name: value for name, value in about.items() if value}
        often = method == "GET" and self._status < 400 and (route in ASKED_OFTEN or route.startswith("/ui"))
        log.log(
            logging.DEBUG if often else logging.INFO, "%s %s %s", method, route, self._status, extra={"fields": told}
        )

    def _key(self) -> str:
        """The name of the key, which the door leaves in the state."""
        return str(self._scope.get("state", {}).get("key_name") or "")


def route_of(scope: Scope) -> str:
    """The template of the route that answered: there are few, whatever paths are asked for."""
    template = getattr(scope.get("route"), "path", None)
    if isinstance(template, str) and scope.get("endpoint") is not None:
        return f"{_mounted_at(scope)}{template}"
    root = scope.get("app_root_path") or scope.get("root_path") or ""
    return f"{root}/*" if root else "none"


def _mounted_at(scope: Scope) -> str:
    """The path of the app inside ours that answered, such as the page's; empty where it was ours."""
    if "app_root_path" not in scope:
        return ""
    return scope.get("root_path", "").removeprefix(scope["app_root_path"])
