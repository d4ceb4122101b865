"""Many items of a collection at once, by ids or by a filter: get, delete, change metadata; thumbnails; facets."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from nnclr_hub.errors import (
    AnswerTooLarge,
    CollectionNotFound,
    DiskFull,
    InvalidFilter,
    InvalidRequest,
    ItemNotFound,
    MetadataConflict,
    RequestTooLarge,
    StoreReadOnly,
)
from nnclr_hub.store import facets as bounds
from nnclr_hub.store.base import Collection
from nnclr_hub.store.spec import MAX_INDEXED
from nnclr_hub.table_rows import LabelTable, read_rows
from nnclr_hub.workbench.table_items import table_values

from ..answers import PartsResponse
from ..keys import READ, WRITE
from ..problems import MAX_CONFLICTS, answers
from ..request_bodies import json_of, media_type, unsupported
from ..security.access import requires
from ..telemetry import measured
from .bodies import FILE, FIRST_WRONG, Metadata, MetadataKey, Name, Strict, Where, binary, one_of
from .collections import INDEXABLE, CollectionResponse, response_of
from .dependencies import AppAnswers, AppWorkbench
from .items import ItemResponse, note_changes, response_of_item

MAX_READ = 1000  # items that are returned at once
MAX_IDS = 10_000
CSV = "text/csv"
MAX_COLUMNS = 64  # of a table, in one request
_COLUMNS = TypeAdapter(Annotated[list[str], Field(min_length=1, max_length=MAX_COLUMNS)])
SHOWN = 10  # rows without an item in an answer
Column = Annotated[str | None, Query(max_length=1000)]
MAX_THUMBNAILS = 64  # in one response, of at most 2 MB
MAX_WRITTEN = 100_000  # items of a write by a filter or a table, which keeps others waiting


class ItemsByIdRequest(Strict):
    ids: Annotated[list[Name], FIRST_WRONG] = Field(max_length=MAX_READ)
    with_vector: bool = True


class ItemsByIdResponse(BaseModel):
    """The items that exist, in the order of the ids."""

    items: list[ItemResponse]


class ThumbnailsRequest(Strict):
    ids: Annotated[list[Name], FIRST_WRONG] = Field(max_length=MAX_THUMBNAILS)


class Selection(Strict):
    """Items by exactly one of ids and where."""

    model_config = ConfigDict(json_schema_extra=one_of("ids", "where"))

    ids: Annotated[list[Name], FIRST_WRONG, Field(max_length=MAX_IDS)] | None = None
    where: Where | None = Field(None, description=f"may select at most {MAX_WRITTEN:,} items")


class DeletedResponse(BaseModel):
    deleted: int = Field(description="number of items that existed")


class MetadataRequest(Selection):
    """One merge patch for the items of ids or where, or one for each item."""

    model_config = ConfigDict(json_schema_extra=one_of("ids metadata", "where metadata", "each"))

    metadata: Metadata | None = Field(
        None, description="merge patch (RFC 7396): null removes a key, objects are merged, other values replace the old"
    )
    replace: bool = Field(
        False, description="replace all metadata, except `pixel_sha256` and `file_sha256`, instead of merging"
    )
    each: Annotated[dict[Name, Metadata], Field(max_length=MAX_IDS)] | None = Field(
        None, description="merge patches by id"
    )
    expected: Annotated[dict[Name, Metadata], Field(max_length=MAX_IDS)] | None = Field(
        None,
        description="with each: by id, the values that keys of the item must have now, null for a missing key; if one "
        "differs, nothing is changed, and `errors` of the 409 has the id and the present values of up to "
        f"{MAX_CONFLICTS:,} items",
    )
    by_path: bool = Field(
        False,
        description="with each: its keys are those of filters and contain no objects; camera.model is written to that "
        "key where an item has it, or else to `model` in `camera`; null removes it",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.each is None:
            if self.metadata is None or self.expected is not None or self.by_path:
                raise ValueError("give metadata with ids or where, or each, which expected and by_path belong to")
        elif (self.ids, self.where, self.metadata) != (None, None, None) or self.replace:
            raise ValueError("each has the ids and the patches; give neither ids, where, metadata nor replace with it")
        return self


class UpdatedResponse(BaseModel):
    updated: int = Field(description="number of items that were found")


class LabelsResponse(BaseModel):
    """What the rows of a table name, and which values they give."""

    matched: int = Field(description="number of items that rows name")
    unmatched_rows: int = Field(description="number of rows that name no item")
    unmatched_items: int = Field(description="number of items without a row")
    first_unmatched: list[str] = Field(description=f"ids or paths of the first {SHOWN} rows that name no item")
    values: dict[str, dict[str, Any]] = Field(
        description="by id, the value of each metadata key; as the type of existing ones; without empty cells"
    )
    other_columns: list[str] = Field(description="columns of the table that were not read; see `columns`")
    updated: int = Field(description="number of items that were changed; 0 with dry_run")


class FacetsRequest(Strict):
    keys: Annotated[list[MetadataKey], FIRST_WRONG] = Field(min_length=1, max_length=bounds.MAX_KEYS)
    where: Where | None = None
    limit: int = Field(10, ge=1, le=bounds.MAX_VALUES, description="values per key, the most frequent first")
    bins: int = Field(10, ge=1, le=bounds.MAX_BINS, description="of the histogram of numbers")


class ValueCount(BaseModel):
    value: str | float | bool | None
    count: int


class HistogramResponse(BaseModel):
    """Counts of numbers between ascending edges."""

    edges: list[float]
    counts: list[int]


class FacetResponse(BaseModel):
    key: str
    items: int = Field(description="number of items that have the key")
    distinct: int = Field(description="number of distinct values")
    values: list[ValueCount]
    histogram: HistogramResponse | None


class FacetsResponse(BaseModel):
    facets: list[FacetResponse]


class IndexedRequest(Strict):
    keys: Annotated[list[Annotated[str, Field(json_schema_extra=INDEXABLE)]], FIRST_WRONG] = Field(
        max_length=MAX_INDEXED
    )


async def _content(request: Request) -> bytes:
    if media_type(request) != CSV:
        raise unsupported(request, CSV)
    return await request.body()


router = APIRouter(prefix="/api/v1/collections/{name}", tags=["items"])
_REFUSALS = (CollectionNotFound, InvalidFilter, RequestTooLarge, StoreReadOnly, DiskFull)


@router.post(
    "/lookup",
    response_model=ItemsByIdResponse,
    responses=answers("unsupported_media_type", CollectionNotFound, AnswerTooLarge),
)
@requires(READ)
def get_items(
    name: str,
    request: Request,
    body: Annotated[ItemsByIdRequest, json_of(ItemsByIdRequest)],
    limits: AppAnswers,
    bench: AppWorkbench,
) -> Response:
    """Return many items by their ids; ids that do not exist are left out."""
    with measured("store"):
        collection = bench.collection(name)
        answer = limits.open(request.state.budget)
        found = collection.get(body.ids)
    items = answer.list(response_of_item(item, body.with_vector) for item in found)
    return PartsResponse([b'{"items":', *items, b"}"])


@router.post(
    "/thumbnails",
    response_class=Response,
    responses={
        **answers("unsupported_media_type", CollectionNotFound),
        200: {
            "content": {
                "application/octet-stream": binary(
                    "for each id, in order: the number of bytes of its JPEG as little-endian uint32, then these bytes; "
                    "0 without a thumbnail"
                )
            }
        },
    },
)
@requires(READ)
def get_thumbnails(
    name: str, body: Annotated[ThumbnailsRequest, json_of(ThumbnailsRequest)], bench: AppWorkbench
) -> Response:
    """Return the thumbnails of many items, which costs a fraction of one request for each."""
    parts: list[bytes] = []
    with measured("store"):
        collection = bench.collection(name)
        for id in body.ids:
            jpeg = None
            with suppress(ItemNotFound):
                jpeg = collection.thumbnail(id)
            parts += [struct.pack("<I", len(jpeg or b"")), jpeg or b""]
    return Response(b"".join(parts), media_type="application/octet-stream")


@router.post("/delete", responses=answers("unsupported_media_type", *_REFUSALS))
@requires(WRITE)
def delete_items(
    name: str, request: Request, body: Annotated[Selection, json_of(Selection)], limits: AppAnswers, bench: AppWorkbench
) -> DeletedResponse:
    """Delete items by ids, or those that pass a filter: all of them or, after an error, none."""
    _admit(limits, request, bench.collection(name), body)
    deleted = bench.delete(name, body.ids, where=body.where)
    note_changes(bench, name, deleted)
    return DeletedResponse(deleted=deleted)


@router.patch("/items", responses=answers("unsupported_media_type", MetadataConflict, *_REFUSALS))
@requires(WRITE)
def update_metadata(
    name: str,
    request: Request,
    body: Annotated[MetadataRequest, json_of(MetadataRequest)],
    limits: AppAnswers,
    bench: AppWorkbench,
) -> UpdatedResponse:
    """Change the metadata of items by ids, of those that pass a filter, or of each by its own patch.

    All items are changed or, after an error, none.
    """
    with measured("store"):
        _admit(limits, request, bench.collection(name), body)
        if body.each is not None:
            updated = bench.update_each(name, body.each, expected=body.expected, by_path=body.by_path)
        else:
            updated = bench.update_metadata(
                name, body.metadata or {}, ids=body.ids, where=body.where, replace=body.replace
            )
    note_changes(bench, name, updated)
    return UpdatedResponse(updated=updated)


def _columns(text: str | None) -> list[str] | None:
    try:
        return None if text is None else _COLUMNS.validate_json(text)
    except ValidationError as error:
        raise InvalidRequest(
            f"columns must be a JSON list of at most {MAX_COLUMNS} texts, got {text!r:.80}."
        ) from error


@router.post(
    "/labels",
    responses=answers("unsupported_media_type", *_REFUSALS),
    openapi_extra={"requestBody": {"required": True, "content": {CSV: {"schema": FILE}}}},
)
@requires(WRITE)
def label_items(
    name: str,
    request: Request,
    content: Annotated[bytes, Depends(_content)],
    limits: AppAnswers,
    bench: AppWorkbench,
    key: Annotated[MetadataKey, Query(description="metadata key of the labels, or a path such as camera.model")] = (
        "label"
    ),
    path_column: Annotated[Column, Query(description="column of ids or paths, if not `id` or `path`")] = None,
    label_column: Annotated[Column, Query(description="column of labels, if not `label` or `labels`")] = None,
    columns: Annotated[
        str | None,
        Query(
            description=f"JSON list of up to {MAX_COLUMNS} columns to read instead of labels: COLUMN or KEY=COLUMN",
            max_length=100_000,
        ),
    ] = None,
    file_name: Annotated[str, Query(description="for messages", min_length=1, max_length=200)] = "labels.csv",
    dry_run: Annotated[bool, Query(description="change nothing, and return what would be written")] = False,
) -> LabelsResponse:
    """Label the items that the rows of a table name, by id or path: all of them or, after an error, none.

    The table is CSV with a header, in UTF-8, UTF-16 or Windows-1252, separated by commas, semicolons or tabs. Paths
    match in every Unicode form, with slashes or backslashes. Rows that contradict each other are refused.
    """
    rows = read_rows(LabelTable(Path(file_name), None, path_column, label_column, content), _columns(columns))
    if len(rows.rows) > MAX_WRITTEN:
        raise RequestTooLarge(
            f"{file_name} has {len(rows.rows):,} rows, and one request takes at most {MAX_WRITTEN:,}; split it."
        )
    with measured("store"):
        collection = bench.collection(name)
        limits.open(request.state.budget)
        found = table_values(collection, rows, key)
        updated = 0 if dry_run else bench.update_each(name, found.values, by_path=True)
    note_changes(bench, name, updated)
    return LabelsResponse(
        matched=found.matched,
        unmatched_rows=len(found.unmatched_rows),
        unmatched_items=found.unmatched_items,
        first_unmatched=list(found.unmatched_rows[:SHOWN]),
        values=found.values,
        other_columns=list(rows.others),
        updated=updated,
    )


@router.post(
    "/facets",
    response_model=FacetsResponse,
    responses=answers("unsupported_media_type", CollectionNotFound, InvalidFilter, AnswerTooLarge),
)
@requires(READ)
def facets(
    name: str,
    request: Request,
    body: Annotated[FacetsRequest, json_of(FacetsRequest)],
    limits: AppAnswers,
    bench: AppWorkbench,
) -> Response:
    """Count the values of metadata keys among all items, or those that pass a filter."""
    with measured("store"):
        collection = bench.collection(name)
        answer = limits.open(request.state.budget, len(body.keys))
        found = collection.facets(body.keys, body.where, body.limit, bins=body.bins)
    listed = answer.list(
        {
            "key": key,
            "items": one.items,
            "distinct": one.distinct,
            "values": [{"value": value, "count": count} for value, count in one.values],
            "histogram": None if one.histogram is None else vars(one.histogram),
        }
        for key, one in found.items()
    )
    return PartsResponse([b'{"facets":', *listed, b"}"])


@router.put(
    "/indexed",
    responses=answers("unsupported_media_type", CollectionNotFound, InvalidFilter, StoreReadOnly, DiskFull),
)
@requires(WRITE)
def change_indexed(
    name: str, body: Annotated[IndexedRequest, json_of(IndexedRequest)], bench: AppWorkbench
) -> CollectionResponse:
    """Index these metadata keys and no others, in the background; filters work with every key at any time."""
    with measured("store"):
        collection = bench.collection(name)
        collection.change_indexed(body.keys)
        return response_of(collection.info())


def _admit(limits: AppAnswers, request: Request, collection: Collection, chosen: Selection) -> None:
    """Take permits, and refuse a filter that selects too many items."""
    limits.open(request.state.budget)
    if chosen.where is not None and (count := collection.count(chosen.where)) > MAX_WRITTEN:
        raise RequestTooLarge(
            f"The filter selects {count:,} items, and one request changes at most {MAX_WRITTEN:,}; narrow it."
        )
