"""Puts the page on the API's app at /ui, without holding the API up.

Gradio takes longer to import than all the rest. So the page is built in a thread, once the default model is
loaded and the collections are open; who asks for it earlier waits for it.
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

if find_spec("gradio") is None:  # to be told at the start, not when the page is built
    raise ModuleNotFoundError("No module named 'gradio'", name="gradio")

PATH = "/ui"
log = logging.getLogger(__name__)


def mount_page(app: FastAPI, workbench: Workbench) -> None:
    """Mounts the page; call it before the app starts.

    Args:
        app: of the API; the page takes its settings and its jobs from what the app carries.
    """

    def build() -> FastAPI:
        try:
            workbench.models.get()
            workbench.store.list()
        except NNCLRHubError as error:
            log.warning("the page comes without a model or a store: %s", error)
        from .page import Page, Terms
        from .site import build_site

        settings = app.state.settings
        terms = Terms(
            max_bytes=settings.max_bytes,
            max_images=settings.max_images,
            source_folders=settings.source_folders,
            local=settings.local,
            read_only=settings.read_only,
            runs=settings.runs is not None,
            keys=settings.has_keys,
        )
        return build_site(Page(workbench, terms, app.state.jobs), PATH)

    page = LatePage(build, app.state.low_priority, app.state.on_loaded)
    app.mount(PATH, page)
    app.state.has_page = True
    lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def with_page(app: FastAPI) -> AsyncIterator[object]:
        async with lifespan(app) as state, page.coming():
            yield state

    app.router.lifespan_context = with_page  # type: ignore[assignment]


class LatePage:
    """An app that is built while others already answer.

    Args:
        build: makes it, in a thread; its routes are those of the one app that is mounted on it.
        steps_aside: set in what the page does of itself, for the loop to let requests go first.
        settled: called when it is built.
    """

    def __init__(
        self, build: Callable[[], FastAPI], steps_aside: ContextVar[bool], settled: Callable[[], None]
    ) -> None:
        self._build = build
        self._steps_aside = steps_aside
        self._settled = settled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        page = await asyncio.shield(self._page)
        await page(scope, receive, send)

    @asynccontextmanager
    async def coming(self) -> AsyncIterator[None]:
        """Builds it meanwhile, and keeps it alive for as long."""
        self._page: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()
        ended = asyncio.Event()
        living = asyncio.create_task(self._live(ended))
        try:
            yield
        finally:
            ended.set()
            await living

    async def _live(self, ended: asyncio.Event) -> None:
        self._steps_aside.set(True)  # for this task, and for all that Gradio begins in it
        try:
            built = await asyncio.to_thread(self._build)
            await asyncio.to_thread(self._settled)
            async with built.router.lifespan_context(built):
                (mounted,) = built.router.routes
                self._page.set_result(mounted.app)  # type: ignore[attr-defined]
                await ended.wait()
        except Exception:
            log.exception("the page could not be built")
            if not self._page.done():
                self._page.set_result(PlainTextResponse("The page could not be built: the server's log says why.", 500))
