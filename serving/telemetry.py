"""What the server counts and times.

    with measured(metrics, "search"):
        matches = ...

adds the seconds to the histogram of that stage, and to the Timings of the request that it belongs to, which
become its Server-Timing header.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass
class Timings:
    """What one request came to.

    seconds: spent in each stage, in the order in which the stages were first entered.
    images: images that it brought.
    refusal: the code that it was refused with, or "".
    """

    seconds: dict[str, float] = field(default_factory=dict)
    images: int = 0
    refusal: str = ""

    def add(self, stage: str, seconds: float) -> None:
        """Adds to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def header(self) -> str:
        """The Server-Timing header: milliseconds."""
        return ", ".join(f"{stage};dur={1000 * seconds:.2f}" for stage, seconds in self.seconds.items())


current: ContextVar[Timings | None] = ContextVar("timings", default=None)
request_id: ContextVar[str] = ContextVar("request_id", default="")


def note_images(count: int) -> None:
    """Adds to the images of the current request, for its line in the log."""
    timings = current.get()
    if timings is not None:
        timings.images += count


class Metrics:
    """Prometheus metrics in a registry of their own, so that two apps in one process do not meet.

    Stages: decode, queue, forward (engine); embed or, of feature and attention maps, map (all of the engine, as a
    request sees it); body (reading it), search, store, ingest (images into a collection, embedding and storing),
    render (attention maps to what is sent), fetch.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        on: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("nnclr_http_requests", "Answered requests.", ("method", "route", "status"), **on)
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
        self.refused = Counter("nnclr_refused", "Requests that were not let in.", ("reason",), **on)
        self.images = Counter(
            "nnclr_images",
            "Images by outcome: embedded, mapped, broken, failed, expired, cancelled.",
            ("model", "outcome"),
            **on,
        )
        self.images_in_work = Gauge("nnclr_images_in_work", "Images that hold a permit.", **on)
        self.bytes_in_work = Gauge("nnclr_bytes_in_work", "Bytes of images that hold a permit.", **on)
        self.queued = Gauge("nnclr_queued_images", "Decoded images that wait for the device.", ("model",), **on)
        self.batch_images = Histogram(
            "nnclr_batch_images", "Images of a forward pass.", ("model",), buckets=IMAGES, **on
        )
        self.device_restarts = Counter(
            "nnclr_device_restarts", "Device threads that died or stalled and were replaced.", ("model",), **on
        )
        self.models_loaded = Gauge("nnclr_models_loaded", "Models in memory.", **on)
        self.model_bytes = Gauge("nnclr_model_bytes", "Memory of the models' weights.", **on)
        self.evictions = Counter("nnclr_model_evictions", "Models put out of memory to make room.", **on)
        self.jobs = Counter("nnclr_jobs", "Jobs by how they ended: done, failed, cancelled.", ("kind", "outcome"), **on)
        self.jobs_active = Gauge("nnclr_jobs_active", "Jobs that wait or run.", **on)

    def stage(self, name: str, seconds: float) -> None:
        """Notes one passage through a stage, for the metrics alone."""
        self.stage_seconds.labels(name).observe(seconds)


@contextmanager
def measured(metrics: Metrics, stage: str) -> Iterator[None]:
    """Times a stage for the metrics and for the current request."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - begun
        metrics.stage(stage, seconds)
        timings = current.get()
        if timings is not None:
            timings.add(stage, seconds)
