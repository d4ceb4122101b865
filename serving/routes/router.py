"""The router, the parts of the server that routes use, and the names of its models.

router = Router(prefix="/api/v1/collections/{name}", tags=["collections"])

@router.on("POST", "/facets", READ, "collection_not_found invalid_filter")
def facets(name: str, body: FacetsRequest, here: Here) -> FacetsResponse: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import lru_cache, wraps
from typing import Annotated, Any, Protocol, TypeVar, get_type_hints

from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel

from nnclr_hub.errors import InvalidRequest, UnknownModel
from nnclr_hub.hub.sources import split_reading
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import public_name

from ..access import WRITE, Access
from ..answers import JSON, Answers
from ..engine import Engine
from ..jobs import Jobs
from ..models import Engines, Ingest
from ..problems import describe_errors
from ..readiness import Startup
from ..request_bodies import read_json
from ..settings import Settings
from ..telemetry import Metrics, measured
from ..url_fetcher import Fetcher
from .schemas import FILE, json_body

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT = "default"
MAX_READINGS = 32
FAILED_WRITE = "store_read_only disk_full"
BYTES = "application/octet-stream"


class Router(APIRouter):
    """A router whose routes declare the scope that a key needs, and the errors that they answer.

    A parameter that is a pydantic model is the JSON body, which is read with the limits of `request_bodies`.

    Args:
        stage: name of the stage under which all work of a synchronous endpoint is timed; "": it is not timed.
        options: see `APIRouter`.
    """

    def __init__(self, *, stage: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._stage = stage

    def on(
        self,
        method: str,
        path: str,
        scope: str | None,
        errors: str = "",
        *,
        streamed: bool = False,
        content: dict[str, Any] | None = None,
        responses: Mapping[Any, Any] | None = None,
        openai: bool = False,
        **options: Any,
    ) -> Callable[[F], F]:
        """Declare a route.

        Args:
            scope, streamed: see `Access`.
            errors: codes that `problems` knows, separated by spaces. Those of a body and of a write are added.
            content: media types of the successful response other than JSON, as `binary` describes them.
            openai: whether errors have the envelope of OpenAI.
            options: see `APIRouter.add_api_route`.
        """

        def add(endpoint: F) -> F:
            body = _read_bodies_by_us(endpoint)
            described = options if body is None else {"openapi_extra": json_body(body), **options}
            codes = (
                errors + " read_only" * (scope == WRITE) + " unsupported_media_type" * ("openapi_extra" in described)
            )
            documented = {**describe_errors(codes, openai=openai), **(responses or {})}
            if content is not None:
                documented[200] = {"content": content, **documented.get(200, {})}
                if "response_model" not in options:
                    described = {"response_class": Response, **described}
            endpoint.__access__ = Access(scope, streamed)  # type: ignore[attr-defined]
            answering = _encoding_in_thread(endpoint, options.get("status_code", 200), self._stage)
            self.add_api_route(path, answering, methods=[method], responses=documented, **described)
            return endpoint

        return add


def _read_bodies_by_us(endpoint: Callable[..., Any]) -> type[BaseModel] | None:
    """Change the signature that FastAPI sees: our dependency reads the body. Return its model, None without one."""
    found: type[BaseModel] | None = None
    signature, hints = inspect.signature(endpoint), get_type_hints(endpoint, include_extras=True)
    parameters = []
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        kind = hints[parameter.name] if isinstance(kind, str) else kind
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found, kind = kind, Annotated[kind, Depends(_reader(kind))]
        parameters.append(parameter.replace(annotation=kind))
    returned = signature.return_annotation
    if isinstance(returned, str):
        returned = None if returned == "None" else hints["return"]
    endpoint.__signature__ = signature.replace(parameters=parameters, return_annotation=returned)  # type: ignore[attr-defined]
    return found


def _encoding_in_thread(endpoint: Callable[..., Any], status: int, stage: str) -> Callable[..., Any]:
    """Return an endpoint that encodes its model in the thread in which it runs; FastAPI does so in the event loop.

    Args:
        stage: name of the stage under which all work of the endpoint is timed; "": it is not timed.
    """
    if inspect.iscoroutinefunction(endpoint):
        return endpoint

    @wraps(endpoint)
    def answer(*args: Any, **given: Any) -> Any:
        with measured(stage) if stage else nullcontext():
            found = endpoint(*args, **given)
        if not isinstance(found, BaseModel):
            return found
        own = given.get("response")
        made = Response(found.model_dump_json(), (own and own.status_code) or status, media_type=JSON)
        if own is not None:
            made.headers.update(own.headers)
        return made

    return answer


def _reader(model: type[BaseModel]) -> Callable[[Request], Any]:
    async def read(request: Request) -> Any:
        return await read_json(request, model)

    return read


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
    search_models: dict[str, Engine]  # that the collections of recent searches are bound to
    start_page: Callable[[], Response]


# asynchronous, because FastAPI runs synchronous dependencies in the thread pool that all routes share
async def _parts(request: Request) -> Any:
    return request.app.state


Here = Annotated[Parts, Depends(_parts)]


def body_of(*media_types: str) -> dict[str, Any]:
    """Describe a body of bytes of one of the media types."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": FILE} for kind in media_types}}}


# ---- models by their public names


def served_names(engines: Engines) -> dict[str, str]:
    """Return the sources of the models by their public names, which never contain a path of this machine."""
    return _public_names(tuple(engines.served()))


@lru_cache(1)  # they change only when a model is loaded, and every answer with vectors has the name of its model
def _public_names(sources: tuple[str, ...]) -> dict[str, str]:
    names: dict[str, str] = {}
    for source in sources:
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


def name_of(engines: Engines, model: Engine) -> str:
    """Return the public name of a model."""
    return next((name for name, source in served_names(engines).items() if source == model.name), model.name)
