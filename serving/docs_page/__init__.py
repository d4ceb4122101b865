"""/docs: the API documentation as one page, with examples that can be run in the browser.

The page is rendered from the OpenAPI document; docs.js runs the examples, docs.css styles it. It loads nothing from
other servers: its Content-Security-Policy allows only files of this server, and nothing inline.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from ..keys import READ
from ..security.access import requires
from .render import render

router = APIRouter(include_in_schema=False)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FOLDER = Path(__file__).parent


@router.get("/docs")
@requires(READ)
def docs(request: Request) -> HTMLResponse:
    """Return the page; its commands use the address of the request."""
    base = str(request.base_url).rstrip("/")
    text = render(request.app.openapi(), base, key=request.app.state.settings.has_keys)
    return HTMLResponse(text, headers={"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"})


@router.get("/docs/docs.js")
@requires(READ)
def script() -> Response:
    """Return the script that runs the examples."""
    return Response((_FOLDER / "docs.js").read_bytes(), media_type="text/javascript")


@router.get("/docs/docs.css")
@requires(READ)
def style() -> Response:
    """Return the style sheet."""
    return Response((_FOLDER / "docs.css").read_bytes(), media_type="text/css")


@router.get("/openapi.json")
@requires(READ)
def description(request: Request) -> JSONResponse:
    """Return the OpenAPI document."""
    return JSONResponse(request.app.openapi())
