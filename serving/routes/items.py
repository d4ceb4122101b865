"""/api/v1/collections/{name}/items: add, list, get and delete items, and their images."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field, RootModel, TypeAdapter

from nnclr_hub.errors import (
    AnswerTooLarge,
    CollectionNotFound,
    DiskFull,
    FingerprintMismatch,
    ImageError,
    ImageTooLarge,
    InvalidFilter,
    InvalidRequest,
    ItemNotFound,
    StoreError,
    StoreReadOnly,
)
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.checks import MAX_LIMIT
from nnclr_hub.workbench import AddRequest, NewImage, Workbench
from nnclr_hub.workbench.payload import decode_vector
from nnclr_hub.workbench.privacy import public_metadata
from nnclr_hub.workbench.sources import read_original

from ..answers import PartsResponse, encoded
from ..keys import READ, WRITE
from ..problems import answers, problem
from ..request_bodies import (
    UploadedImage,
    decode_each,
    in_thread_if_large,
    is_form,
    json_of,
    parse_as,
    read_form,
    read_json,
)
from ..security.access import requires
from ..telemetry import measured, note_change
from ..url_fetcher import Fetcher
from .bodies import FIRST_WRONG, ImageText, ItemError, Metadata, Name, Strict, Vector, binary, form_body
from .dependencies import AppAnswers, AppFetcher, AppIngest, AppSettings, AppWorkbench
from .listings import WhereText, read_cursor, read_where, write_cursor


class ItemRequest(Strict):
    id: Name
    vector: Vector
    metadata: Metadata = Field(default_factory=dict)


class ItemsRequest(RootModel[Annotated[list[ItemRequest], FIRST_WRONG]]):
    """Items by their vectors."""


class StoredResponse(BaseModel):
    stored: int
    seq: int = Field(description="sequence number of the change")


class ItemResponse(BaseModel):
    id: str
    metadata: Metadata
    vector: list[float] | None = None


class ItemsResponse(BaseModel):
    items: list[ItemResponse]
    cursor: str | None = Field(description="cursor of the next page; null on the last page")


class ItemNote(Strict):
    """The id and metadata of one file of a multipart upload."""

    id: Name | None = Field(default=None, description="null: derived from the bytes of the image")
    metadata: Metadata = Field(default_factory=dict)
    thumbnail: bool = Field(default=True, description="store a thumbnail of the image")


class NewItem(ItemNote):
    image: ImageText


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


router = APIRouter(prefix="/api/v1/collections/{name}/items", tags=["items"])
MAX_LIMIT_WITH_VECTORS = 1000  # a page of vectors is built in memory
_NOTES = TypeAdapter(list[ItemNote])
_FIELDS = {"files": "many", "items": "JSON list of {id, metadata}, one per file, in the same order"}


@router.post(
    "",
    response_model=UploadResponse,
    responses=answers(
        CollectionNotFound,
        FingerprintMismatch,
        ImageError,
        ImageTooLarge,
        StoreReadOnly,
        DiskFull,
        "unsupported_media_type",
    ),
    openapi_extra=form_body(_FIELDS, required=["files"], json=UploadRequest),
)
@requires(WRITE)
async def add_images(
    name: str,
    request: Request,
    bench: AppWorkbench,
    settings: AppSettings,
    ingest: AppIngest,
    fetcher: AppFetcher,
) -> Response:
    """Embed images and add them to the collection.

    The response has an id or an error for each image: 200 if at least one was stored, else 422.
    """
    images, notes = await _read(request, settings.max_images, fetcher)
    size = sum(len(image.data) for image in images if isinstance(image.data, bytes))
    new = await in_thread_if_large(size, _add_request, images, notes)
    with measured("ingest"):
        errors = await ingest.add(request, bench, name, new) if new.images else []
    await run_in_threadpool(note_changes, bench, name, errors.count(None))
    added = iter([error or one.item_id for one, error in zip(new.images, errors, strict=True)])
    results = [one.data if isinstance(one.data, ImageError) else next(added) for one in images]
    return _uploaded(request.url.path, images, results)


@router.put(
    "",
    responses=answers("unsupported_media_type", CollectionNotFound, FingerprintMismatch, StoreReadOnly, DiskFull),
)
@requires(WRITE)
def put_vectors(
    name: str,
    body: Annotated[ItemsRequest, json_of(ItemsRequest)],
    bench: AppWorkbench,
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
    _refuse_twice(one.id for one in body.root)
    items = [Item(one.id, decode_vector(one.vector, f"vector of {one.id!r}"), one.metadata) for one in body.root]
    with measured("store"):
        seq = bench.upsert(name, items, fingerprint=fingerprint)
    note_changes(bench, name, len(items))
    return StoredResponse(stored=len(items), seq=seq)


@router.get("", response_model=ItemsResponse, responses=answers(CollectionNotFound, InvalidFilter, AnswerTooLarge))
@requires(READ)
def list_items(
    name: str,
    request: Request,
    limits: AppAnswers,
    bench: AppWorkbench,
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
    with measured("store"):
        collection = bench.collection(name)
        answer = limits.open(request.state.budget)
        page = collection.scroll(last, limit, condition, with_vector=with_vector)
    following = None if page.cursor is None else write_cursor(name, condition, page.cursor)
    items = answer.list(response_of_item(item, with_vector) for item in page.items)
    return PartsResponse([b'{"items":', *items, b',"cursor":', encoded(following), b"}"])


@router.get("/{id}", response_model=ItemResponse, responses=answers(CollectionNotFound, ItemNotFound))
@requires(READ)
def get_item(name: str, id: str, bench: AppWorkbench) -> Response:
    """Return one item with its vector."""
    with measured("store"):
        collection = bench.collection(name)
        found = collection.get([id])
    if not found:
        raise _not_found(collection, id)
    return PartsResponse([encoded(response_of_item(found[0], with_vector=True))])


@router.delete(
    "/{id}",
    status_code=204,
    responses=answers(CollectionNotFound, ItemNotFound, StoreReadOnly, DiskFull),
)
@requires(WRITE)
def delete_item(name: str, id: str, bench: AppWorkbench) -> None:
    """Delete an item; when this returns, the deletion is durable."""
    with measured("store"):
        deleted = bench.delete(name, [id])
    if not deleted:
        raise _not_found(bench.collection(name), id)
    note_changes(bench, name, deleted)


@router.get(
    "/{id}/thumbnail",
    response_class=Response,
    responses={
        **answers(CollectionNotFound, ItemNotFound),
        200: {"content": {"image/jpeg": binary("JPEG")}},
        304: {"description": "The thumbnail matches If-None-Match."},
    },
)
@requires(READ)
def thumbnail(
    name: str,
    id: str,
    request: Request,
    bench: AppWorkbench,
    version: Annotated[
        str | None,
        Query(
            max_length=64, description="changes with the image, such as its `pixel_sha256`: a browser keeps it a day"
        ),
    ] = None,
) -> Response:
    """Return the thumbnail of an item: a JPEG of at most 256 pixels per side."""
    with measured("store"):
        jpeg = bench.collection(name).thumbnail(id)
    if jpeg is None:
        raise ItemNotFound(f"Item {id!r} has no thumbnail, because it was added by its vector.")
    # an item may be replaced under the same id, so a browser must revalidate an address without a version
    tag = f'"{hashlib.sha256(jpeg).hexdigest()[:16]}"'
    headers = {"Cache-Control": "private, no-cache" if version is None else "private, max-age=86400", "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(jpeg, media_type="image/jpeg", headers=headers)


@router.get(
    "/{id}/original",
    response_class=Response,
    responses={
        **answers(CollectionNotFound, ItemNotFound),
        200: {
            "content": {
                kind: binary("The image file.") for kind in ("image/jpeg", "image/png", "image/webp", "image/gif")
            }
        },
    },
)
@requires(READ)
def original(name: str, id: str, bench: AppWorkbench, settings: AppSettings) -> Response:
    """Return the original image of an item, or its thumbnail.

    The original is sent if it was kept, or if its file is in a source folder of the server and has not changed. The
    header `X-Image` is `source` or `thumbnail`.
    """
    with measured("store"):
        collection = bench.collection(name)
    found = read_original(collection, id, settings.source_folders, bench.originals)
    headers = {"Cache-Control": "private, no-cache", "X-Image": found.of}
    return Response(found.data, media_type=found.media_type, headers=headers)


# ---- inside


async def _read(
    request: Request, limit: int, fetcher: Fetcher | None
) -> tuple[list[UploadedImage], Sequence[ItemNote]]:
    """Read the images of an upload, and the id and metadata of each."""
    if is_form(request):
        form = await read_form(request, texts=("items",))
        images = form.images("files", limit)
        text = form.texts.get("items")
        if text is None:
            return images, [ItemNote()] * len(images)
        notes = await in_thread_if_large(len(text), parse_as, text, _NOTES, ("items",))
        if len(notes) != len(images):
            raise InvalidRequest(
                f"items must have one entry per file, in the same order, got {len(notes)} for {len(images)} files."
            )
    else:
        notes = (await read_json(request, UploadRequest)).items
        images = await decode_each([note.image for note in notes], "items", limit, fetcher)
    return images, notes


def _add_request(images: Sequence[UploadedImage], notes: Sequence[ItemNote]) -> AddRequest:
    """Return what to add: the images that could be decoded from the request."""
    new: list[NewImage] = []
    for image, note in zip(images, notes, strict=True):
        if isinstance(image.data, bytes):
            name = {} if image.name is None else {"name": image.name}
            new.append(NewImage(note.id, image.data, {**name, **note.metadata}, note.thumbnail))
    return AddRequest(new)


def _refuse_twice(ids: Iterable[str]) -> None:
    """Refuse an id that is given twice: one item would silently overwrite the other."""
    twice = [id for id, count in Counter(ids).items() if count > 1]
    if twice:
        raise InvalidRequest(
            f"The id {twice[0]!r:.150} is given twice in one request; every item needs a different id."
        )


def _uploaded(path: str, images: Sequence[UploadedImage], results: Sequence[ImageError | str]) -> Response:
    entries: list[dict[str, Any]] = []
    broken: list[dict[str, Any]] = []
    for index, (image, result) in enumerate(zip(images, results, strict=True)):
        entry: dict[str, Any] = {"index": index, "name": image.name}
        if isinstance(result, str):
            entries.append(entry | {"id": result})
        else:
            error = {"code": result.code, "detail": str(result)}
            entries.append(entry | {"error": error})
            broken.append(entry | error)
    if len(broken) == len(entries):
        detail = f"None of the {len(entries)} images could be read; first error: {broken[0]['detail']}"
        return problem(path, 422, "undecodable_image", detail, items=broken)
    return JSONResponse({"results": entries})


def note_changes(bench: Workbench, name: str, count: int) -> None:
    """Record a write for the log. The collection may have been dropped since, but the write was answered."""
    seconds = 0.0
    with suppress(StoreError):
        seconds = bench.collection(name).statistics().commit_seconds
    note_change(count, seconds)


def _not_found(collection: Collection, id: str) -> ItemNotFound:
    return ItemNotFound(f"Collection {collection.name!r} has no item {id!r}.")


def response_of_item(item: Item, with_vector: bool) -> dict[str, Any]:
    """Return the JSON of an item, without the folder of this machine."""
    vector = item.vector if with_vector else None
    return {"id": item.id, "metadata": public_metadata(item.metadata), "vector": vector}
