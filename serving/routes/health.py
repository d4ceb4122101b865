"""GET /healthz, /readyz and /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ..problems import answers
from ..schemas import Readiness
from .state import AppMetrics

router = APIRouter(tags=["health"])


@router.get("/healthz", responses=answers())
async def healthz() -> dict[str, str]:
    """The process is alive; it may still be loading."""
    return {"status": "ok"}


@router.get("/readyz", responses={**answers(), 503: {"model": Readiness, "description": "not yet, or no longer"}})
def readyz(request: Request) -> Readiness:
    """The model is warm, its threads live, and the collections are loaded; 503 with the progress until then."""
    found: Readiness = request.app.state.readiness.report()
    if found.status != "ready":
        return JSONResponse(found.model_dump(), 503)  # type: ignore[return-value]
    return found


@router.get(
    "/metrics",
    response_class=Response,
    responses={**answers(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(metrics: AppMetrics) -> Response:
    """What was counted and timed, for Prometheus."""
    return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)
