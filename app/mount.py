"""Mount the page on the API's app at /ui without delaying the API.

Importing Gradio takes longer than importing everything else. The page is therefore built in a thread after the default
model is loaded and the collections are open. Requests for the page wait until it is built.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from importlib.util import find_spec

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.workbench import Workbench

if find_spec("gradio") is None:  # fail at startup, not when the page is built
    raise ModuleNotFoundError("No module named 'gradio'", name="gradio")

PATH = "/ui"
log = logging.getLogger(__name__)


def mount_page(app: FastAPI, workbench: Workbench) -> None:
    """Mount the page; call this before the app starts.

    Args:
        app: the API's app. The page takes its settings and its jobs from `app.state`.
    """

    def build() -> FastAPI:
        try:
            workbench.models.get()
            workbench.store.list()
        except NNCLRHubError as error:
            log.warning("The page starts without a model or a store: %s", error)
        from .page import Page, PageSettings
        from .site import build_site

        settings = app.state.settings
        own = PageSettings(
            max_bytes=settings.max_bytes,
            max_images=settings.max_images,
            source_folders=settings.source_folders,
            local=settings.local,
            read_only=settings.read_only,
            runs=settings.runs is not None,
            keys=settings.has_keys,
        )
        return build_site(Page(workbench, own, app.state.jobs), PATH)

    page = BackgroundPage(build, app.state.low_priority, app.state.on_loaded)
    app.mount(PATH, page)
    app.state.has_page = True
    lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def with_page(app: FastAPI) -> AsyncIterator[object]:
        async with lifespan(app) as state, page.lifespan():
            yield state

    app.router.lifespan_context = with_page  # type: ignore[assignment]


class BackgroundPage:
    """An ASGI app that is built while the API already answers requests.

    Args:
        build: makes the app, in a thread. Requests go to the single app that is mounted on it.
        low_priority: a context variable, set in the page's own tasks. The event loop then runs API requests first.
        on_loaded: called once the app is built.
    """

    def __init__(
        self, build: Callable[[], FastAPI], low_priority: ContextVar[bool], on_loaded: Callable[[], None]
    ) -> None:
        self._build = build
        self._low_priority = low_priority
        self._on_loaded = on_loaded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # shield: a client that disconnects must not cancel the build
        page = await asyncio.shield(self._page)
        await page(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Build the page in the background, and shut it down at exit."""
        self._page: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()
        ended = asyncio.Event()
        running = asyncio.create_task(self._run(ended))
        try:
            yield
        finally:
            ended.set()
            await running

    async def _run(self, ended: asyncio.Event) -> None:
        self._low_priority.set(True)  # for this task and for each task that Gradio starts in it
        try:
            built = await asyncio.to_thread(self._build)
            await asyncio.to_thread(self._on_loaded)
            async with built.router.lifespan_context(built):
                (mounted,) = built.router.routes
                self._page.set_result(mounted.app)  # type: ignore[attr-defined]
                await ended.wait()
        except Exception:
            log.exception("the page could not be built")
            if not self._page.done():
                self._page.set_result(PlainTextResponse("The page could not be built; see the server's log.", 500))
