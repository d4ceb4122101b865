"""Serve the web app: its page at /, and the static files in `web/` under /app. Its scripts use REST alone."""

from __future__ import annotations

import hashlib
import re
import threading
import zipfile
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
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


# a browser revalidates each file at each load, so that an update is complete; see `_start_page` for the exception
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
FIRST = "explore.js"  # the screen that most visits begin with
IMPORT = re.compile(r"^(?:import|export) (?:[^;]*? from )?'\./([\w.]+)'", re.MULTILINE)
_drawing = threading.Lock()


class _Files(StaticFiles):
    """The files, also below a version `~...`, where browsers keep them without asking again."""

    def get_path(self, scope: Any) -> str:
        first, _, rest = super().get_path(scope).partition("/")
        return rest if first.startswith("~") else super().get_path(scope)

    def file_response(self, full_path: Any, stat_result: Any, scope: Any, status_code: int = 200) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        if f"{PATH}/~{_read(_stats())[0]}/" in scope["path"]:
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def mount_web_app(app: FastAPI) -> None:
    """Mount the app on the API's app; call this before it starts."""
    app.add_route(f"{PATH}/sample.zip", _sample, include_in_schema=False)
    app.mount(PATH, GZipMiddleware(_Files(directory=FOLDER), minimum_size=1000))
    app.state.start_page = _start_page


def _start_page() -> Response:
    """Return index.html. Its files have the version in their paths: a second visit asks for none of them.

    A browser learns of a module only where another imports it, in six steps; so the page names those of the first
    screen, which are then loaded at once.
    """
    return HTMLResponse(_read(_stats())[1], headers=HEADERS)


def _stats() -> tuple[tuple[Path, int, int], ...]:
    stats = ((path, path.stat()) for path in sorted(FOLDER.iterdir()))
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


@lru_cache(1)
def _read(stats: tuple[tuple[Path, int, int], ...]) -> tuple[str, str]:
    """Return the version, which is that of every installation with the same files, and the text of the page."""
    digest = hashlib.sha256()
    for path, _, _ in stats:
        digest.update(path.name.encode() + path.read_bytes())
    version, modules = digest.hexdigest()[:16], _imported("main.js") | _imported(FIRST)
    links = "".join(f'  <link rel="modulepreload" href="app/{name}">\n' for name in sorted(modules))
    text = (FOLDER / "index.html").read_text("utf-8").replace("</head>", f"{links}</head>")
    return version, text.replace('"app/', f'"app/~{version}/')


def _imported(name: str) -> set[str]:
    """Return the names of a module and of all modules that it imports before it runs."""
    names, waiting = set(), [name]
    while waiting:
        if (module := waiting.pop()) not in names:
            names.add(module)
            waiting += IMPORT.findall((FOLDER / module).read_text("utf-8"))
    return names


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
