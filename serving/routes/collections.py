"""/api/v1/collections: make, list, describe, drop, snapshot, verify."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from nnclr_hub.errors import CollectionExists, CollectionNotFound
from nnclr_hub.store.base import CollectionInfo, CollectionSpec
from nnclr_hub.workbench import Workbench

from ..models import Engines, public_name
from ..schemas import CollectionRequest, CollectionResponse
from .state import AppEngines, AppWorkbench, served_engine

router = APIRouter(prefix="/api/v1/collections", tags=["collections"])


def _response(info: CollectionInfo) -> CollectionResponse:
    spec = asdict(info.spec)
    about = {name: getattr(info, name) for name in ("name", "count", "durable_seq", "indexed_seq", "state")}
    return CollectionResponse(**spec | {"model": public_name(info.spec.model)}, **about, index_in_use=info.index)


@router.get("")
def list_collections(bench: AppWorkbench) -> dict[str, list[CollectionResponse]]:
    """All collections by name."""
    return {"collections": [_response(info) for info in bench.store.list()]}


@router.put("/{name}")
async def create(
    name: str, body: CollectionRequest, response: Response, bench: AppWorkbench, engines: AppEngines
) -> CollectionResponse:
    """Makes a collection (201); again with the same specification changes nothing (200)."""
    info, made = await run_in_threadpool(_create, bench, engines, name, body)
    response.status_code = 201 if made else 200
    return _response(info)


def _create(bench: Workbench, engines: Engines, name: str, body: CollectionRequest) -> tuple[CollectionInfo, bool]:
    if body.dim is not None and body.model is None:
        spec = CollectionSpec(body.dim, body.metric)
    else:
        engine = served_engine(engines, body.model)
        spec = CollectionSpec(body.dim or engine.embed_dim, body.metric, engine.fingerprint, engine.name)
    spec = replace(spec, indexed=tuple(body.indexed), index=body.index, precision=body.precision)
    try:
        existing = bench.collection(name)
    except CollectionNotFound:
        return bench.store.create(name, spec).info(), True
    if existing.spec != spec:
        raise CollectionExists(
            f"There is a collection {name!r} already, with another specification: drop it first, or take another name."
        )
    return existing.info(), False


@router.get("/{name}")
def describe(name: str, bench: AppWorkbench) -> CollectionResponse:
    """One collection."""
    return _response(bench.collection(name).info())


@router.delete("/{name}", status_code=204)
def drop(name: str, bench: AppWorkbench) -> None:
    """Deletes a collection with everything in it."""
    bench.drop(name)


@router.post("/{name}/snapshot", status_code=204)
def snapshot(name: str, bench: AppWorkbench) -> None:
    """Writes the index to disk now."""
    bench.collection(name).snapshot()


@router.post("/{name}/verify")
def verify(name: str, bench: AppWorkbench) -> dict[str, Any]:
    """Reads every vector back, and compares the index with an exhaustive search on a sample."""
    report = bench.collection(name).verify()
    return {"ok": report.ok, **asdict(report)}
