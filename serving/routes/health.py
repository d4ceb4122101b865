"""GET /healthz, /readyz and /metrics."""

from __future__ import annotations

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ..keys import READ
from ..problems import answers
from ..readiness import Readiness
from ..security.access import requires
from .dependencies import AppHealthThreads, AppMetrics

router = APIRouter(tags=["health"])


@router.get("/healthz", responses=answers())
@requires(None)
async def healthz() -> dict[str, str]:
    """Report that the process is alive; it may still be loading."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    responses={**answers(), 503: {"model": Readiness, "description": "The server is still loading, or it has failed."}},
)
@requires(None)
async def readyz(request: Request, threads: AppHealthThreads) -> Readiness:
    """Report whether the model and the collections are loaded; 503 with the progress until then."""
    found: Readiness = await to_thread.run_sync(request.app.state.readiness.report, limiter=threads)
    if found.status != "ready":
        return JSONResponse(found.model_dump(), 503)  # type: ignore[return-value]
    return found


@router.get(
    "/metrics",
    response_class=Response,
    responses={**answers(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@requires(READ)
async def metrics(metrics: AppMetrics, threads: AppHealthThreads) -> Response:
    """Return the metrics in the format of Prometheus."""
    content = await to_thread.run_sync(generate_latest, metrics.registry, limiter=threads)
    return Response(content, media_type=CONTENT_TYPE_LATEST)
