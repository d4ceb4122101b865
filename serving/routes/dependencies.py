"""Dependencies of the routes: settings, engines and more from the app's state."""

from __future__ import annotations

from typing import Annotated, Any

from anyio import CapacityLimiter
from fastapi import Depends, Request

from nnclr_hub.errors import InvalidRequest, UnknownModel
from nnclr_hub.hub.sources import split_reading
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import public_name

from ..answers import Answers
from ..ingest import Ingest
from ..models import Engines, Model
from ..settings import Settings
from ..telemetry import Metrics
from ..url_fetcher import Fetcher

DEFAULT = "default"
MAX_READINGS = 32


def _state(name: str) -> Any:
    """Return a dependency that reads an attribute of the app's state."""

    # asynchronous, because FastAPI runs synchronous dependencies in the thread pool that all routes share
    async def read(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(read)


AppSettings = Annotated[Settings, _state("settings")]
AppEngines = Annotated[Engines, _state("engines")]
AppWorkbench = Annotated[Workbench, _state("workbench")]
AppFetcher = Annotated[Fetcher | None, _state("fetcher")]
AppMetrics = Annotated[Metrics, _state("metrics")]
AppIngest = Annotated[Ingest, _state("ingest")]
AppAnswers = Annotated[Answers, _state("answers")]
# attention requests in work at once
AppAttentionSlots = Annotated[CapacityLimiter, _state("attention_slots")]
# separate threads for health checks, which must not wait for other requests
AppHealthThreads = Annotated[CapacityLimiter, _state("health_threads")]
# separate threads for work on a whole collection, which must not block other requests
AppLongThreads = Annotated[CapacityLimiter, _state("long_threads")]


def served_names(engines: Engines) -> dict[str, str]:
    """Return the sources of the models by their public names, which never contain a path of this machine."""
    names: dict[str, str] = {}
    for source in engines.served():
        name, number = public_name(source), 2
        while name in names:
            name, number = f"{public_name(source)}-{number}", number + 1
        names[name] = source
    return names


def served_source(engines: Engines, name: str | None) -> str:
    """Return the source of the model that a request names.

    Args:
        name: one of `served_names`, a served source, or "default" or None for the default model.

    Raises:
        UnknownModel: the server does not serve that model. A request cannot load any other source.
    """
    if name is None or name in (DEFAULT, engines.default):
        return engines.default
    names = served_names(engines)
    source = names.get(name, name)
    if source not in names.values():
        raise UnknownModel(f"This server has no model {name!r:.150}; it serves {', '.join(names)}.")
    return source


def source_with_reading(engines: Engines, bench: Workbench, name: str | None) -> str:
    """Return the source of the model that a request names; the name may end in a reading: `default?channels=0,2,1`.

    Each reading is a further model in memory, so the number of readings of existing collections is limited. Blocks.

    Raises:
        UnknownModel: see `served_source`.
        InvalidRequest: the reading is invalid or does not fit the model, or there are too many.
    """
    plain, text = split_reading(name or DEFAULT)
    if not text:
        return served_source(engines, name)
    if name in served_names(engines):
        source = served_source(engines, name)
    else:
        base = served_source(engines, plain)
        reading = ImageReading.parse(text, ImageReading.of_source(base))
        engines.get(base).preprocessing.check_reading(reading)
        source = reading.within(base)
    used = {model for info in bench.store.list() if split_reading(model := info.spec.model or "")[1]}
    if source not in (engines.default, *used) and len(used) >= MAX_READINGS:
        raise InvalidRequest(
            f"The collections of this server read images in {MAX_READINGS} ways already; use one of them, or drop a "
            "collection."
        )
    return source


def served_engine(engines: Engines, name: str | None) -> Model:
    """Return the model that a request names, and load it if needed; see `served_source`. Blocks."""
    return engines.get(served_source(engines, name))


async def served_engine_async(engines: Engines, name: str | None) -> Model:
    """Return the model as `served_engine` does, without blocking the event loop."""
    return await engines.get_async(served_source(engines, name))


def name_of(engines: Engines, engine: Model) -> str:
    """Return the public name of an engine's model."""
    return next((name for name, source in served_names(engines).items() if source == engine.name), engine.name)
