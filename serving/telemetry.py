"""What operators see: metrics, timings, traces, and one line in the log for each request.

    with measured("search"):
        matches = ...

adds the seconds to the histogram of that stage, and to the Timings of the current request, which become its
Server-Timing header and, where traces are recorded, a span.

Traces are OpenTelemetry's: a span for each request, and a child for each stage. `nnclr serve` exports them to
OTEL_EXPORTER_OTLP_ENDPOINT if that is set. The other OTEL_* variables work as OpenTelemetry describes them.

Lines of the log are text or, with NNCLR_LOG_FORMAT=json, JSON:

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
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import nnclr_hub
from nnclr_hub.errors import Overloaded, StoreError
from nnclr_hub.store.base import VectorStore

from .keys import WRITE

try:
    from opentelemetry import trace
except ImportError:
    trace = None

log = logging.getLogger(__name__)
access = logging.getLogger("nnclr_hub.access")
audit = logging.getLogger("nnclr_hub.audit")
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# probes, and the images that a page loads by the hundred: logged at debug level, unless they fail
FREQUENT = frozenset({"/healthz", "/readyz", "/metrics", "/api/v1/collections/{name}/items/{id}/thumbnail"})
REFUSED = frozenset({401, 403, 413, 429, 503, 504, 507})
NO_RESPONSE = 499  # the client disconnected, or the server was stopped
_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


# ---- one request


@dataclass
class Timings:
    """Numbers of one request.

    id: of its X-Request-ID.
    seconds: by stage, in the order in which the stages were first entered.
    images: images in its body.
    refusal: the error code that it was refused with, or "".
    changed: items that it added, replaced or deleted; None if the route does not count them.
    metrics: metrics of the server.
    traced: whether the span of the request is recorded.
    """

    id: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    images: int = 0
    refusal: str = ""
    changed: int | None = None
    metrics: Metrics | None = None
    traced: bool = field(default_factory=lambda: trace is not None and trace.get_current_span().is_recording())

    def add(self, stage: str, seconds: float) -> None:
        """Add to a stage that has just ended."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        if self.traced:
            assert trace is not None
            end = time.time_ns()
            trace.get_tracer("nnclr_hub").start_span(stage, start_time=end - int(1e9 * seconds)).end(end)

    def header(self, total: float) -> str:
        """Return the Server-Timing header, in milliseconds."""
        stages = [*self.seconds.items(), ("total", total)]
        return ", ".join([f"{stage};dur={1000 * seconds:.2f}" for stage, seconds in stages])


current: ContextVar[Timings | None] = ContextVar("timings", default=None)


def note_images(count: int) -> None:
    """Add to the images of the current request, for its line in the log."""
    if (timings := current.get()) is not None:
        timings.images += count


def note_change(count: int, commit_seconds: float) -> None:
    """Record a write of the current request, for the audit log and its timings.

    Args:
        count: items that were added, replaced or deleted.
        commit_seconds: duration of the commit with the write; 0 if unknown.
    """
    if (timings := current.get()) is not None:
        timings.changed = (timings.changed or 0) + count
        if commit_seconds:
            timings.add("commit", commit_seconds)


