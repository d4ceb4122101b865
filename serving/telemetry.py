"""Metrics, timings and traces.

    with measured("search"):
        matches = ...

adds the seconds to the histogram of that stage, and to the Timings of the current request, which become its
Server-Timing header and, where traces are recorded, a span.

Traces are OpenTelemetry's: a span for each request, and a child for each stage. `nnclr serve` exports them to
OTEL_EXPORTER_OTLP_ENDPOINT if that is set. The other OTEL_* variables work as OpenTelemetry describes them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial

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
from starlette.types import ASGIApp

import nnclr_hub
from nnclr_hub.errors import StoreError
from nnclr_hub.store.base import VectorStore

try:
    from opentelemetry import trace
except ImportError:
    trace = None

log = logging.getLogger(__name__)
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


# ---- one request


@dataclass
class Timings:
    """Numbers of one request.

    seconds: by stage, in the order in which the stages were first entered.
    images: images in its body.
    refusal: the error code that it was refused with, or "".
    changed: items that it added, replaced or deleted; None if the route does not count them.
    metrics: of the server.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    images: int = 0
    refusal: str = ""
    changed: int | None = None
    metrics: Metrics | None = None

    def add(self, stage: str, seconds: float) -> None:
        """Add to a stage that has just ended."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        if trace is not None and trace.get_current_span().is_recording():
            end = time.time_ns()
            trace.get_tracer("nnclr_hub").start_span(stage, start_time=end - int(1e9 * seconds)).end(end)

    def header(self) -> str:
        """Return the Server-Timing header, in milliseconds."""
        return ", ".join(f"{stage};dur={1000 * seconds:.2f}" for stage, seconds in self.seconds.items())


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
        outcomes = "embedded, mapped, broken, failed, expired, cancelled"
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
        self.model_bytes = gauge("nnclr_model_bytes", "Memory of the models' weights.")
        self.evictions = counter("nnclr_model_evictions", "Models unloaded to make space for others.")
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
