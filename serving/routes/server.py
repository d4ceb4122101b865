"""The server itself: /healthz, /readyz, /metrics, /docs, /openapi.json, the caller's permissions, and runs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from anyio import to_thread
from fastapi import Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field

from nnclr_hub.errors import RunNotFound
from nnclr_hub.images.listing import image_suffixes
from nnclr_hub.workbench.runs import Run, list_runs, read_report
from nnclr_hub.workbench.source_folders import SourceFolders

from ..access import READ, WRITE
from ..readiness import Readiness
from .router import Here, Router
from .schemas import Strict, schema_of

router = Router(tags=["health"])

# ---- health


@router.on("GET", "/healthz", None)
async def healthz() -> dict[str, str]:
    """Report that the process is alive; it may still be loading."""
    return {"status": "ok"}


NOT_READY = {503: {"model": Readiness, "description": "The server is still loading, or it has failed."}}


@router.on("GET", "/readyz", None, responses=NOT_READY)
async def readyz(here: Here) -> Readiness:
    """Report whether the model and the collections are loaded; 503 with the progress until then."""
    found = await to_thread.run_sync(here.readiness.report, limiter=here.health_threads)
    if found.status != "ready":
        return JSONResponse(found.model_dump(), 503)  # type: ignore[return-value]
    return found


@router.on("GET", "/metrics", READ, content={"text/plain": {"schema": {"type": "string"}}})
async def metrics(here: Here) -> Response:
    """Return the metrics in the format of Prometheus."""
    content = await to_thread.run_sync(generate_latest, here.metrics.registry, limiter=here.health_threads)
    return Response(content, media_type=CONTENT_TYPE_LATEST)


# ---- what the caller may do


class SessionResponse(BaseModel):
    key: str | None = Field(description="name of the caller's key; null on a server without keys")
    can_write: bool
    read_only: bool = Field(description="whether the server refuses every write, whatever the key")
    max_images: int = Field(description="most images in one request")
    max_bytes: int = Field(description="largest body of a request")
    image_suffixes: list[str] = Field(description="names of the image files that can be added end in one of these")
    source_folders: list[str] = Field(description="names of the folders of the server that it may add; not paths")
    originals_bytes: int = Field(description="bytes of original files that may be kept; 0: originals are not kept")
    originals_used: int = Field(description="bytes of the original files that are kept")


@router.on("GET", "/api/v1/session", READ)
def session(request: Request, here: Here) -> SessionResponse:
    """Describe what the caller may do: the name and the scopes of its key, and the limits of a request."""
    settings, originals, read_only = here.settings, here.workbench.originals, here.workbench.read_only
    return SessionResponse(
        key=request.user.display_name if settings.has_keys else None,
        can_write=WRITE in request.auth.scopes and not read_only,
        read_only=read_only,
        max_images=settings.max_images,
        max_bytes=settings.max_bytes,
        image_suffixes=sorted(image_suffixes()),
        source_folders=SourceFolders(settings.source_folders).names,
        originals_bytes=originals.most_bytes if originals else 0,
        originals_used=originals.used if originals else 0,
    )


# ---- pretraining runs in the folder that the operator configured

runs = Router(prefix="/api/v1/runs", tags=["runs"])
# a report is an untrusted file: it runs no script, loads nothing, and only this server may frame it
REPORT_POLICY = (
    "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)


class RunResponse(schema_of(Run)):
    """The current state of a run. Times are seconds since 1970."""


class RunsResponse(Strict):
    """Runs, most recently logged first."""

    runs: list[RunResponse]


@runs.on("GET", "", READ)
def list_all(here: Here) -> RunsResponse:
    """List pretraining runs, most recently logged first. The list is empty if the server has no folder of runs."""
    found = list_runs(here.settings.runs) if here.settings.runs else []
    return RunsResponse(runs=[RunResponse(**vars(run)) for run in found])


@runs.on("GET", "/{name:path}/report", READ, "run_not_found", content={"text/html": {"schema": {"type": "string"}}})
def report(name: str, here: Here) -> Response:
    """Return the latest report of a run: HTML without scripts."""
    if here.settings.runs is None:
        raise RunNotFound("This server has no folder of runs; start it with --runs DIR.")
    headers = {"Content-Security-Policy": REPORT_POLICY, "X-Frame-Options": "SAMEORIGIN", "Cache-Control": "no-cache"}
    return Response(read_report(here.settings.runs, name), media_type="text/html; charset=utf-8", headers=headers)


# ---- Swagger UI from the installed package fastapi-offline, without another server

docs = Router(include_in_schema=False)
_ASSETS = Path(find_spec("fastapi_offline").origin).parent / "static"  # type: ignore[union-attr, arg-type]
# Swagger UI sets styles on its elements
DOCS_POLICY = (
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


@docs.on("GET", "/docs", READ)
def page() -> HTMLResponse:
    """Return the page, which shows the curl command of each request that it sends."""
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": DOCS_POLICY, "Referrer-Policy": "no-referrer"})


@docs.on("GET", "/docs/{name}", READ)
def asset(name: str) -> Response:
    """Return a file of Swagger UI, or the script that starts it."""
    if name == "start.js":
        return Response(_START, media_type="text/javascript")
    if name not in ("swagger-ui-bundle.js", "swagger-ui.css"):
        return Response(status_code=404)
    return FileResponse(_ASSETS / name, headers={"Cache-Control": "private, max-age=86400"})


@docs.on("GET", "/openapi.json", READ)
def description(request: Request) -> JSONResponse:
    """Return the OpenAPI document."""
    return JSONResponse(request.app.openapi())


# ---- the pages; the web app is mounted below /app

pages = Router(include_in_schema=False)


@pages.on("GET", "/", None)
def root(here: Here) -> Response:
    """Return the web app, or redirect to the documentation."""
    return here.start_page()


@pages.on("GET", "/app", None)
@pages.on("GET", "/app/", None)
def app_folder() -> Response:
    return Response(status_code=307, headers={"Location": "/"})


@pages.on("GET", "/favicon.ico", None)
def favicon() -> Response:
    return Response(status_code=204)
