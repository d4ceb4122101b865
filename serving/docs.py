"""/docs: Swagger UI from the installed package fastapi-offline, without another server; /openapi.json."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response

from .keys import READ
from .security.access import requires

router = APIRouter(include_in_schema=False)
_ASSETS = Path(find_spec("fastapi_offline").origin).parent / "static"  # type: ignore[union-attr, arg-type]
# Swagger UI sets styles on its elements
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>nnclr_hub API</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="docs/swagger-ui.css"></head>
<body><div id="ui"></div><script src="docs/swagger-ui-bundle.js"></script>
<script type="module" src="docs/start.js"></script></body></html>"""
# all addresses are relative, because a proxy may serve the app below a path
_START = """const here = new URL('.', location.href).href;
const spec = await (await fetch('openapi.json')).json();
spec.servers = [{url: here.replace(/[/]$/, '')}];
SwaggerUIBundle({spec, dom_id: '#ui', deepLinking: true, docExpansion: 'list', filter: true, validatorUrl: null});
"""


@router.get("/docs")
@requires(READ)
def page() -> HTMLResponse:
    """Return the page, which shows the curl command of each request that it sends."""

    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"})


@router.get("/docs/start.js")
@requires(READ)
def start() -> Response:
    """Return the script that starts Swagger UI."""
    return Response(_START, media_type="text/javascript")


@router.get("/docs/{name}")
@requires(READ)
def asset(name: str) -> Response:
    """Return a file of Swagger UI."""
    if name not in ("swagger-ui-bundle.js", "swagger-ui.css"):
        return Response(status_code=404)
    return FileResponse(_ASSETS / name, headers={"Cache-Control": "private, max-age=86400"})


@router.get("/openapi.json")
@requires(READ)
def description(request: Request) -> JSONResponse:
    """Return the OpenAPI document."""
    return JSONResponse(request.app.openapi())
