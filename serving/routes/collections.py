"""/api/v1/collections: create, list, describe, drop, count, snapshot and verify collections; /api/v1/aliases."""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field, TypeAdapter

from nnclr_hub.errors import (
    CollectionExists,
    CollectionNotFound,
    DiskFull,
    InvalidFilter,
    ModelError,
    StoreReadOnly,
    UnknownModel,
)
from nnclr_hub.hub.sources import split_reading
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.index_kinds import AUTO
from nnclr_hub.store.reports import CollectionInfo, VerifyReport
from nnclr_hub.store.spec import MAX_DIM, MAX_INDEXED, Compared, IndexName
from nnclr_hub.store.where import check_key
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import public_name, without_paths

from ..keys import READ, WRITE
from ..limits import in_thread_while_connected
from ..models import Engines
from ..problems import answers
from ..request_bodies import json_of
from ..security.access import requires
from ..telemetry import measured
from .bodies import FIRST_WRONG, INTEGRAL, CollectionName, Strict
from .dependencies import AppAnswers, AppEngines, AppLongThreads, AppWorkbench, source_with_reading
from .listings import WhereText, read_where
from .where_schema import KEY

INDEXABLE = {name: value for name, value in KEY.items() if name != "not"}  # a key that no answer shows may be indexed


class CollectionRequest(Strict):
    """A new collection. Without dim, it is bound to the vectors of `model`."""

    model: str | None = None
    dim: Annotated[int, Field(ge=1, le=MAX_DIM), INTEGRAL] | None = None
    metric: Literal["cosine", "dot", "l2"] = "cosine"
    indexed: Annotated[list[Annotated[str, Field(json_schema_extra=INDEXABLE)]], FIRST_WRONG] = Field(
        default=["label"], description="metadata keys to index for fast filters", max_length=MAX_INDEXED
    )
    index: IndexName = "auto"
    precision: Literal["f32", "f16"] = "f32"
    vectors: Compared = Field(
        "auto",
        description="what searches compare: stored vectors, or these centered, half whitened or whitened; auto: "
        "half_whiten if they are of a model and the store can do it",
    )


class CollectionResponse(BaseModel):
    name: str
    dim: int
    metric: str
    model: str
    fingerprint: str
    indexed: list[str]
    index: str
    precision: str
    vectors: str
    count: int
    durable_seq: int
    indexed_seq: int
    vectors_seq: int = Field(
        description="number of the last change that stored or deleted items; later ones edited metadata only"
    )
    state: str
    index_in_use: str
    recall_estimate: float | None = Field(
        None, description="share of the ten nearest items that searches find, by a sample; null if unknown"
    )


class CollectionsResponse(BaseModel):
    collections: list[CollectionResponse]


class VerifyResponse(BaseModel):
    """The result of a verification; ok if the lists are empty and the recall is at least 0.9."""

    ok: bool
    items: int
    damaged: list[str]
    disagreements: list[str]
    missing: list[str]
    recall: float
    parts: list[str] = Field([], description="what is damaged, for each id of `damaged`")


class CountResponse(BaseModel):
    count: int


class AliasRequest(Strict):
    collection: CollectionName


class AliasResponse(BaseModel):
    alias: str
    collection: str


class AliasesResponse(BaseModel):
    aliases: list[AliasResponse]


router = APIRouter(prefix="/api/v1/collections", tags=["collections"])
_WRITE = (StoreReadOnly, DiskFull)


@router.get("", responses=answers())
@requires(READ)
def list_collections(bench: AppWorkbench) -> CollectionsResponse:
    """List all collections by name."""
    with measured("store"):
        return CollectionsResponse(collections=[response_of(info) for info in bench.store.list()])


@router.put(
    "/{name}",
    responses={
        **answers("unsupported_media_type", CollectionExists, UnknownModel, ModelError, *_WRITE),
        201: {"model": CollectionResponse, "description": "The collection was created."},
    },
)
@requires(WRITE)
async def create(
    name: str,
    body: Annotated[CollectionRequest, json_of(CollectionRequest)],
    response: Response,
    bench: AppWorkbench,
    engines: AppEngines,
) -> CollectionResponse:
    """Create a collection (201). If it exists with the same specification, `indexed` aside, nothing changes (200)."""
    info, created = await run_in_threadpool(_create_of, engines, bench, name, body)
    response.status_code = 201 if created else 200
    return response_of(info)


@router.get("/{name}", responses=answers(CollectionNotFound))
@requires(READ)
def describe(name: str, bench: AppWorkbench) -> CollectionResponse:
    """Describe a collection, by its name or an alias."""
    with measured("store"):
        return response_of(bench.collection(name).info())


@router.delete("/{name}", status_code=204, responses=answers(CollectionNotFound, *_WRITE))
@requires(WRITE)
def drop(name: str, bench: AppWorkbench) -> None:
    """Delete a collection with all its items, and the aliases that point to it."""
    with measured("store"):
        bench.drop(name)


@router.get("/{name}/count", responses=answers(CollectionNotFound, InvalidFilter))
@requires(READ)
def count(
    name: str, request: Request, limits: AppAnswers, bench: AppWorkbench, where: WhereText = None
) -> CountResponse:
    """Count the items, or the items that match a filter."""
    condition = read_where(where)
    with measured("store"):
        collection = bench.collection(name)
        limits.open(request.state.budget)
        return CountResponse(count=collection.count(condition))


