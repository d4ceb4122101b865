"""Serve the web app: its page at /, and the static files in `web/` under /app. Its scripts use REST alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

PATH = "/app"
FOLDER = Path(__file__).parent / "web"
# scripts and styles of this server only; blob: and data: are images that a person searches with
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


# a browser revalidates each file at each load, so that an update is complete
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}


class _Files(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


def mount_web_app(app: FastAPI) -> None:
    """Mount the app on the API's app; call this before it starts."""
    app.mount(PATH, GZipMiddleware(_Files(directory=FOLDER), minimum_size=1000))
    app.state.start_page = lambda: FileResponse(FOLDER / "index.html", headers=HEADERS)
