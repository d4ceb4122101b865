"""What routes share: the router, the parts of the server, and the names of its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, TypeVar, cast

from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from nnclr_hub.errors import InvalidRequest, NNCLRHubError, UnknownModel
from nnclr_hub.hub.sources import split_reading
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import public_name

from ..answers import Answers
from ..ingest import Ingest
from ..jobs import Jobs
from ..models import Engines, Model
from ..problems import answers
from ..readiness import Startup
from ..security.access import requires
from ..settings import Settings
from ..telemetry import Metrics
from ..url_fetcher import Fetcher

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT = "default"
MAX_READINGS = 32


class Router(APIRouter):
    """A router whose routes declare the scope that a key needs, and the errors that they answer.

        @router.on("GET", "/{name}/count", READ, CollectionNotFound, InvalidFilter)
        def count(name: str, here: Here) -> CountResponse: ...

    Args of `on`:
        errors: error classes, or codes of `problems.HTTP_KINDS`.
        content: media types of the successful response other than JSON, as `binary` describes them.
        openai: whether errors have the envelope of OpenAI.
        options: see `APIRouter.add_api_route`.
    """

    def on(
        self,
        method: str,
        path: str,
        scope: str | None,
        *errors: str | type[NNCLRHubError],
        content: dict[str, Any] | None = None,
        responses: Mapping[Any, Any] | None = None,
        openai: bool = False,
        **options: Any,
    ) -> Callable[[F], F]:
        documented = {**answers(*errors, openai=openai), **(responses or {})}
        if content is not None:
            documented[200] = {"content": content, **documented.get(200, {})}

        def add(endpoint: F) -> F:
            self.add_api_route(path, requires(scope)(endpoint), methods=[method], responses=documented, **options)
            return endpoint

        return add


class Parts(Protocol):
    """The state of the app: the parts of the server, which `api.create_app` makes."""

    settings: Settings
    engines: Engines
    workbench: Workbench
    metrics: Metrics
    jobs: Jobs
    readiness: Startup
    fetcher: Fetcher | None  # None: the server fetches no web addresses
    answers: Answers
    ingest: Ingest
    search_threads: CapacityLimiter
    box_threads: CapacityLimiter
    attention_slots: CapacityLimiter  # attention requests in work at once
    health_threads: CapacityLimiter  # for health checks, which must not wait for other requests
    long_threads: CapacityLimiter  # for work on a whole collection, which must not block other requests
    waiting_for_changes: set[object]
    search_models: dict[str, Model]  # that the collections of recent searches are bound to
    start_page: Callable[[], Response]


def parts_of(request: Request) -> Parts:
    """Return the parts of the server. A dependency takes as long as parsing a small request."""
    return cast(Parts, request.app.state)


# asynchronous, because FastAPI runs synchronous dependencies in the thread pool that all routes share
async def _parts(request: Request) -> Any:
    return request.app.state


Here = Annotated[Parts, Depends(_parts)]


def _state(name: str) -> Any:
    """Return a dependency that reads an attribute of the app's state."""

    async def read(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(read)


AppSettings = Annotated[Settings, _state("settings")]
AppWorkbench = Annotated[Workbench, _state("workbench")]


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
