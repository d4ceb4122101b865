"""/api/v1/collections/{name}/labels: labels of a table for the items that its rows name.

POST /api/v1/collections/photos/labels?dry_run=true     Content-Type: text/csv
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from nnclr_hub.errors import (
    CollectionMoving,
    CollectionNotFound,
    DiskFull,
    InvalidRequest,
    RequestTooLarge,
    StoreReadOnly,
)
from nnclr_hub.table_rows import LabelTable, read_rows
from nnclr_hub.workbench.table_items import table_patches

from ..keys import WRITE
from ..problems import answers
from ..request_bodies import media_type, unsupported
from ..security.access import requires
from ..telemetry import measured
from .bodies import FILE, MetadataKey
from .dependencies import AppAnswers, AppWorkbench
from .items import note_changes
from .metadata import MAX_WRITTEN

CSV = "text/csv"
SHOWN = 10
Column = Annotated[str | None, Query(max_length=1000)]


class LabelsResponse(BaseModel):
    """What the rows of a table name, and which labels they give."""

    matched: int = Field(description="number of items that rows name")
    unmatched_rows: int = Field(description="number of rows that name no item")
    unmatched_items: int = Field(description="number of items without a row")
    first_unmatched: list[str] = Field(description=f"ids or paths of the first {SHOWN} rows that name no item")
    labels: dict[str, Any] = Field(description="the label of each item with one, by id; as the type of existing ones")
    updated: int = Field(description="number of items that were changed; 0 with dry_run")


async def _content(request: Request) -> bytes:
    if media_type(request) != CSV:
        raise unsupported(request, CSV)
    return await request.body()


router = APIRouter(prefix="/api/v1/collections/{name}/labels", tags=["items"])


@router.post(
    "",
    responses=answers(
        "unsupported_media_type",
        CollectionNotFound,
        CollectionMoving,
        InvalidRequest,
        RequestTooLarge,
        StoreReadOnly,
        DiskFull,
    ),
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
    file_name: Annotated[str, Query(description="for messages", min_length=1, max_length=200)] = "labels.csv",
    dry_run: Annotated[bool, Query(description="change nothing, and return what would be written")] = False,
) -> LabelsResponse:
    """Label the items that the rows of a table name, by id or path: all of them or, after an error, none.

    The table is CSV with a header, in UTF-8, UTF-16 or Windows-1252, separated by commas, semicolons or tabs. Paths
    match in every Unicode form, with slashes or backslashes. Rows that contradict each other are refused.
    """
    rows = read_rows(LabelTable(Path(file_name), None, path_column, label_column, content))
    if len(rows.rows) > MAX_WRITTEN:
        raise RequestTooLarge(
            f"{file_name} has {len(rows.rows):,} rows, and one request takes at most {MAX_WRITTEN:,}; split it."
        )
    with measured("store"):
        collection = bench.collection(name)
        limits.admit(request.state.budget, collection)
        found = table_patches(collection, rows, key)
        updated = 0 if dry_run else bench.update_each(name, found.patches)
    note_changes(bench, name, updated)
    return LabelsResponse(
        matched=found.matched,
        unmatched_rows=len(found.unmatched_rows),
        unmatched_items=found.unmatched_items,
        first_unmatched=list(found.unmatched_rows[:SHOWN]),
        labels={id: own[key] for id, own in found.values.items()},
        updated=updated,
    )
