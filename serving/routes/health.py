"""GET /healthz and /readyz."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from ..security.redaction import without_paths

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """The model is warm, its threads live, and the collections are loaded; 503 until then."""
    state = request.app.state
    if state.failure is not None:
        return JSONResponse({"status": "failed", "detail": without_paths(state.failure)}, 503)
    if not state.ready:
        return JSONResponse({"status": "loading", "detail": without_paths(state.loading)}, 503)
    if not state.engines.healthy:
        return JSONResponse({"status": "ill", "detail": "an engine's thread is dead or its batch is overdue"}, 503)
    return JSONResponse({"status": "ready"})
