"""The FastAPI app, put together.

    app = create_app(settings, engines, workbench)

It starts at once and loads in the background: /healthz answers from the first moment, /readyz says
503 until the model is warm and the collections are open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import RedirectResponse, Response

import nnclr_hub
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.workbench import Workbench

from . import problems
from .models import Engines
from .routes import collections, embed, health, items, openai, search
from .security.door import Door
from .security.fetching import Fetcher
from .settings import Settings

log = logging.getLogger(__name__)


def create_app(settings: Settings, engines: Engines, workbench: Workbench) -> FastAPI:
    """The API over a workbench whose models are the engines; closes neither."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(asyncio.to_thread(_load, app))
        yield
        await loading

    app = FastAPI(
        title="nnclr_hub",
        version=nnclr_hub.__version__,
        description="Image embeddings and retrieval with NNCLR encoders.",
        lifespan=lifespan,
        docs_url=None,  # both pages of the framework load their scripts from elsewhere
        redoc_url=None,
    )
    app.state.settings, app.state.engines, app.state.workbench = settings, engines, workbench
    app.state.fetcher = Fetcher(settings) if settings.allow_urls else None
    app.state.ready, app.state.loading, app.state.failure = False, "starting", None
    problems.install(app)
    for resource in (health, openai, embed, collections, items, search):
        app.include_router(resource.router)

    @app.get("/", include_in_schema=False)
    def root() -> RedirectResponse:
        return RedirectResponse("/ui")

    @app.get("/favicon.ico", include_in_schema=False)
    def favicon() -> Response:
        return Response(status_code=204)

    app.add_middleware(Door, settings=settings)
    return app


def _load(app: FastAPI) -> None:
    """Warms the default model and opens every collection."""
    state = app.state
    try:
        state.loading = f"loading the model {state.engines.default}"
        state.engines.get()
        state.loading = "opening the collections"
        state.workbench.store.list()
    except NNCLRHubError as error:
        log.error("not ready: %s", error)
        state.failure = str(error)
    else:
        state.ready = True
