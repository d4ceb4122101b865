"""What the routes work with: the server's settings, engines, workbench and metrics, from the app's state."""

from __future__ import annotations

from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Request

from nnclr_hub.errors import UnknownModel
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import public_name

from ..edge.url_fetcher import Fetcher
from ..ingesting import Ingest
from ..models import Engines, Model
from ..settings import Settings
from ..telemetry import Metrics
from ..turns import Turns

DEFAULT = "default"

# they are asynchronous because the framework runs others in the threads that everybody shares


async def _settings(request: Request) -> Settings:
    return request.app.state.settings


async def _engines(request: Request) -> Engines:
    return request.app.state.engines


async def _workbench(request: Request) -> Workbench:
    return request.app.state.workbench


async def _metrics(request: Request) -> Metrics:
    return request.app.state.metrics


async def _cropping(request: Request) -> CapacityLimiter:
    return request.app.state.cropping


async def _ingest(request: Request) -> Ingest:
    return request.app.state.ingest


async def _fetcher(request: Request) -> Fetcher | None:
    return request.app.state.fetcher


async def _watching(request: Request) -> CapacityLimiter:
    return request.app.state.watching


async def _looking(request: Request) -> Turns:
    return request.app.state.looking


async def _lengthy(request: Request) -> CapacityLimiter:
    return request.app.state.lengthy


AppSettings = Annotated[Settings, Depends(_settings)]
AppEngines = Annotated[Engines, Depends(_engines)]
AppWorkbench = Annotated[Workbench, Depends(_workbench)]
AppFetcher = Annotated[Fetcher | None, Depends(_fetcher)]
AppMetrics = Annotated[Metrics, Depends(_metrics)]
AppIngest = Annotated[Ingest, Depends(_ingest)]
# how many searches may decode an image to cut a box out of it at once
AppCropping = Annotated[CapacityLimiter, Depends(_cropping)]
# how many questions about attention are in work at once
AppLooking = Annotated[Turns, Depends(_looking)]
# threads for those who look whether the server is well, which they must not wait with the others for
AppWatching = Annotated[CapacityLimiter, Depends(_watching)]
# threads for what goes through a whole collection, so that it leaves the others' alone
AppLengthy = Annotated[CapacityLimiter, Depends(_lengthy)]


def served_names(engines: Engines) -> dict[str, str]:
    """Sources of the models by the names that requests give them: never a path of this machine."""
    names: dict[str, str] = {}
    for source in engines.served():
        name, number = public_name(source), 2
        while name in names:
            name, number = f"{public_name(source)}-{number}", number + 1
        names[name] = source
    return names


def served_source(engines: Engines, name: str | None) -> str:
    """The source of a model that a request names: one that is served, never any source whatever.

    Args:
        name: of `served_names`, or "default" or None for the default. Who knows a source may name that.

    Raises:
        UnknownModel: names those that are served.
    """
    if name is None or name in (DEFAULT, engines.default):
        return engines.default
    names = served_names(engines)
    source = names.get(name, name)
    if source not in names.values():
        raise UnknownModel(f"This server has no model {name!r:.150}: it serves {', '.join(names)}.")
    return source


def served_engine(engines: Engines, name: str | None) -> Model:
    """The model that a request names, loaded if it was not; see `served_source`. Blocks."""
    return engines.get(served_source(engines, name))


async def served_engine_async(engines: Engines, name: str | None) -> Model:
    """`served_engine` for the event loop: at once where the model is in memory."""
    return await engines.get_async(served_source(engines, name))


def name_of(engines: Engines, engine: Model) -> str:
    """What requests call an engine's model."""
    return next((name for name, source in served_names(engines).items() if source == engine.name), engine.name)
