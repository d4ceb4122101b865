"""OpenTelemetry traces: a span for each request, by OpenTelemetry's ASGI middleware, and a child for each stage.

Needs the extra `tracing`; without it, or without an exporter, nothing is recorded. `nnclr serve` exports to
OTEL_EXPORTER_OTLP_ENDPOINT if that is set. The other OTEL_* variables work as OpenTelemetry describes them.
"""

from __future__ import annotations

import logging
import os
import time

from starlette.types import ASGIApp, Scope

try:
    from opentelemetry import trace
except ImportError:
    trace = None

log = logging.getLogger(__name__)
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def traced(app: ASGIApp) -> ASGIApp:
    """Return the app with a span around each request, if traces are recorded."""
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return app
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

    return OpenTelemetryMiddleware(app, exclude_spans=["receive", "send"])


def record_stage(name: str, seconds: float) -> None:
    """Record a stage of the current request that has just ended."""
    if trace is not None and trace.get_current_span().is_recording():
        end = time.time_ns()
        trace.get_tracer("nnclr_hub").start_span(name, start_time=end - int(1e9 * seconds)).end(end)


def name_span(scope: Scope, route: str, status: int) -> None:
    """Name the span of the current request by its route."""
    if trace is not None and (span := trace.get_current_span()).is_recording():
        span.update_name(f"{scope['method']} {route}")
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
