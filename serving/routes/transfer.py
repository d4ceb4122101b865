"""Routes that rename a collection, and that copy or move its items to another one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from nnclr_hub.errors import CollectionExists, CollectionNotFound, DiskFull, FingerprintMismatch, StoreReadOnly
from nnclr_hub.workbench.inspections import rename_inspections

from ..keys import WRITE
from ..problems import answers
from ..request_bodies import json_of
from ..security.access import requires
from ..telemetry import measured
from .bodies import FIRST_WRONG, CollectionName, Name, Strict
from .collections import CollectionResponse, response_of
from .dependencies import AppWorkbench
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


router = APIRouter(prefix="/api/v1/collections", tags=["collections"])
_WRITE = (CollectionNotFound, StoreReadOnly, DiskFull)


@router.patch("/{name}", responses=answers("unsupported_media_type", CollectionExists, *_WRITE))
@requires(WRITE)
def rename(
    name: str, body: Annotated[RenameRequest, json_of(RenameRequest)], bench: AppWorkbench
) -> CollectionResponse:
    """Rename a collection. Its aliases and inspections follow."""
    with measured("store"):
        old = bench.collection(name).name
        bench.store.rename(old, body.name)
        renamed = bench.collection(body.name)
        rename_inspections(bench.store.records, old, renamed.name)
        return response_of(renamed.info())


@router.post("/{name}/copy", responses=answers("unsupported_media_type", FingerprintMismatch, *_WRITE))
@requires(WRITE)
def copy_items(name: str, body: Annotated[CopyRequest, json_of(CopyRequest)], bench: AppWorkbench) -> CopyResponse:
    """Copy or move items to another collection of the same encoder. Items with the same ids are replaced there."""
    with measured("store"):
        source = bench.collection(name)
        target = bench.collection(body.to)
        items = source.get(body.ids)
        if items and target.name != source.name:
            bench.upsert(target.name, items, fingerprint=source.info().spec.fingerprint)
            note_changes(bench, target.name, len(items))
            if body.move:
                note_changes(bench, source.name, bench.delete(source.name, [item.id for item in items]))
    return CopyResponse(copied=len(items))
