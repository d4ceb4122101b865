"""Serve the web app: its page at /, and the static files in `web/` under /app. Its scripts use REST alone."""

from __future__ import annotations

import threading
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from nnclr_hub.cache import cache_folder

PATH = "/app"
FOLDER = Path(__file__).parent / "web"
SAMPLES = 24  # images of each kind in the sample gallery
# scripts and styles of this server only; blob: and data: are images that a person searches with
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


# a browser revalidates each file at each load, so that an update is complete
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
_drawing = threading.Lock()


class _Files(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


def mount_web_app(app: FastAPI) -> None:
    """Mount the app on the API's app; call this before it starts."""
    app.add_route(f"{PATH}/sample.zip", _sample, include_in_schema=False)
    app.mount(PATH, GZipMiddleware(_Files(directory=FOLDER), minimum_size=1000))
    app.state.start_page = lambda: FileResponse(FOLDER / "index.html", headers=HEADERS)


async def _sample(request: Request) -> Response:
    """Return images for a first visit as an archive. The first call draws them."""
    return Response(await run_in_threadpool(_archive), media_type="application/zip")


def _archive() -> bytes:
    from .rendered import write_gallery

    with _drawing:
        folder = write_gallery(cache_folder() / "demo" / "sample", per_kind=SAMPLES)
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*.jpg")):
            archive.write(path, f"sample/{path.relative_to(folder)}")
    return file.getvalue()
