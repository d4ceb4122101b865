"""/api/v1/aliases: alternative names of collections."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter

from nnclr_hub.errors import CollectionExists, CollectionNotFound, DiskFull, InvalidRequest, StoreReadOnly
from nnclr_hub.store.replacement import NEXT, WAS

from ..keys import READ, WRITE
from ..problems import answers
from ..request_bodies import json_of
from ..schemas.collections import AliasesResponse, AliasRequest, AliasResponse
from ..security.access import requires
from ..telemetry import measured
from .body_schemas import json_body
from .dependencies import AppMetrics, AppWorkbench

router = APIRouter(prefix="/api/v1/aliases", tags=["aliases"])


@router.get("", responses=answers())
@requires(READ)
def list_aliases(bench: AppWorkbench, metrics: AppMetrics) -> AliasesResponse:
    """List all aliases with their collections."""
    with measured(metrics, "store"):
        aliases = bench.store.aliases()
    return AliasesResponse(aliases=[AliasResponse(alias=alias, collection=name) for alias, name in aliases.items()])


@router.put(
    "/{alias}",
    responses=answers("unsupported_media_type", CollectionNotFound, CollectionExists, StoreReadOnly, DiskFull),
    openapi_extra=json_body(AliasRequest),
)
@requires(WRITE)
def point(
    alias: str, body: Annotated[AliasRequest, json_of(AliasRequest)], bench: AppWorkbench, metrics: AppMetrics
) -> AliasResponse:
    """Point an alias to a collection. If it pointed to another one, it switches atomically."""
    _refuse_reserved(alias)
    with measured(metrics, "store"), bench.write_lock.alone():
        bench.store.alias(alias, body.collection)
        return AliasResponse(alias=alias, collection=bench.collection(alias).name)


@router.delete("/{alias}", status_code=204, responses=answers(CollectionNotFound, StoreReadOnly, DiskFull))
@requires(WRITE)
def forget(alias: str, bench: AppWorkbench, metrics: AppMetrics) -> None:
    """Delete an alias; its collection stays."""
    _refuse_reserved(alias)
    with measured(metrics, "store"), bench.write_lock.alone():
        bench.store.unalias(alias)


def _refuse_reserved(alias: str) -> None:
    if alias.endswith((NEXT, WAS)):
        raise InvalidRequest(
            f"The alias {alias!r:.150} is reserved for re-embedding; choose a name that ends in neither {NEXT} nor "
            f"{WAS}."
        )