@contextmanager
def measured(stage: str, metrics: Metrics | None = None) -> Iterator[None]:
    """Time a stage for the current request and the metrics, by default those of the request's server."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - begun
        if (timings := current.get()) is not None:
            timings.add(stage, seconds)
            metrics = metrics or timings.metrics
        if metrics is not None:
            metrics.stage(stage).observe(seconds)


# ---- metrics


class Metrics:
    """Prometheus metrics in a separate registry, so that two apps in one process do not share them.

    Stages: decode, queue and forward (inside the engine); embed, or map for feature and attention maps (the whole
    engine, as a request sees it); body (reading it), search, store, ingest (embed images and store them in a
    collection), render (attention maps to the response), fetch (web addresses).
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=SECONDS)
        self.requests = counter("nnclr_http_requests", "Answered requests.", ("method", "route", "status"))
        self.requests_in_work = gauge("nnclr_http_requests_in_progress", "Requests that are being answered.")
        self.request_seconds = histogram(
            "nnclr_http_request_seconds", "From the first byte in to the last byte out.", ("route",)
        )
        self.stage_seconds = histogram("nnclr_stage_seconds", "Time in one stage of the work.", ("stage",))
        self.refused = counter("nnclr_refused", "Requests that were refused.", ("reason",))
        outcomes = "embedded, mapped, broken, failed, cancelled"
        self.images = counter("nnclr_images", f"Images by outcome: {outcomes}.", ("model", "outcome"))
        self.images_in_work = gauge("nnclr_images_in_work", "Images in progress.")
        self.bytes_in_work = gauge("nnclr_bytes_in_work", "Bytes of the images in progress.")
        self.undecoded = gauge("nnclr_undecoded_images", "Images that wait for decoding.")
        self.decoders_killed = counter(
            "nnclr_decoders_killed", "Decoding processes that ended early, by reason: cpu, time, crash.", ("reason",)
        )
        self.searches_in_work = gauge("nnclr_searches_in_work", "Search queries and listings in progress.")
        self.answer_bytes_in_work = gauge("nnclr_answer_bytes_in_work", "Bytes of the answers in progress.")
        self.queued = gauge("nnclr_queued_images", "Decoded images that wait for the device.", ("model",))
        self.batch_images = histogram("nnclr_batch_images", "Images per forward pass.", ("model",), buckets=IMAGES)
        self.device_restarts = counter(
            "nnclr_device_restarts", "Device threads that died or stalled and were replaced.", ("model",)
        )
        self.models_loaded = gauge("nnclr_models_loaded", "Models in memory.")
        self.jobs = counter("nnclr_jobs", "Ended jobs by outcome: done, failed, cancelled.", ("kind", "outcome"))
        self.jobs_active = gauge("nnclr_jobs_active", "Jobs that wait or run.")
        # finding the labels that occurred takes longer than counting
        self.stage = cache(self.stage_seconds.labels)
        self._answered = cache(
            lambda method, route, status: (
                self.requests.labels(method, route, str(status)),
                self.request_seconds.labels(route),
            )
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        requests, durations = self._answered(method, route, status)
        requests.inc()
        durations.observe(seconds)

    def describe_store(self, store: VectorStore) -> None:
        """Add process_* (CPU, memory, open files), python_info, nnclr_build_info and nnclr_collection_*."""
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        Info("nnclr_build", "Version of nnclr_hub.", registry=self.registry).info({"version": nnclr_hub.__version__})
        self.registry.register(_StoreCollector(store))


# gauge -> what it is, and its value in the `Statistics` of a collection
_OF_COLLECTION = {
    "nnclr_collection_items": ("Items of a collection.", lambda one: one.items),
    "nnclr_collection_file_bytes": ("Bytes of a collection on disk.", lambda one: one.file_bytes),
    "nnclr_collection_commits": ("Commits since the collection was opened.", lambda one: one.commits),
    "nnclr_collection_commit_seconds": ("Duration of the last commit.", lambda one: one.commit_seconds),
    "nnclr_collection_lag": (
        "Changes that are durable but not searchable yet.",
        lambda one: one.durable_seq - one.indexed_seq,
    ),
}


class _StoreCollector(Collector):
    """Statistics of the open collections, which cost neither a query nor a lock. Read when Prometheus asks."""

    def __init__(self, store: VectorStore) -> None:
        self._store = store

    def describe(self) -> Iterator[Metric]:
        return iter(())  # so that registering does not read the store

    def collect(self) -> Iterator[Metric]:
        try:
            found = self._store.statistics()
        except (StoreError, OSError):
            found = {}  # the other metrics stay; /readyz and the log report why
        for name, (about, value) in _OF_COLLECTION.items():
            family = GaugeMetricFamily(name, about, labels=["collection"])
            for collection, one in found.items():
                family.add_metric([collection], float(value(one)))
            yield family
        about = "Memory of the index, by its kind."
        index = GaugeMetricFamily("nnclr_collection_index_bytes", about, labels=["collection", "kind"])
        for collection, one in found.items():
            index.add_metric([collection, one.index], one.index_bytes)
        yield index
        disk = GaugeMetricFamily("nnclr_store_disk_free_bytes", "Free bytes on the disk of the store.")
        if free := [one.disk_free for one in found.values() if one.disk_free]:
            disk.add_metric([], min(free))
        yield disk


# ---- traces


def traced(app: ASGIApp) -> ASGIApp:
    """Return the app with a span around each request, if traces are recorded."""
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return app
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

    return OpenTelemetryMiddleware(app, exclude_spans=["receive", "send"])


def name_span(method: str, route: str, status: int) -> None:
    """Name the span of the current request by its route."""
    if trace is not None and (span := trace.get_current_span()).is_recording():
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.route": route, "http.response.status_code": status})


def configure_tracing() -> None:
    """Export traces if the environment names an endpoint; log a warning if the packages are missing."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("traces need more packages; install nnclr_hub[serve], or unset %s", ENDPOINTS[0])
        return
    assert trace is not None
    name = os.environ.get("OTEL_SERVICE_NAME", "nnclr_hub")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


# ---- the layer around the app


class Stopping(Protocol):
    """Says whether the server will stop, so that responses must close their connections."""

    stopping: bool


def observed(app: ASGIApp, metrics: Metrics, server: Stopping | None = None) -> ASGIApp:
    """Return the app with the layers that observe requests: traces, and ids with the log; see `RequestLog`."""
    return traced(RequestLog(app, metrics, server))


def _id_of(scope: Scope) -> str:
    """Return the X-Request-ID that the client gave if it is valid, or a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    # not a secret; `os.urandom` would release the interpreter's lock, which the event loop then waits for
    return given if _ID.fullmatch(given) else f"{random.getrandbits(128):032x}"


class RequestLog:
    """The layer around the whole app. It also answers HEAD as GET: uvicorn leaves out the body."""

    def __init__(self, app: ASGIApp, metrics: Metrics, server: Stopping | None = None) -> None:
        self._app, self._metrics, self._server = app, metrics, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        scope = {**scope, "method": "GET"} if is_head else scope
        begun, reading, status, answered = time.perf_counter(), 0.0, NO_RESPONSE, False
        timings = Timings(_id_of(scope), metrics=self._metrics)

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
                if timings.traced:
                    name_span(scope["method"], _route(scope), status)
                times = timings.header(time.perf_counter() - begun).encode("latin-1")
                headers = [*message.get("headers", ()), (b"server-timing", times)]
                headers.append((b"x-request-id", timings.id.encode("latin-1")))
                if self._server is not None and self._server.stopping:
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
            fields = {"id": timings.id, "key": key, "method": method, "route": route}
            fields |= {"collection": collection, "count": timings.changed}
            _emit(audit, logging.INFO, f"{method} {route}", fields)
        frequent = method == "GET" and status < 400 and (route in FREQUENT or route.startswith("/app"))
        fields = {"id": timings.id, "method": method, "route": route, "status": status, "ms": round(1000 * seconds, 2)}
        fields |= {"images": timings.images or None, "code": timings.refusal or None}
        fields["key"] = state.get("key_name") or None
        _emit(access, logging.DEBUG if frequent else logging.INFO, f"{method} {route} {status}", fields)


def _emit(logger: logging.Logger, level: int, message: str, fields: dict[str, Any]) -> None:
    """Log a line with the fields that have a value.

    `logger.log` would search the stack for the caller, which takes longer than the rest of the line.
    """
    if logger.isEnabledFor(level):
        record = logging.LogRecord(logger.name, level, "", 0, message, None, None)
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
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # our formats do not show them
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
