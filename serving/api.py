"""The FastAPI app and its parts.

    with opened_app(settings, "nnclr-store", None) as app:
        run(app, settings)

It starts at once and loads in the background: /healthz answers immediately, /readyz answers 503 until the model is
warm and the collections are open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from anyio import CapacityLimiter
from fastapi import FastAPI
from fastapi.responses import RedirectResponse
from starlette.types import ASGIApp

import nnclr_hub
from nnclr_hub.cores import usable_cores
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Workbench

from . import openapi, problems
from .access import AccessControl, AccessRules
from .answers import Answers
from .jobs import Jobs
from .limits import RequestLimits
from .models import Engines, Ingest
from .readiness import Startup
from .routes import PAGES, ROUTERS, embed, items, search
from .routes.attention import AT_ONCE
from .settings import Settings
from .telemetry import observed
from .url_fetcher import Fetcher

log = logging.getLogger(__name__)
SEARCHES_PER_CORE = 2  # one may wait for the disk; more would only take memory


class Service(FastAPI):
    """An app whose log is outside all other layers, including those that are added later."""

    def build_middleware_stack(self) -> ASGIApp:
        state = self.state
        return observed(super().build_middleware_stack(), state.metrics, state.readiness)


@contextmanager
def opened_app(settings: Settings, store: str, model: str | None, *, shared: bool = False) -> Iterator[FastAPI]:
    """Open a store and engines, yield the app that uses them, and close them at the end.

    Args:
        store: see `open_store`, as is `shared`.
        model: source of the default encoder; None: the best starter.
    """
    with open_store(store, read_only=settings.read_only, shared=shared) as opened:
        engines = Engines(model, settings)
        try:
            # its models embed images, and do nothing else that a Workbench may ask of an encoder
            bench = Workbench(
                engines,  # type: ignore[arg-type]
                opened,
                originals_bytes=settings.originals_bytes,
                source_folders=settings.source_folders,
                backup_to=settings.backup_to,
            )
            yield create_app(settings, engines, bench)
        finally:
            engines.close()


def create_app(settings: Settings, engines: Engines, workbench: Workbench) -> FastAPI:
    """Make the app for a workbench whose models are the engines; closes neither."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(asyncio.to_thread(_load, app))
        yield
        await loading
        await asyncio.to_thread(app.state.jobs.stop)

    app = Service(
        title=openapi.TITLE,
        version=nnclr_hub.__version__,
        lifespan=lifespan,
        openapi_url=None,  # served by routes/server.py
        docs_url=None,  # the page of the framework loads its scripts from elsewhere
        redoc_url=None,
        # recent versions trace requests, too; `telemetry` does, with our stages. Older versions ignore it
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    _equip(app, settings, engines, workbench)
    problems.install(app)
    # the most frequent requests first: each route that is tried before costs time
    frequent = (embed.router, search.router, embed.openai, items.router)
    routers = (*frequent, *(one for one in ROUTERS if one not in frequent), *PAGES)
    for router in routers:
        app.router.routes += router.routes  # `include_router` would wrap each, for prefixes and dependencies of the app
    app.openapi = openapi.document
    app.add_middleware(RequestLimits, settings=settings)
    rules = AccessRules(routers)
    app.add_middleware(AccessControl, access=rules, settings=settings, read_only=workbench.read_only)
    return app


def _load(app: FastAPI) -> None:
    app.state.readiness.run()
    app.state.on_loaded()
    originals = app.state.workbench.originals
    if originals is not None and not app.state.workbench.read_only:
        try:
            originals.sweep()
        except (NNCLRHubError, OSError) as error:
            log.warning("unused originals were not deleted (%s)", error)


def _equip(app: FastAPI, settings: Settings, engines: Engines, workbench: Workbench) -> None:
    """Set the state of the app, which the routes use; see `Parts` in routes/router.py."""
    state, metrics = app.state, engines.metrics
    metrics.describe_store(workbench.store)
    state.settings, state.engines, state.workbench, state.metrics = settings, engines, workbench, metrics
    state.start_page = lambda: RedirectResponse("/docs")  # replaced if the web app is mounted
    state.on_loaded = lambda: None  # called after loading; `run` freezes the garbage collector then
    most = settings.answer_bytes // 2  # the other fields of a job need some, too
    state.jobs = Jobs(workbench, metrics, waiting=settings.jobs_waiting, keep=settings.jobs_kept, most=most)
    state.readiness = Startup(engines, workbench, state.jobs)
    state.fetcher = Fetcher(settings, metrics=metrics) if settings.allow_urls else None
    state.answers = Answers(settings, metrics)
    state.ingest = Ingest(settings.decode_threads)
    state.search_threads = CapacityLimiter(SEARCHES_PER_CORE * usable_cores())
    state.box_threads = CapacityLimiter(settings.decode_threads)
    state.attention_slots = CapacityLimiter(AT_ONCE)
    state.health_threads, state.long_threads = CapacityLimiter(2), CapacityLimiter(2)
    state.waiting_for_changes, state.search_models = set(), {}
