"""/api/v1/collections/{name}/inspections: the findings and numbers of inspections, which jobs make."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import Path, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.inspections import KeptInspection, get_inspection, is_current, list_inspections, place_new

from ..access import READ
from ..answers import PartsResponse, bounded, encoded
from .router import BYTES, Here, Parts, Router
from .schemas import NAME_PATTERN, binary

LATEST = "latest"
NUMBERS = {"coordinates": "<f4", "clusters": "<i4", "outlier_scores": "<f4", "labels": "<i4", "predicted": "<i4"}
MAX_PLACED = 1000
_PATTERN = {"pattern": f"^({LATEST}|[0-9]{{1,8}})$"}
Number = Annotated[str, Path(description="number of an inspection, or `latest`", json_schema_extra=_PATTERN)]


class InspectionsResponse(BaseModel):
    inspections: list[int] = Field(description="their numbers, the newest first")


class InspectionResponse(BaseModel):
    number: int
    made: float = Field(description="seconds since 1970")
    seq: int = Field(description="number of the collection's last change that it saw")
    items: int
    fields_seq: int | None = Field(
        None, description="number of the change that wrote the findings into the metadata; null if none did"
    )
    current: bool = Field(description="whether no item was stored or deleted since; metadata may have changed")
    truncated: str = Field("", description="what is missing in findings that would be longer than an answer may be")
    findings: dict[str, Any] = Field(
        description="as in findings.json of `nnclr inspect`; 1000 outliers and suspect labels, and all that are flagged"
    )


class InspectedIds(BaseModel):
    ids: list[str]


class PlacedItem(BaseModel):
    id: str
    x: float
    y: float
    cluster: int = Field(description="that of most of its neighbors")


class PlacementsResponse(BaseModel):
    """Items that were added after the inspection."""

    items: list[PlacedItem]
    cursor: str | None = Field(description="cursor of the next page; null on the last page")


router = Router(prefix="/api/v1/collections/{name}/inspections", tags=["inspections"])
_MISSING = "collection_not_found inspection_not_found"


@router.on("GET", "", READ, "collection_not_found")
def list_all(name: str, here: Here) -> InspectionsResponse:
    """List the inspections that are kept, the newest first; the oldest are deleted."""
    found = list_inspections(here.workbench.store.records, here.workbench.collection(name))
    return InspectionsResponse(inspections=found)


@router.on("GET", "/{number}", READ, f"{_MISSING} answer_too_large", response_model=InspectionResponse)
def describe(name: str, number: Number, here: Here) -> Response:
    """Return the findings of an inspection."""
    kept = _kept(here, name, number)
    current = is_current(kept, here.workbench.collection(name))
    findings, truncated = bounded(kept.findings, here.settings.answer_bytes // 2)
    about = {**kept.about, "current": current, "truncated": truncated, "findings": orjson.Fragment(findings)}
    return PartsResponse([here.answers.open(0).count(encoded(about))])


@router.on("GET", "/{number}/ids", READ, f"{_MISSING} answer_too_large", response_model=InspectedIds)
def ids(name: str, number: Number, here: Here) -> Response:
    """Return the ids of the items, in the order of the numbers."""
    return PartsResponse([b'{"ids":', *here.answers.open(0).list(_kept(here, name, number).ids), b"}"])


@router.on("GET", "/{number}/placements", READ, _MISSING, response_model=PlacementsResponse)
def placements(
    name: str,
    number: Number,
    here: Here,
    cursor: Annotated[
        str | None,
        Query(description="cursor from the previous page", json_schema_extra={"pattern": NAME_PATTERN}),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PLACED)] = MAX_PLACED,
) -> Response:
    """Place items that were added since on the map and in the clusters, by their nearest inspected items."""
    placed = place_new(here.workbench.collection(name), _kept(here, name, number), cursor, limit)
    points = zip(placed.ids, placed.coordinates.tolist(), placed.clusters.tolist(), strict=True)
    items = [{"id": id, "x": x, "y": y, "cluster": cluster} for id, (x, y), cluster in points]
    return PartsResponse([encoded({"items": items, "cursor": placed.cursor})])


@router.on(
    *("GET", "/{number}/{values}", READ, _MISSING),
    content={BYTES: binary("little-endian numbers, item by item")},
)
def numbers(
    name: str,
    number: Number,
    values: Literal["coordinates", "clusters", "outlier_scores", "labels", "predicted"],
    here: Here,
) -> Response:
    """Return numbers of all items.

    They are 2 x float32 coordinates, float32 outlier scores, or int32 clusters, labels and predictions. Labels and
    predictions are places in the `classes` of the findings, -1 for items without a label. A prediction is
    that of a probe which has not seen the item.
    """
    array: np.ndarray = getattr(_kept(here, name, number), values)
    return Response(array.astype(NUMBERS[values]).tobytes(), media_type=BYTES)


def _kept(here: Parts, name: str, number: str) -> KeptInspection:
    collection = here.workbench.collection(name)
    if number != LATEST and not (number.isascii() and number.isdigit() and len(number) <= 8):
        raise InvalidRequest(f"An inspection has a number, or is `latest`; got {number!r:.40}.")
    return get_inspection(here.workbench.store.records, collection, None if number == LATEST else int(number))
