"""RequestLog: gives every request an id, timings, a metric and one line in the log.

It is the outermost layer, so that refused and failed requests have them too. The id is the client's X-Request-ID
if it is valid, or a new one.

Lines are text or, with NNCLR_LOG_FORMAT=json, JSON:

    {"time": "2026-10-01T12:00:00.123Z", "level": "info", "logger": "nnclr_hub.access",
     "message": "POST /api/v1/embed 200", "id": "...", "method": "POST", "route": "/api/v1/embed", "status": 200,
     "ms": 31.7, "images": 8}

They never contain keys, bodies or file names.

Each write that succeeded has a second line, by the logger nnclr_hub.audit: who changed how many items of what.

    {"logger": "nnclr_hub.audit", "message": "PUT /api/v1/collections/{name}/items", "id": "...", "key": "ci",
     "method": "PUT", "route": "...", "collection": "photos", "count": 64}
"""

from __future__ import annotations

import json
import logging
import random
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import Overloaded

from .responses import relative_location
from .telemetry import Metrics, Timings, current, request_id
from .tracing import RequestSpan

log = logging.getLogger("nnclr_hub.access")
audit = logging.getLogger("nnclr_hub.audit")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# probes, and the images that a page loads by the hundred: logged at debug level, unless they fail
FREQUENT = frozenset({"/healthz", "/readyz", "/metrics", "/api/v1/collections/{name}/items/{id}/thumbnail"})
REFUSED = frozenset({401, 403, 413, 429, 503, 504, 507})
NO_RESPONSE = 499  # the client disconnected, or the server was stopped
_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")


class RequestLog:
    """The layer around the whole app.

    Args:
        app: the app inside.
        metrics: receives counts and times.
        stopping: returns whether the server will stop, so that responses must close their connections.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, stopping: Callable[[], bool] = lambda: False) -> None:
        self._app = app
        self._metrics = metrics
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _ObservedRequest(scope, receive, send, self._metrics, self._stopping)
        tokens = current.set(request.timings), request_id.set(request.id)
        self._metrics.requests_in_work.inc()
        try:
            await self._app(scope, request.receive, request.send)
        except Exception:
            # After a complete response the error is logged already. Otherwise uvicorn must close the connection.
            if not request.answered:
                raise
        finally:
            self._metrics.requests_in_work.dec()
            request.record()
            current.reset(tokens[0])
            request_id.reset(tokens[1])


class _ObservedRequest:
    """One request on its way through the app."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, metrics: Metrics, stopping: Callable[[], bool]
    ) -> None:
        header = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
        # not a secret; `os.urandom` would release the interpreter's lock, which the event loop then waits for
        self.id = header if _ID.fullmatch(header) else f"{random.getrandbits(128):032x}"
        self._span = RequestSpan(scope)
        self.timings = Timings(on_stage=self._span.stage, metrics=metrics)
        self.answered = False
        self._scope, self._receive, self._send, self._metrics = scope, receive, send, metrics
        self._stopping = stopping
        self._begun = time.perf_counter()
        self._reading = 0.0
        self._status = NO_RESPONSE

    async def receive(self) -> Message:
        """Receive a message, and time the body until it is complete."""
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
        """Send a message, and add the headers to the first one."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            total = Timings({**self.timings.seconds, "total": time.perf_counter() - self._begun}).header()
            added = [(b"x-request-id", self.id.encode()), (b"server-timing", total.encode("latin-1"))]
            if 300 <= self._status < 400:
                message["headers"] = relative_location(self._scope["raw_path"], message.get("headers", ()))
            if self._stopping():
                added.append((b"connection", b"close"))
            names = {name for name, _ in added}
            message["headers"] = [one for one in message.get("headers", ()) if one[0].lower() not in names] + added
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.answered = True
        await self._send(message)

    def record(self) -> None:
        """Count and log the request."""
        seconds = time.perf_counter() - self._begun
        method = self._scope["method"] if self._scope["method"] in METHODS else "OTHER"
        route = route_of(self._scope)
        self._metrics.request(method, route, self._status, seconds)
        if self._status in REFUSED and self.timings.refusal != Overloaded.code:  # the engine counts overload
            self._metrics.refused.labels(self.timings.refusal or "other").inc()
        ms = round(1000 * seconds, 2)
        fields = {"id": self.id, "method": method, "route": route, "status": self._status, "ms": ms}
        optional = {
            "images": self.timings.images,
            "code": self.timings.refusal,
            "key": self._scope.get("state", {}).get("key_name"),
        }
        fields |= {name: value for name, value in optional.items() if value}
        self._span.end(method, route, self._status)
        self._audit(method, route)
        frequent = method == "GET" and self._status < 400 and (route in FREQUENT or route.startswith("/app"))
        level = logging.DEBUG if frequent else logging.INFO
        if log.isEnabledFor(level):
            # `log.log` would search the stack for the caller, which takes longer than the rest of the line
            record = logging.LogRecord(
                log.name, level, __file__, 0, "%s %s %s", (method, route, self._status), None, "record"
            )
            record.fields = fields
            log.handle(record)

    def _audit(self, method: str, route: str) -> None:
        """Log a write that succeeded. A key that was not needed is named by the address of the client."""
        state = self._scope.get("state", {})
        if not state.get("writes") or not 200 <= self._status < 300:
            return
        target = self._scope.get("path_params", {})
        fields = {
            "id": self.id,
            "key": self._scope["user"].display_name,
            "method": method,
            "route": route,
            "collection": target.get("name") if route.startswith("/api/v1/collections/") else None,
            "count": self.timings.changed,
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        audit.info("%s %s", method, route, extra={"fields": fields})


def route_of(scope: Scope) -> str:
    """Return the template of the route that answered. Metrics must have few labels, however many paths there are."""
    template = getattr(scope.get("route"), "path", None)
    if isinstance(template, str) and scope.get("endpoint") is not None:
        return f"{_mounted_at(scope)}{template}"
    if refused := scope.get("state", {}).get("route"):  # before it reached its route
        return refused
    root = scope.get("app_root_path") or scope.get("root_path") or ""
    return f"{root}/*" if root else "none"


def _mounted_at(scope: Scope) -> str:
    """Return the path of the mounted app that answered, such as the page's; empty if it was this app."""
    if "app_root_path" not in scope:
        return ""
    return scope.get("root_path", "").removeprefix(scope["app_root_path"])


# ---- the format of all log lines

LogFormat = Literal["text", "json"]


def configure_logging(form: LogFormat = "text") -> None:
    """Send all log lines, including those of uvicorn, to standard error in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # it logs raw paths; RequestLog has the same information
    for name in ("httpx", "httpcore", "huggingface_hub", "PIL", "asyncio", "faiss"):
        logging.getLogger(name).setLevel(logging.WARNING)


class Json(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=True, default=str)


class Text(logging.Formatter):
    """Time, level and message, followed by the other fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, "fields", {}))
        for name in ("method", "route", "status", "kind"):  # the message contains these
            fields.pop(name, None)
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        text = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()}{rest}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
