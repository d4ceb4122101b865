"""/api/v1/collections/{name}/inspections: start inspections, and read their findings and numbers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Path, Query
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from nnclr_hub.errors import CollectionNotFound, InspectionNotFound, InvalidFilter, InvalidRequest
from nnclr_hub.workbench.inspections import get_inspection, is_current, list_inspections, place_new

from ..keys import READ
from ..request_bodies import json_of
from .bodies import NAME_PATTERN, binary
from .dependencies import Here, Router
from .jobs import InspectionBody, JobResponse, Submit, starts_job

LATEST = "latest"
NUMBERS = {"coordinates": "<f4", "clusters": "<i4", "outlier_scores": "<f4", "labels": "<i4", "predicted": "<i4"}
MAX_PLACED = 1000
Number = Annotated[
    str,
    Path(
        description="number of an inspection, or `latest`", json_schema_extra={"pattern": f"^({LATEST}|[0-9]{{1,8}})$"}
    ),
]


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
_MISSING = (CollectionNotFound, InspectionNotFound)


@starts_job("", CollectionNotFound, InvalidFilter, router=router)
def start_inspection(
    name: str, body: Annotated[Any, json_of(InspectionBody)], here: Here, submit: Submit
) -> JobResponse:
    """Inspect the collection: a map, clusters, duplicates, outliers, leaks, suspect labels, what to label next."""
    here.workbench.collection(name)
    return submit("inspection", {"collection": name, **body.model_dump()})


@router.on("GET", "", READ, CollectionNotFound)
def list_all(name: str, here: Here) -> InspectionsResponse:
    """List the inspections that are kept, the newest first; the oldest are deleted."""
    return InspectionsResponse(
        inspections=list_inspections(here.workbench.store.records, here.workbench.collection(name))
    )


@router.on("GET", "/{number}", READ, *_MISSING, response_model=InspectionResponse)
def describe(name: str, number: Number, here: Here) -> JSONResponse:
    """Return the findings of an inspection."""
    collection = here.workbench.collection(name)
    kept = get_inspection(here.workbench.store.records, collection, _read(number))
    return JSONResponse({**kept.about, "current": is_current(kept, collection), "findings": kept.findings})


@router.on("GET", "/{number}/ids", READ, *_MISSING, response_model=InspectedIds)
def ids(name: str, number: Number, here: Here) -> JSONResponse:
    """Return the ids of the items, in the order of the numbers."""
    kept = get_inspection(here.workbench.store.records, here.workbench.collection(name), _read(number))
    return JSONResponse({"ids": kept.ids})


@router.on("GET", "/{number}/placements", READ, *_MISSING, response_model=PlacementsResponse)
def placements(
    name: str,
    number: Number,
    here: Here,
    cursor: Annotated[
        str | None,
        Query(description="cursor from the previous page", json_schema_extra={"pattern": NAME_PATTERN}),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PLACED)] = MAX_PLACED,
) -> JSONResponse:
    """Place items that were added since on the map and in the clusters, by their nearest inspected items."""
    collection = here.workbench.collection(name)
    kept = get_inspection(here.workbench.store.records, collection, _read(number))
    placed = place_new(collection, kept, cursor, limit)
    points = zip(placed.ids, placed.coordinates.tolist(), placed.clusters.tolist(), strict=True)
    items = [{"id": id, "x": x, "y": y, "cluster": cluster} for id, (x, y), cluster in points]
    return JSONResponse({"items": items, "cursor": placed.cursor})


@router.on(
    "GET",
    "/{number}/{values}",
    READ,
    *_MISSING,
    content={"application/octet-stream": binary("little-endian numbers, item by item")},
    response_class=Response,
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
    kept = get_inspection(here.workbench.store.records, here.workbench.collection(name), _read(number))
    array: np.ndarray = getattr(kept, values)
    return Response(array.astype(NUMBERS[values]).tobytes(), media_type="application/octet-stream")


def _read(number: str) -> int | None:
    if number == LATEST:
        return None
    if not number.isascii() or not number.isdigit() or len(number) > 8:
        raise InvalidRequest(f"An inspection has a number, or is `latest`; got {number!r:.40}.")
    return int(number)
