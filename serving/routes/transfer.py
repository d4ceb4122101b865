"""Routes that rename a collection, and that copy or move its items to another one."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from nnclr_hub.errors import CollectionExists, CollectionNotFound, FingerprintMismatch
from nnclr_hub.workbench.inspections import rename_inspections

from ..keys import WRITE
from ..request_bodies import json_of
from ..telemetry import measured
from .bodies import FIRST_WRONG, CollectionName, Name, Strict
from .collections import FAILED_WRITE, TYPE, CollectionResponse, response_of
from .dependencies import Here, Router
from .items import note_changes

MAX_COPIED = 1000  # items with their vectors and thumbnails, in memory


class RenameRequest(Strict):
    name: CollectionName


class CopyRequest(Strict):
    """Items to copy with their vectors, metadata and thumbnails."""

    to: CollectionName
    ids: Annotated[list[Name], FIRST_WRONG] = Field(max_length=MAX_COPIED)
    move: bool = Field(False, description="delete the items from this collection afterwards")


class CopyResponse(BaseModel):
    copied: int = Field(description="number of items that existed")


router = Router(prefix="/api/v1/collections", tags=["collections"])


@router.on("PATCH", "/{name}", WRITE, TYPE, CollectionExists, CollectionNotFound, *FAILED_WRITE)
def rename(name: str, body: Annotated[RenameRequest, json_of(RenameRequest)], here: Here) -> CollectionResponse:
    """Rename a collection. Its aliases and inspections follow."""
    bench = here.workbench
    with measured("store"):
        old = bench.collection(name).name
        bench.store.rename(old, body.name)
        renamed = bench.collection(body.name)
        rename_inspections(bench.store.records, old, renamed.name)
        return response_of(renamed.info())


@router.on("POST", "/{name}/copy", WRITE, TYPE, FingerprintMismatch, CollectionNotFound, *FAILED_WRITE)
def copy_items(name: str, body: Annotated[CopyRequest, json_of(CopyRequest)], here: Here) -> CopyResponse:
    """Copy or move items to another collection of the same encoder. Items with the same ids are replaced there."""
    bench = here.workbench
    with measured("store"):
        source, target = bench.collection(name), bench.collection(body.to)
        items = source.get(body.ids)
        if items and target.name != source.name:
            bench.upsert(target.name, items, fingerprint=source.info().spec.fingerprint)
            note_changes(bench, target.name, len(items))
            if body.move:
                note_changes(bench, source.name, bench.delete(source.name, [item.id for item in items]))
    return CopyResponse(copied=len(items))
