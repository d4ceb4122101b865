"""/api/v1/collections: make, list, describe, drop, count, snapshot, verify."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import TypeAdapter

from nnclr_hub.errors import (
    CollectionExists,
    CollectionNotFound,
    DiskFull,
    InvalidFilter,
    ModelError,
    StoreReadOnly,
    UnknownModel,
)
from nnclr_hub.store.base import CollectionInfo, CollectionSpec
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import public_name, without_paths

from ..keys import READ, WRITE
from ..models import Engines
from ..problems import answers
from ..schemas import CollectionRequest, CollectionResponse, CollectionsResponse, CountResponse, VerifyResponse
from ..security.access import requires
from ..telemetry import measured
from ..uploads import json_of
from .described import json_body
from .filters import WhereText, read_where
from .state import AppEngines, AppLengthy, AppMetrics, AppWorkbench, served_engine

router = APIRouter(prefix="/api/v1/collections", tags=["collections"])
_WRITE = (StoreReadOnly, DiskFull)


@router.get("", responses=answers())
@requires(READ)
def list_collections(bench: AppWorkbench, metrics: AppMetrics) -> CollectionsResponse:
    """All collections by name."""
    with measured(metrics, "store"):
        return CollectionsResponse(collections=[_response(info) for info in bench.store.list()])


@router.put(
    "/{name}",
    responses={
        **answers("unsupported_media_type", CollectionExists, UnknownModel, ModelError, *_WRITE),
        201: {"model": CollectionResponse, "description": "made"},
    },
    openapi_extra=json_body(CollectionRequest),
)
@requires(WRITE)
async def create(
    name: str,
    body: Annotated[CollectionRequest, json_of(CollectionRequest)],
    response: Response,
    bench: AppWorkbench,
    engines: AppEngines,
    metrics: AppMetrics,
) -> CollectionResponse:
    """Makes a collection (201); again with the same specification changes nothing (200)."""
    spec = await run_in_threadpool(_spec, engines, body)
    with measured(metrics, "store"):
        info, made = await run_in_threadpool(_create, bench, name, spec)
    response.status_code = 201 if made else 200
    return _response(info)


@router.get("/{name}", responses=answers(CollectionNotFound))
@requires(READ)
def describe(name: str, bench: AppWorkbench, metrics: AppMetrics) -> CollectionResponse:
    """One collection, by its name or an alias."""
    with measured(metrics, "store"):
        return _response(bench.collection(name).info())


@router.delete("/{name}", status_code=204, responses=answers(CollectionNotFound, *_WRITE))
@requires(WRITE)
def drop(name: str, bench: AppWorkbench, metrics: AppMetrics) -> None:
    """Deletes a collection with everything in it and the aliases that mean it."""
    with measured(metrics, "store"):
        bench.drop(name)


@router.get("/{name}/count", responses=answers(CollectionNotFound, InvalidFilter))
@requires(READ)
def count(name: str, bench: AppWorkbench, metrics: AppMetrics, where: WhereText = None) -> CountResponse:
    """How many items there are, or pass the filter."""
    condition = read_where(where)
    with measured(metrics, "store"):
        return CountResponse(count=bench.collection(name).count(condition))


@router.post("/{name}/snapshot", status_code=204, responses=answers(CollectionNotFound, *_WRITE))
@requires(WRITE)
async def snapshot(name: str, bench: AppWorkbench, metrics: AppMetrics, lengthy: AppLengthy) -> None:
    """Writes the index to disk now, so that the next start is quick."""
    with measured(metrics, "store"):
        await to_thread.run_sync(lambda: bench.collection(name).snapshot(), limiter=lengthy)


@router.post("/{name}/verify", responses=answers(CollectionNotFound))
@requires(WRITE)
async def verify(name: str, bench: AppWorkbench, metrics: AppMetrics, lengthy: AppLengthy) -> VerifyResponse:
    """Reads every vector back, and compares the index with an exhaustive search on a sample."""
    with measured(metrics, "store"):
        report = await to_thread.run_sync(lambda: bench.collection(name).verify(), limiter=lengthy)
    return VerifyResponse(ok=report.ok, **_JSON_REPORT.dump_python(report, mode="json"))


_JSON_REPORT: TypeAdapter[Any] = TypeAdapter(Any)


def _response(info: CollectionInfo) -> CollectionResponse:
    spec = asdict(info.spec) | {"model": public_name(info.spec.model) if info.spec.model else ""}
    about = {name: getattr(info, name) for name in ("name", "count", "durable_seq", "indexed_seq")}
    return CollectionResponse(**spec, **about, state=without_paths(info.state), index_in_use=info.index)


def _spec(engines: Engines, body: CollectionRequest) -> CollectionSpec:
    """Of vectors of unknown origin where only their length is given; else of a model's."""
    if body.dim is not None and body.model is None:
        spec = CollectionSpec(body.dim, body.metric)
    else:
        engine = served_engine(engines, body.model)
        spec = CollectionSpec(body.dim or engine.embed_dim, body.metric, engine.fingerprint, engine.name)
    return replace(spec, indexed=tuple(body.indexed), index=body.index, precision=body.precision)


def _create(bench: Workbench, name: str, spec: CollectionSpec) -> tuple[CollectionInfo, bool]:
    try:
        existing = bench.collection(name)
    except CollectionNotFound:
        with suppress(CollectionExists):
            return bench.store.create(name, spec).info(), True
        existing = bench.collection(name)  # an equal request was faster
    if existing.spec != spec:
        raise CollectionExists(
            f"There is a collection {name!r} already, with another specification: drop it first, or take another name."
        )
    return existing.info(), False
