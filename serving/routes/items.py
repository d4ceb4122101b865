"""/api/v1/collections/{name}/items: add, list, get, change and delete items, one or many; their images; facets."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter, ValidationError, model_validator

from nnclr_hub.errors import ImageError, InvalidRequest, ItemNotFound, RequestTooLarge
from nnclr_hub.store import facets as bounds
from nnclr_hub.store.base import Item
from nnclr_hub.store.checks import MAX_LIMIT
from nnclr_hub.store.spec import MAX_INDEXED
from nnclr_hub.table_rows import LabelTable, read_rows
from nnclr_hub.workbench import AddRequest, NewImage
from nnclr_hub.workbench.metadata import table_values
from nnclr_hub.workbench.payload import decode_vector
from nnclr_hub.workbench.sources import read_original

from ..access import READ, WRITE
from ..answers import PartsResponse, encoded, public_metadata
from ..models import note_changes
from ..problems import MAX_CONFLICTS, outcomes
from ..request_bodies import (
    UploadedImage,
    decode_each,
    in_thread_if_large,
    is_form,
    media_type,
    parse,
    read_form,
    read_json,
    unsupported,
)
from ..telemetry import measured
from .collections import MISSING, CollectionResponse, response_of
from .router import BYTES, FAILED_WRITE, Here, Parts, Router, body_of
from .schemas import (
    FIRST_WRONG,
    IndexedKey,
    ItemError,
    Metadata,
    MetadataKey,
    Name,
    Strict,
    Vector,
    Where,
    WhereText,
    binary,
    form_body,
    one_of,
    optional,
    read_where,
    schema_of,
)

MAX_LIMIT_WITH_VECTORS = 1000  # a page of vectors is built in memory
MAX_READ = 1000  # items that are returned at once
MAX_IDS = 10_000
MAX_WRITTEN = 100_000  # items of a write by a filter or a table, which keeps others waiting
MAX_THUMBNAILS = 64  # in one response, of at most 2 MB
CSV = "text/csv"
MAX_COLUMNS = 64  # most columns of a table in one request
SHOWN = 10  # rows without an item in an answer

router = Router(prefix="/api/v1/collections/{name}", tags=["items"], stage="store")


# ---- add items


class ItemRequest(Strict):
    id: Name
    vector: Vector
    metadata: Metadata = Field(default_factory=dict)


class ItemsRequest(RootModel[Annotated[list[ItemRequest], FIRST_WRONG]]):
    """Items by their vectors."""


class StoredResponse(BaseModel):
    stored: int
    seq: int = Field(description="sequence number of the change")


class ItemNote(schema_of(NewImage, id=(optional(Name), None), image=None)):
    """The id and metadata of one file of a multipart upload."""


class NewItem(schema_of(NewImage, id=(optional(Name), None))):
    """An image to add, with its id and metadata."""


class UploadRequest(Strict):
    items: Annotated[list[NewItem], FIRST_WRONG] = Field(min_length=1)


class UploadEntry(BaseModel):
    """The id under which the image is stored, or an error."""

    index: int
    name: str | None = None
    id: str | None = None
    error: ItemError | None = None


class UploadResponse(BaseModel):
    results: list[UploadEntry]


_FIELDS = {"files": "many", "items": "JSON list of {id, metadata}, one per file, in the same order"}


@router.on(
    *("POST", "/items", WRITE, f"{MISSING} fingerprint_mismatch undecodable_image image_too_large {FAILED_WRITE}"),
    response_model=UploadResponse,
    openapi_extra=form_body(_FIELDS, ["files"], UploadRequest),
)
async def add_images(name: str, request: Request, here: Here) -> Response:
    """Embed images and add them to the collection.

    The response has an id or an error for each image: 200 if at least one was stored, else 422.
    """
    images, notes = await _read(request, here)
    size = sum(len(image.data) for image in images if isinstance(image.data, bytes))
    new = await in_thread_if_large(size, _add_request, images, notes)
    with measured("ingest"):
        errors = await here.ingest.add(here.workbench, name, new) if new.images else []
    added = iter([error or one.item_id for one, error in zip(new.images, errors, strict=True)])
    results = [one.data if isinstance(one.data, ImageError) else next(added) for one in images]
    names = [{"name": image.name} for image in images]
    what = "images could not be read"
    return JSONResponse({"results": outcomes(results, names, lambda id: {"id": id}, what, code="undecodable_image")})


async def _read(request: Request, here: Parts) -> tuple[list[UploadedImage], Sequence[ItemNote]]:
    """Read the images of an upload, and the id and metadata of each."""
    limit = here.settings.max_images
    if not is_form(request):
        notes = (await read_json(request, UploadRequest)).items
        return await decode_each([note.image for note in notes], "items", limit, here.fetcher), notes
    form = await read_form(request, texts=("items",))
    images = form.images("files", limit)
    text = form.texts.get("items")
    if text is None:
        return images, [ItemNote()] * len(images)
    notes = await in_thread_if_large(len(text), parse, text, list[ItemNote], ("items",))
    if len(notes) != len(images):
        raise InvalidRequest(
            f"items must have one entry per file, in the same order, got {len(notes)} for {len(images)} files."
        )
    return images, notes


def _add_request(images: Sequence[UploadedImage], notes: Sequence[ItemNote]) -> AddRequest:
    """Return what to add: the images that could be decoded from the request."""
    new: list[NewImage] = []
    for image, note in zip(images, notes, strict=True):
        if isinstance(image.data, bytes):
            name = {} if image.name is None else {"name": image.name}
            new.append(NewImage(note.id, image.data, {**name, **note.metadata}, note.thumbnail))
    return AddRequest(new)


@router.on("PUT", "/items", WRITE, f"{MISSING} fingerprint_mismatch {FAILED_WRITE}")
def put_vectors(
    name: str,
    body: ItemsRequest,
    here: Here,
    fingerprint: Annotated[
        str | None,
        Query(
            max_length=128,
            description="fingerprint of the encoder that made the vectors; 409 if the collection holds vectors of "
            "another encoder, such as after a re-embedding",
        ),
    ] = None,
) -> StoredResponse:
    """Add or replace items by their vectors: all of them or, after an error, none."""
    # an id that is given twice: one item would silently overwrite the other
    if twice := [id for id, count in Counter(one.id for one in body.root).items() if count > 1]:
        raise InvalidRequest(
            f"The id {twice[0]!r:.150} is given twice in one request; every item needs a different id."
        )
    items = [Item(one.id, decode_vector(one.vector, f"vector of {one.id!r}"), one.metadata) for one in body.root]
    seq = here.workbench.upsert(name, items, fingerprint=fingerprint)
    note_changes(here.workbench, name, len(items))
    return StoredResponse(stored=len(items), seq=seq)


# ---- read items


class ItemResponse(BaseModel):
    id: str
    metadata: Metadata
    vector: list[float] | None = None


class ItemsResponse(BaseModel):
    items: list[ItemResponse]
    cursor: str | None = Field(description="cursor of the next page; null on the last page")


class ItemsByIdRequest(Strict):
    ids: Annotated[list[Name], FIRST_WRONG] = Field(max_length=MAX_READ)
    with_vector: bool = True


class ItemsByIdResponse(BaseModel):
    """The items that exist, in the order of the ids."""

    items: list[ItemResponse]


@router.on("GET", "/items", READ, f"{MISSING} invalid_filter answer_too_large", response_model=ItemsResponse)
def list_items(
    name: str,
    here: Here,
    cursor: Annotated[
        str | None, Query(description="cursor from the previous page; omit it for the first page")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="with vectors, at most 1000")] = 100,
    where: WhereText = None,
    with_vector: bool = False,
) -> Response:
    """List a page of items, sorted by id."""
    if with_vector and limit > MAX_LIMIT_WITH_VECTORS:
        raise InvalidRequest(f"limit must be at most {MAX_LIMIT_WITH_VECTORS} with vectors, got {limit}.")
    condition = read_where(where)
    last = None if cursor is None else read_cursor(name, condition, cursor)
    collection = here.workbench.collection(name)
    answer = here.answers.open()
    page = collection.scroll(last, limit, condition, with_vector=with_vector)
    following = None if page.cursor is None else write_cursor(name, condition, page.cursor)
    items = answer.list(_item(item, with_vector) for item in page.items)
    return PartsResponse([b'{"items":', *items, b',"cursor":', encoded(following), b"}"])


@router.on("POST", "/lookup", READ, f"{MISSING} answer_too_large", response_model=ItemsByIdResponse)
def get_items(name: str, body: ItemsByIdRequest, here: Here) -> Response:
    """Return many items by their ids; ids that do not exist are left out."""
    collection = here.workbench.collection(name)
    answer = here.answers.open()
    found = collection.get(body.ids)
    items = answer.list(_item(item, body.with_vector) for item in found)
    return PartsResponse([b'{"items":', *items, b"}"])


@router.on("GET", "/items/{id}", READ, f"{MISSING} item_not_found", response_model=ItemResponse)
def get_item(name: str, id: str, here: Here) -> Response:
    """Return one item with its vector."""
    collection = here.workbench.collection(name)
    found = collection.get([id])
    if not found:
        raise ItemNotFound(f"Collection {collection.name!r} has no item {id!r}.")
    return PartsResponse([encoded(_item(found[0], with_vector=True))])


def _item(item: Item, with_vector: bool) -> dict[str, Any]:
    """Return the JSON of an item, without the folder of this machine."""
    vector = item.vector if with_vector else None
    return {"id": item.id, "metadata": public_metadata(item.metadata), "vector": vector}


# A cursor belongs to one collection and filter. It holds the last id and not a position: additions and deletions
# between two pages then neither repeat nor skip an item.
_CHECK = 9  # bytes, so that base64 has no padding before the id


def write_cursor(name: str, where: Mapping[str, Any] | None, last: str) -> str:
    """Return the cursor after an item."""
    return base64.urlsafe_b64encode(_check(name, where, last) + last.encode()).decode().rstrip("=")


def read_cursor(name: str, where: Mapping[str, Any] | None, cursor: str) -> str:
    """Return the id of the last item of the previous page.

    Raises:
        InvalidRequest: the cursor is malformed, or belongs to another listing.
    """
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        last = data[_CHECK:].decode()
    except (binascii.Error, ValueError):
        data, last = b"", ""
    if not last or data[:_CHECK] != _check(name, where, last):
        raise InvalidRequest(
            f"Invalid cursor {cursor!r:.60}; pass the one from the previous page with the same collection and filter, "
            "or omit it."
        )
    return last


def _check(name: str, where: Mapping[str, Any] | None, last: str) -> bytes:
    listing = json.dumps([name, where, last], sort_keys=True).encode()
    return hashlib.blake2b(listing, digest_size=_CHECK).digest()


# ---- images of items


class ThumbnailsRequest(Strict):
    ids: Annotated[list[Name], FIRST_WRONG] = Field(max_length=MAX_THUMBNAILS)


_THUMBNAILS = binary(
    "for each id, in order: the number of bytes of its JPEG as little-endian uint32, then these bytes; 0 without a "
    "thumbnail"
)


@router.on(
    *("POST", "/thumbnails", READ, MISSING),
    content={BYTES: _THUMBNAILS},
)
def get_thumbnails(name: str, body: ThumbnailsRequest, here: Here) -> Response:
    """Return the thumbnails of many items, which costs a fraction of one request for each."""
    parts: list[bytes] = []
    collection = here.workbench.collection(name)
    for id in body.ids:
        jpeg = None
        with suppress(ItemNotFound):
            jpeg = collection.thumbnail(id)
        parts += [struct.pack("<I", len(jpeg or b"")), jpeg or b""]
    return Response(b"".join(parts), media_type=BYTES)


@router.on(
    *("GET", "/items/{id}/thumbnail", READ, f"{MISSING} item_not_found"),
    content={"image/jpeg": binary("JPEG")},
    responses={304: {"description": "The thumbnail matches If-None-Match."}},
)
def thumbnail(
    name: str,
    id: str,
    request: Request,
    here: Here,
    version: Annotated[
        str | None,
        Query(
            max_length=64, description="changes with the image, such as its `pixel_sha256`: a browser keeps it a day"
        ),
    ] = None,
) -> Response:
    """Return the thumbnail of an item: a JPEG of at most 256 pixels per side."""
    jpeg = here.workbench.collection(name).thumbnail(id)
    if jpeg is None:
        raise ItemNotFound(f"Item {id!r} has no thumbnail, because it was added by its vector.")
    # an item may be replaced under the same id, so a browser must revalidate an address without a version
    tag = f'"{hashlib.sha256(jpeg).hexdigest()[:16]}"'
    headers = {"Cache-Control": "private, no-cache" if version is None else "private, max-age=86400", "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(jpeg, media_type="image/jpeg", headers=headers)


@router.on(
    *("GET", "/items/{id}/original", READ, f"{MISSING} item_not_found"),
    content={kind: binary("The image file.") for kind in ("image/jpeg", "image/png", "image/webp", "image/gif")},
)
def original(name: str, id: str, here: Here) -> Response:
    """Return the original image of an item, or its thumbnail.

    The original is sent if it was kept, or if its file is in a source folder of the server and has not changed. The
    header `X-Image` is `source` or `thumbnail`.
    """
    collection = here.workbench.collection(name)
    found = read_original(collection, id, here.settings.source_folders, here.workbench.originals)
    headers = {"Cache-Control": "private, no-cache", "X-Image": found.of}
    return Response(found.data, media_type=found.media_type, headers=headers)


# ---- delete items and change their metadata


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


_WRITE_ERRORS = f"{MISSING} invalid_filter request_too_large {FAILED_WRITE}"


@router.on("DELETE", "/items/{id}", WRITE, f"{MISSING} item_not_found {FAILED_WRITE}", status_code=204)
def delete_item(name: str, id: str, here: Here) -> None:
    """Delete an item; when this returns, the deletion is durable."""
    deleted = here.workbench.delete(name, [id])
    if not deleted:
        raise ItemNotFound(f"Collection {here.workbench.collection(name).name!r} has no item {id!r}.")
    note_changes(here.workbench, name, deleted)


@router.on("POST", "/delete", WRITE, _WRITE_ERRORS)
def delete_items(name: str, body: Selection, here: Here) -> DeletedResponse:
    """Delete items by ids, or those that pass a filter: all of them or, after an error, none."""
    _admit(here, name, body)
    deleted = here.workbench.delete(name, body.ids, where=body.where)
    note_changes(here.workbench, name, deleted)
    return DeletedResponse(deleted=deleted)


@router.on("PATCH", "/items", WRITE, f"metadata_conflict {_WRITE_ERRORS}")
def update_metadata(name: str, body: MetadataRequest, here: Here) -> UpdatedResponse:
    """Change the metadata of items by ids, of those that pass a filter, or of each by its own patch.

    All items are changed or, after an error, none.
    """
    bench = here.workbench
    _admit(here, name, body)
    if body.each is not None:
        updated = bench.update_each(name, body.each, expected=body.expected, by_path=body.by_path)
    else:
        patch = body.metadata or {}
        updated = bench.update_metadata(name, patch, ids=body.ids, where=body.where, replace=body.replace)
    note_changes(bench, name, updated)
    return UpdatedResponse(updated=updated)


def _admit(here: Parts, name: str, selection: Selection) -> None:
    """Take permits, and refuse a filter that selects too many items."""
    collection = here.workbench.collection(name)
    here.answers.open()
    if selection.where is not None and (count := collection.count(selection.where)) > MAX_WRITTEN:
        raise RequestTooLarge(
            f"The filter selects {count:,} items, and one request changes at most {MAX_WRITTEN:,}; narrow it."
        )


# ---- labels from a table


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


async def _table(request: Request) -> bytes:
    if media_type(request) != CSV:
        raise unsupported(request, CSV)
    return await request.body()


_COLUMNS = TypeAdapter(Annotated[list[str], Field(min_length=1, max_length=MAX_COLUMNS)])
Column = Annotated[str | None, Query(max_length=1000)]


@router.on("POST", "/labels", WRITE, _WRITE_ERRORS, openapi_extra=body_of(CSV))
def label_items(
    name: str,
    content: Annotated[bytes, Depends(_table)],
    here: Here,
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
    try:
        names = None if columns is None else _COLUMNS.validate_json(columns)
    except ValidationError as error:
        text = f"columns must be a JSON list of at most {MAX_COLUMNS} texts, got {columns!r:.80}."
        raise InvalidRequest(text) from error
    rows = read_rows(LabelTable(Path(file_name), None, path_column, label_column, content), names)
    if len(rows.rows) > MAX_WRITTEN:
        raise RequestTooLarge(
            f"{file_name} has {len(rows.rows):,} rows, and one request takes at most {MAX_WRITTEN:,}; split it."
        )
    collection = here.workbench.collection(name)
    here.answers.open()
    found = table_values(collection, rows, key)
    updated = 0 if dry_run else here.workbench.update_each(name, found.values, by_path=True)
    note_changes(here.workbench, name, updated)
    return LabelsResponse(
        matched=found.matched,
        unmatched_rows=len(found.unmatched_rows),
        unmatched_items=found.unmatched_items,
        first_unmatched=list(found.unmatched_rows[:SHOWN]),
        values=found.values,
        other_columns=list(rows.others),
        updated=updated,
    )


# ---- facets, and which keys are indexed


class FacetsRequest(Strict):
    keys: Annotated[list[MetadataKey], FIRST_WRONG] = Field(min_length=1, max_length=bounds.MAX_KEYS)
    where: Where | None = None
    limit: int = Field(10, ge=1, le=bounds.MAX_VALUES, description="values per key, the most frequent first")
    bins: int = Field(10, ge=1, le=bounds.MAX_BINS, description="of the histogram of numbers")


class ValueCount(BaseModel):
    value: str | float | bool | None
    count: int


class HistogramResponse(schema_of(bounds.Histogram, BaseModel)):
    """Counts of numbers between ascending edges."""


class FacetResponse(BaseModel):
    key: str
    items: int = Field(description="number of items that have the key")
    distinct: int = Field(description="number of distinct values")
    values: list[ValueCount]
    histogram: HistogramResponse | None


class FacetsResponse(BaseModel):
    facets: list[FacetResponse]


class IndexedRequest(Strict):
    keys: Annotated[list[IndexedKey], FIRST_WRONG] = Field(max_length=MAX_INDEXED)


@router.on("POST", "/facets", READ, f"{MISSING} invalid_filter answer_too_large", response_model=FacetsResponse)
def facets(name: str, body: FacetsRequest, here: Here) -> Response:
    """Count the values of metadata keys among all items, or those that pass a filter."""
    collection = here.workbench.collection(name)
    answer = here.answers.open(len(body.keys))
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


@router.on("PUT", "/indexed", WRITE, f"{MISSING} invalid_filter {FAILED_WRITE}")
def change_indexed(name: str, body: IndexedRequest, here: Here) -> CollectionResponse:
    """Index these metadata keys and no others, in the background; filters work with every key at any time."""
    collection = here.workbench.collection(name)
    collection.change_indexed(body.keys)
    return response_of(collection.info())
