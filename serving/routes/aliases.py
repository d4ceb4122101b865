"""/api/v1/aliases: further names of collections."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter

from nnclr_hub.errors import CollectionExists, CollectionNotFound, DiskFull, InvalidRequest, StoreReadOnly
from nnclr_hub.store.succession import SUFFIX, WAS

from ..keys import READ, WRITE
from ..problems import answers
from ..schemas import AliasesResponse, AliasRequest, AliasResponse
from ..security.access import requires
from ..telemetry import measured
from ..uploads import json_of
from .described import json_body
from .state import AppMetrics, AppWorkbench

router = APIRouter(prefix="/api/v1/aliases", tags=["aliases"])


@router.get("", responses=answers())
@requires(READ)
def list_aliases(bench: AppWorkbench, metrics: AppMetrics) -> AliasesResponse:
    """All aliases, and the collections that they mean."""
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
    """Makes an alias mean a collection, whatever it meant before, in one step for whoever asks."""
    _refuse_ours(alias)
    with measured(metrics, "store"), bench.gate.alone():
        bench.store.alias(alias, body.collection)
        return AliasResponse(alias=alias, collection=bench.collection(alias).name)


@router.delete("/{alias}", status_code=204, responses=answers(CollectionNotFound, StoreReadOnly, DiskFull))
@requires(WRITE)
def forget(alias: str, bench: AppWorkbench, metrics: AppMetrics) -> None:
    """Forgets an alias; the collection stays."""
    _refuse_ours(alias)
    with measured(metrics, "store"), bench.gate.alone():
        bench.store.unalias(alias)


def _refuse_ours(alias: str) -> None:
    if alias.endswith((SUFFIX, WAS)):
        raise InvalidRequest(
            f"The alias {alias!r:.150} belongs to a collection that is being re-embedded: take a name that ends in "
            f"neither {SUFFIX} nor {WAS}."
        )
