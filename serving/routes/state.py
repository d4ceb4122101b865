"""What the routes work with: the server's settings, engines and workbench, from the app's state."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from nnclr_hub.errors import UnknownModel
from nnclr_hub.workbench import Workbench

from ..models import Engines, Model
from ..security.fetching import Fetcher
from ..settings import Settings


def _settings(request: Request) -> Settings:
    return request.app.state.settings


def _engines(request: Request) -> Engines:
    return request.app.state.engines


def _workbench(request: Request) -> Workbench:
    return request.app.state.workbench


def _fetcher(request: Request) -> Fetcher | None:
    return request.app.state.fetcher


AppFetcher = Annotated[Fetcher | None, Depends(_fetcher)]
AppSettings = Annotated[Settings, Depends(_settings)]
AppEngines = Annotated[Engines, Depends(_engines)]
AppWorkbench = Annotated[Workbench, Depends(_workbench)]


def served_engine(engines: Engines, name: str | None) -> Model:
    """The model that a request names: one that is served, never any source whatever.

    Raises:
        UnknownModel: names those that are served.
    """
    source = None if name is None else engines.source_of(name)
    if name is not None and source is None:
        raise UnknownModel(f"This server has no model {name!r:.150}: it serves {', '.join(engines.served())}.")
    return engines.get(source)
