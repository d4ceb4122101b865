"""OpenTelemetry traces: a span for each request, and a child for each of its stages.

    span = RequestSpan(scope)           # continues the trace of the header traceparent
    span.stage("search", 0.012)         # a child that ends now and began 0.012 s ago
    span.end("POST", "/api/v1/collections/{name}/search", 200)

Needs the extra `tracing`; without it, or without an exporter, nothing is recorded. `nnclr serve` exports to
OTEL_EXPORTER_OTLP_ENDPOINT if that is set. The other OTEL_* variables work as OpenTelemetry describes them.
"""

from __future__ import annotations

import logging
import os
import time

from starlette.datastructures import Headers
from starlette.types import Scope

try:
    from opentelemetry import trace
except ImportError:
    trace = None

log = logging.getLogger(__name__)
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class RequestSpan:
    """The span of one request; does nothing if traces are not recorded.

    Args:
        scope: of the request; only its headers are read.
    """

    def __init__(self, scope: Scope) -> None:
        self._span = None
        if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return  # nothing records, and reading the headers takes as long as the rest of the log
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(dict(Headers(scope=scope)))
        span = trace.get_tracer("nnclr_hub").start_span("request", parent, trace.SpanKind.SERVER)
        self._span = span if span.is_recording() else None

    def stage(self, name: str, seconds: float) -> None:
        """Record a stage that has just ended."""
        if self._span is None or trace is None:
            return
        end = time.time_ns()
        context = trace.set_span_in_context(self._span)
        trace.get_tracer("nnclr_hub").start_span(name, context, start_time=end - int(1e9 * seconds)).end(end)

    def end(self, method: str, route: str, status: int) -> None:
        """Name the span by its route and end it."""
        if self._span is None or trace is None:
            return
        self._span.update_name(f"{method} {route}")
        self._span.set_attributes(
            {"http.request.method": method, "http.route": route, "http.response.status_code": status}
        )
        if status >= 500:
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()


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
        log.warning("traces need more packages; install nnclr_hub[tracing], or unset %s", ENDPOINTS[0])
        return
    assert trace is not None
    name = os.environ.get("OTEL_SERVICE_NAME", "nnclr_hub")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