@router.post("/{name}/snapshot", status_code=204, responses=answers(CollectionNotFound, *_WRITE))
@requires(WRITE)
async def snapshot(name: str, bench: AppWorkbench, threads: AppLongThreads) -> None:
    """Write the index to disk now, so that the next start is fast."""
    with measured("store"):
        await to_thread.run_sync(lambda: bench.collection(name).snapshot(), limiter=threads)


@router.post("/{name}/verify", responses=answers(CollectionNotFound))
@requires(WRITE)
async def verify(name: str, request: Request, bench: AppWorkbench, threads: AppLongThreads) -> VerifyResponse:
    """Read every vector back, and compare the index with an exhaustive search on a sample.

    For a large collection, start a job of kind `verify` instead: this request has the deadline of every request.
    """
    with measured("store"):
        work = partial(_verified, bench, name)
        report = await in_thread_while_connected(request, work, threads)
    return VerifyResponse(ok=report.ok, **_JSON_REPORT.dump_python(report, mode="json"))


_JSON_REPORT: TypeAdapter[Any] = TypeAdapter(Any)


def _verified(bench: Workbench, name: str) -> VerifyReport:
    return bench.collection(name).verify(lambda done, total: check_cancelled())


def response_of(info: CollectionInfo) -> CollectionResponse:
    """Return the JSON of a collection's state."""
    spec = asdict(info.spec) | {"model": public_name(info.spec.model) if info.spec.model else ""}
    about = {name: getattr(info, name) for name in ("name", "count", "durable_seq", "indexed_seq", "vectors_seq")}
    return CollectionResponse(
        **spec, **about, state=without_paths(info.state), index_in_use=info.index, recall_estimate=info.recall_estimate
    )


_counting = threading.Lock()  # between the count of readings and the collection that adds one


def _create_of(engines: Engines, bench: Workbench, name: str, body: CollectionRequest) -> tuple[CollectionInfo, bool]:
    with _counting if split_reading(body.model or "")[1] else nullcontext():
        spec = _spec(engines, bench, body)
        with measured("store"):
            return _create(bench, name, spec)


def _spec(engines: Engines, bench: Workbench, body: CollectionRequest) -> CollectionSpec:
    """Return the specification: of a model, or of vectors of unknown origin if only `dim` is given."""
    if body.dim is not None and body.model is None:
        spec = CollectionSpec(body.dim, body.metric)
    else:
        engine = engines.get(source_with_reading(engines, bench, body.model))
        spec = CollectionSpec(body.dim or engine.embed_dim, body.metric, engine.fingerprint, engine.name)
    indexed = tuple(map(check_key, body.indexed))
    return replace(spec, indexed=indexed, index=body.index, precision=body.precision, vectors=body.vectors)


def _create(bench: Workbench, name: str, spec: CollectionSpec) -> tuple[CollectionInfo, bool]:
    try:
        existing = bench.collection(name)
    except CollectionNotFound:
        with suppress(CollectionExists):
            return bench.store.create(name, spec).info(), True
        existing = bench.collection(name)  # another request created it just now
    # which keys are indexed can change at any time, and "auto" is content with what an existing collection compares
    vectors = spec.vectors if spec.vectors == AUTO else existing.spec.vectors
    there = vars(replace(existing.spec, indexed=spec.indexed, vectors=vectors))
    if other := [field for field, value in vars(spec).items() if value != there[field]]:
        raise CollectionExists(
            f"Collection {name!r} exists with another {' and another '.join(other)}; choose another name."
        )
    return existing.info(), False


# ---- aliases

aliases = APIRouter(prefix="/api/v1/aliases", tags=["aliases"])


@aliases.get("", responses=answers())
@requires(READ)
def list_aliases(bench: AppWorkbench) -> AliasesResponse:
    """List all aliases with their collections."""
    with measured("store"):
        found = bench.store.aliases()
    return AliasesResponse(aliases=[AliasResponse(alias=alias, collection=name) for alias, name in found.items()])


@aliases.put(
    "/{alias}",
    responses=answers("unsupported_media_type", CollectionNotFound, CollectionExists, StoreReadOnly, DiskFull),
    operation_id="aliases-point",  # the published id; generated clients are named after it
)
@requires(WRITE)
def set_alias(alias: str, body: Annotated[AliasRequest, json_of(AliasRequest)], bench: AppWorkbench) -> AliasResponse:
    """Point an alias to a collection. If it pointed to another one, it switches atomically."""
    with measured("store"):
        bench.store.alias(alias, body.collection)
        return AliasResponse(alias=alias, collection=bench.collection(alias).name)


@aliases.delete(
    "/{alias}",
    status_code=204,
    responses=answers(CollectionNotFound, StoreReadOnly, DiskFull),
    operation_id="aliases-forget",  # published, too
)
@requires(WRITE)
def delete_alias(alias: str, bench: AppWorkbench) -> None:
    """Delete an alias; its collection stays."""
    with measured("store"):
        bench.store.unalias(alias)
