"""Metrics, and the timings of each request.

    with measured("search"):
        matches = ...

adds the seconds to the histogram of that stage, and to the Timings of the current request, which become its
Server-Timing header.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .tracing import record_stage

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


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
        """Add to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        record_stage(stage, seconds)

    def header(self) -> str:
        """Return the Server-Timing header, in milliseconds."""
        return ", ".join(f"{stage};dur={1000 * seconds:.2f}" for stage, seconds in self.seconds.items())


current: ContextVar[Timings | None] = ContextVar("timings", default=None)


def note_images(count: int) -> None:
    """Add to the images of the current request, for its line in the log."""
    timings = current.get()
    if timings is not None:
        timings.images += count


def note_change(count: int, commit_seconds: float) -> None:
    """Record a write of the current request, for the audit log and its timings.

    Args:
        count: items that were added, replaced or deleted.
        commit_seconds: of the commit with the write; 0 if unknown.
    """
    timings = current.get()
    if timings is not None:
        timings.changed = (timings.changed or 0) + count
        if commit_seconds:
            timings.add("commit", commit_seconds)


class Metrics:
    """Prometheus metrics in a separate registry, so that two apps in one process do not share them.

    Stages: decode, queue and forward (inside the engine); embed, or map for feature and attention maps (the whole
    engine, as a request sees it); body (reading it), search, store, ingest (embed images and store them in a
    collection), render (attention maps to the response), fetch (web addresses).
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        on: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("nnclr_http_requests", "Answered requests.", ("method", "route", "status"), **on)
        self.requests_in_work = Gauge("nnclr_http_requests_in_progress", "Requests that are being answered.", **on)
        self.request_seconds = Histogram(
            "nnclr_http_request_seconds",
            "From the first byte in to the last byte out.",
            ("route",),
            buckets=SECONDS,
            **on,
        )
        self.stage_seconds = Histogram(
            "nnclr_stage_seconds", "Time in one stage of the work.", ("stage",), buckets=SECONDS, **on
        )
        self.refused = Counter("nnclr_refused", "Requests that were refused.", ("reason",), **on)
        self.images = Counter(
            "nnclr_images",
            "Images by outcome: embedded, mapped, broken, failed, expired, cancelled.",
            ("model", "outcome"),
            **on,
        )
        self.images_in_work = Gauge("nnclr_images_in_work", "Images in progress.", **on)
        self.bytes_in_work = Gauge("nnclr_bytes_in_work", "Bytes of the images in progress.", **on)
        self.undecoded = Gauge("nnclr_undecoded_images", "Images that wait for decoding.", **on)
        self.decoders_killed = Counter(
            "nnclr_decoders_killed",
            "Decoding processes that ended early, by reason: cpu, time, crash.",
            ("reason",),
            **on,
        )
        self.searches_in_work = Gauge("nnclr_searches_in_work", "Search queries and listings in progress.", **on)
        self.answer_bytes_in_work = Gauge("nnclr_answer_bytes_in_work", "Bytes of the answers in progress.", **on)
        self.queued = Gauge("nnclr_queued_images", "Decoded images that wait for the device.", ("model",), **on)
        self.batch_images = Histogram(
            "nnclr_batch_images", "Images per forward pass.", ("model",), buckets=IMAGES, **on
        )
        self.device_restarts = Counter(
            "nnclr_device_restarts", "Device threads that died or stalled and were replaced.", ("model",), **on
        )
        self.models_loaded = Gauge("nnclr_models_loaded", "Models in memory.", **on)
        self.model_bytes = Gauge("nnclr_model_bytes", "Memory of the models' weights.", **on)
        self.evictions = Counter("nnclr_model_evictions", "Models unloaded to make space for others.", **on)
        self.jobs = Counter("nnclr_jobs", "Ended jobs by outcome: done, failed, cancelled.", ("kind", "outcome"), **on)
        self.jobs_active = Gauge("nnclr_jobs_active", "Jobs that wait or run.", **on)

        # of the labels that occurred, because `labels` takes longer than counting
        self._stages: dict[str, Histogram] = {}
        self._answered: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def stage(self, name: str, seconds: float) -> None:
        """Record one passage through a stage, in the metrics only."""
        if name not in self._stages:
            self._stages[name] = self.stage_seconds.labels(name)
        self._stages[name].observe(seconds)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        known = self._answered.get((method, route, status))
        if known is None:
            known = self.requests.labels(method, route, str(status)), self.request_seconds.labels(route)
            self._answered[method, route, status] = known
        known[0].inc()
        known[1].observe(seconds)


@contextmanager
def measured(stage: str, metrics: Metrics | None = None) -> Iterator[None]:
    """Time a stage for the metrics and for the current request.

    Args:
        metrics: None: those of the current request.
    """
    begun = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - begun
        timings = current.get()
        if timings is not None:
            timings.add(stage, seconds)
            metrics = metrics or timings.metrics
        if metrics is not None:
            metrics.stage(stage, seconds)
