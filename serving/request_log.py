"""RequestLog: gives every request timings, a metric and one line in the log. It is outside all other layers.

Lines are text or, with NNCLR_LOG_FORMAT=json, JSON:

    {"time": "2026-10-01T12:00:00.123Z", "level": "info", "logger": "nnclr_hub.access",
     "message": "POST /api/v1/embed 200", "id": "...", "method": "POST", "route": "/api/v1/embed", "status": 200,
     "ms": 31.7, "images": 8}

They never contain keys, bodies or file names. Each write that succeeded has a second line, by the logger
nnclr_hub.audit: who changed how many items of what.

    {"logger": "nnclr_hub.audit", "message": "PUT /api/v1/collections/{name}/items", "id": "...", "key": "ci",
     "method": "PUT", "route": "...", "collection": "photos", "count": 64}

The id is the client's X-Request-ID if it is valid, or a new one.
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
from typing import Any, Literal
from urllib.parse import urlsplit

from asgi_correlation_id import CorrelationIdMiddleware
from asgi_correlation_id.context import correlation_id
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import Overloaded

from .keys import WRITE
from .telemetry import Metrics, Timings, current, name_span, traced

log = logging.getLogger("nnclr_hub.access")
audit = logging.getLogger("nnclr_hub.audit")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# probes, and the images that a page loads by the hundred: logged at debug level, unless they fail
FREQUENT = frozenset({"/healthz", "/readyz", "/metrics", "/api/v1/collections/{name}/items/{id}/thumbnail"})
REFUSED = frozenset({401, 403, 413, 429, 503, 504, 507})
NO_RESPONSE = 499  # the client disconnected, or the server was stopped
_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")


def observed(app: ASGIApp, metrics: Metrics, stopping: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Return the app with all layers that observe requests: traces, ids and the log; see `RequestLog`."""
    logged = RequestLog(app, metrics, stopping)
    # not a secret; `os.urandom` would release the interpreter's lock, which the event loop then waits for
    new_id = lambda: f"{random.getrandbits(128):032x}"  # noqa: E731
    valid = lambda id: _ID.fullmatch(id) is not None  # noqa: E731
    logging.getLogger("asgi_correlation_id").setLevel(logging.ERROR)
    return traced(CorrelationIdMiddleware(logged, "X-Request-ID", False, new_id, valid, None))


class RequestLog:
    """The layer around the whole app. It also answers HEAD as GET: uvicorn leaves out the body.

    Args:
        stopping: returns whether the server will stop, so that responses must close their connections.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, stopping: Callable[[], bool]) -> None:
        self._app = app
        self._metrics = metrics
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        scope = {**scope, "method": "GET"} if is_head else scope
        begun, reading, status, answered = time.perf_counter(), 0.0, NO_RESPONSE, False
        timings = Timings(metrics=self._metrics)

        async def timed_receive() -> Message:
            nonlocal reading
            started = time.perf_counter()
            message = await receive()
            if message["type"] == "http.request" and (message.get("body") or reading):
                reading += time.perf_counter() - started
                if not message.get("more_body", False):
                    timings.add("body", reading)
                    self._metrics.stage("body").observe(reading)
                    reading = 0.0
            return message

        async def noted_send(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status = message["status"]
                name_span(scope["method"], _route(scope), status)
                total = Timings({**timings.seconds, "total": time.perf_counter() - begun}).header()
                headers = [*message.get("headers", ()), (b"server-timing", total.encode("latin-1"))]
                if self._stopping():
                    headers.append((b"connection", b"close"))
                message["headers"] = _with_relative_location(scope, headers) if 300 <= status < 400 else headers
            elif answered:
                return  # to HEAD, before the end of a stream
            elif is_head:
                answered, message = True, {"type": "http.response.body", "body": b""}
            elif not message.get("more_body", False):
                answered = True
            await send(message)

        token = current.set(timings)
        self._metrics.requests_in_work.inc()
        try:
            await self._app(scope, timed_receive, noted_send)
        except Exception:
            # After a complete response the error is logged already. Otherwise uvicorn must close the connection.
            if not answered:
                raise
        finally:
            self._metrics.requests_in_work.dec()
            self._record(scope, timings, status, time.perf_counter() - begun)
            current.reset(token)

    def _record(self, scope: Scope, timings: Timings, status: int, seconds: float) -> None:
        """Count and log the request."""
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        route, state = _route(scope), scope.get("state", {})
        self._metrics.request(method, route, status, seconds)
        if status in REFUSED and timings.refusal != Overloaded.code:  # the engine counts overload
            self._metrics.refused.labels(timings.refusal or "other").inc()
        required = state.get("required")
        if required is not None and required.scope == WRITE and 200 <= status < 300:
            collection = scope.get("path_params", {}).get("name") if "/collections/" in route else None
            key = scope["user"].display_name  # without a key, the address of the client
            fields = {"key": key, "method": method, "route": route, "collection": collection, "count": timings.changed}
            _emit(audit, logging.INFO, f"{method} {route}", fields)
        frequent = method == "GET" and status < 400 and (route in FREQUENT or route.startswith("/app"))
        fields = {"method": method, "route": route, "status": status, "ms": round(1000 * seconds, 2)}
        fields |= {"images": timings.images or None, "code": timings.refusal or None}
        fields["key"] = state.get("key_name") or None
        _emit(log, logging.DEBUG if frequent else logging.INFO, f"{method} {route} {status}", fields)


def _emit(logger: logging.Logger, level: int, message: str, fields: dict[str, Any]) -> None:
    """Log a line with the id of the request and the fields that have a value.

    `logger.log` would search the stack for the caller, which takes longer than the rest of the line.
    """
    if logger.isEnabledFor(level):
        record = logging.LogRecord(logger.name, level, __file__, 0, message, None, None)
        fields = {"id": correlation_id.get(), **fields}
        record.fields = {name: value for name, value in fields.items() if value is not None}
        logger.handle(record)


def _with_relative_location(scope: Scope, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Make the target of a redirect relative to the path of the request. All targets are on this server.

    A reverse proxy may add a prefix to all paths, which the server does not know.
    """
    up = "../" * (scope["raw_path"].count(b"/") - 1) or "./"

    def relative(target: bytes) -> bytes:
        parts = urlsplit(target.decode("latin-1"))
        return (up + parts._replace(scheme="", netloc="").geturl().lstrip("/")).encode("latin-1")

    return [(name, relative(value) if name == b"location" else value) for name, value in headers]


def _route(scope: Scope) -> str:
    """Return the template of the route that answered. Metrics must have few labels, however many paths there are."""
    template = getattr(scope.get("route"), "path", None)
    if isinstance(template, str) and scope.get("endpoint") is not None:
        mounted = scope.get("root_path", "").removeprefix(scope["app_root_path"]) if "app_root_path" in scope else ""
        return f"{mounted}{template}"
    required = scope.get("state", {}).get("required")
    if required is not None and required.route:  # it was refused before it reached its route
        return required.route
    root = scope.get("app_root_path") or scope.get("root_path") or ""
    return f"{root}/*" if root else "none"


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
        entry = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        entry |= {"message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=True, default=str)


class Text(logging.Formatter):
    """Time, level and message, followed by the other fields."""

    def format(self, record: logging.LogRecord) -> str:
        in_message = ("method", "route", "status", "kind")
        fields = getattr(record, "fields", {}).items()
        rest = "".join(f" {name}={value}" for name, value in fields if name not in in_message)
        text = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()}{rest}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
