"""/api/v1/collections/{name}/items."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import TypeAdapter

from nnclr_hub.errors import (
    CollectionMoving,
    CollectionNotFound,
    DeadlineExceeded,
    DiskFull,
    FingerprintMismatch,
    ImageError,
    ImageTooLarge,
    InvalidFilter,
    InvalidRequest,
    ItemNotFound,
    StoreReadOnly,
)
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.checks import check_name
from nnclr_hub.workbench import NewImage
from nnclr_hub.workbench.privacy import public_metadata
from nnclr_hub.workbench.sources import read_original

from ..aside import aside
from ..cursors import read_cursor, write_cursor
from ..edge.url_fetcher import Fetcher
from ..keys import READ, WRITE
from ..payloads import decode_vector
from ..problems import answers, problem
from ..responses import VectorResponse
from ..schemas import (
    ItemNote,
    ItemResponse,
    ItemsRequest,
    ItemsResponse,
    StoredResponse,
    UploadRequest,
    UploadResponse,
)
from ..security.access import requires
from ..telemetry import measured
from ..uploads import (
    FORM,
    JSON,
    Picture,
    check_count,
    decode_each,
    fetch_each,
    json_of,
    kind_of,
    parse_as,
    read_form,
    read_json,
    unsupported,
)
from .described import binary, form_body, json_body
from .filters import WhereText, read_where
from .state import AppFetcher, AppIngest, AppMetrics, AppSettings, AppWorkbench

router = APIRouter(prefix="/api/v1/collections/{name}/items", tags=["items"])
MAX_LIMIT = 10_000
MAX_LIMIT_WITH_VECTORS = 1000  # a page of vectors is built in memory
_NOTES = TypeAdapter(list[ItemNote])
_FIELDS = {"files": "many", "items": "JSON list of {id, metadata}, one a file, in their order"}


@router.post(
    "",
    response_model=UploadResponse,
    responses=answers(
        CollectionNotFound,
        CollectionMoving,
        FingerprintMismatch,
        ImageError,
        ImageTooLarge,
        DeadlineExceeded,
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
    metrics: AppMetrics,
    ingest: AppIngest,
    fetcher: AppFetcher,
) -> Response:
    """Embeds images into the collection: a result or an error each; 200 if any was stored, else 422."""
    pictures, notes = await _read(request, settings.max_images, fetcher)
    size = sum(len(picture.data) for picture in pictures if isinstance(picture.data, bytes))
    named = await aside(size, _named, pictures, notes)
    images = [one for one in named if isinstance(one, NewImage)]
    with measured(metrics, "ingest"):
        errors = await ingest.add(request, bench, name, images) if images else []
    left = iter(errors)
    results = [one if isinstance(one, ImageError) else next(left) or one.id for one in named]
    return _uploaded(request.url.path, pictures, results)


@router.put(
    "",
    responses=answers(
        "unsupported_media_type", CollectionNotFound, CollectionMoving, FingerprintMismatch, StoreReadOnly, DiskFull
    ),
    openapi_extra=json_body(ItemsRequest),
)
@requires(WRITE)
def put_vectors(
    name: str, body: Annotated[ItemsRequest, json_of(ItemsRequest)], bench: AppWorkbench, metrics: AppMetrics
) -> StoredResponse:
    """Adds or replaces items by their vectors, all or none."""
    _refuse_twice(one.id for one in body.root)
    items = [Item(one.id, decode_vector(one.vector, f"vector of {one.id!r}"), one.metadata) for one in body.root]
    with measured(metrics, "store"):
        return StoredResponse(stored=len(items), seq=bench.upsert(name, items))


@router.get("", response_model=ItemsResponse, responses=answers(CollectionNotFound, InvalidFilter))
@requires(READ)
def list_items(
    name: str,
    bench: AppWorkbench,
    metrics: AppMetrics,
    cursor: Annotated[str | None, Query(description="of the page before; none: the first page")] = None,
    limit: Annotated[int, Query(description="1 to 10,000, with vectors 1000")] = 100,
    where: WhereText = None,
    with_vector: bool = False,
) -> Response:
    """A page of items in the order of their ids."""
    if with_vector and limit > MAX_LIMIT_WITH_VECTORS:
        raise InvalidRequest(f"limit={limit} is too many with vectors: give 1 to {MAX_LIMIT_WITH_VECTORS}.")
    condition = read_where(where)
    last = None if cursor is None else read_cursor(name, condition, cursor)
    with measured(metrics, "store"):
        page = bench.collection(name).scroll(last, limit, condition, with_vector=with_vector)
    following = None if page.cursor is None else write_cursor(name, condition, page.cursor)
    items = [_response(item, with_vector) for item in page.items]
    return VectorResponse({"items": items, "cursor": following})


@router.get("/{id}", response_model=ItemResponse, responses=answers(CollectionNotFound, ItemNotFound))
@requires(READ)
def get_item(name: str, id: str, bench: AppWorkbench, metrics: AppMetrics) -> Response:
    """One item with its vector."""
    with measured(metrics, "store"):
        collection = bench.collection(name)
        found = collection.get([id])
    if not found:
        raise _not_found(collection, id)
    return VectorResponse(_response(found[0], with_vector=True))


@router.delete(
    "/{id}",
    status_code=204,
    responses=answers(CollectionNotFound, CollectionMoving, ItemNotFound, StoreReadOnly, DiskFull),
)
@requires(WRITE)
def delete_item(name: str, id: str, bench: AppWorkbench, metrics: AppMetrics) -> None:
    """Deletes an item; when this returns, it is gone for good."""
    with measured(metrics, "store"):
        deleted = bench.delete(name, [id])
    if not deleted:
        raise _not_found(bench.collection(name), id)


@router.get(
    "/{id}/thumbnail",
    response_class=Response,
    responses={
        **answers(CollectionNotFound, ItemNotFound),
        200: {"content": {"image/jpeg": binary("JPEG")}},
        304: {"description": "the client has it already, as its If-None-Match says"},
    },
)
@requires(READ, counted=False)
def thumbnail(name: str, id: str, request: Request, bench: AppWorkbench, metrics: AppMetrics) -> Response:
    """The item's JPEG, at most 256 pixels a side."""
    with measured(metrics, "store"):
        jpeg = bench.collection(name).thumbnail(id)
    if jpeg is None:
        raise ItemNotFound(f"Item {id!r} has no thumbnail: it was stored by its vector alone.")
    # an item may be replaced under its id, so a browser has to ask again
    tag = f'"{hashlib.sha256(jpeg).hexdigest()[:16]}"'
    headers = {"Cache-Control": "private, no-cache", "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(jpeg, media_type="image/jpeg", headers=headers)


@router.get(
    "/{id}/original",
    response_class=Response,
    responses={
        **answers(CollectionNotFound, ItemNotFound),
        200: {
            "content": {kind: binary("the image") for kind in ("image/jpeg", "image/png", "image/webp", "image/gif")}
        },
    },
)
@requires(READ)
def original(name: str, id: str, bench: AppWorkbench, settings: AppSettings, metrics: AppMetrics) -> Response:
    """The image that the item was made of, if its file lies in a source folder of the server and is still the same.

    Else the item's thumbnail; `X-Image` says which: source or thumbnail.
    """
    with measured(metrics, "store"):
        collection = bench.collection(name)
    found = read_original(collection, id, settings.source_folders)
    headers = {"Cache-Control": "private, no-cache", "X-Picture": found.of}
    return Response(found.data, media_type=found.media_type, headers=headers)


# ---- inside


async def _read(request: Request, limit: int, fetcher: Fetcher | None) -> tuple[list[Picture], Sequence[ItemNote]]:
    """The images of an upload, and what is said about each."""
    kind = kind_of(request)
    if kind == FORM:
        form = await read_form(request, texts=("items",))
        pictures = form.pictures("files", limit)
        text = form.texts.get("items")
        if text is None:
            return pictures, [ItemNote()] * len(pictures)
        notes = await aside(len(text), parse_as, text, _NOTES, ("items",))
        if len(notes) != len(pictures):
            raise InvalidRequest(
                f"items has {len(notes)} entries for {len(pictures)} files: give one a file, in their order."
            )
    elif kind == JSON:
        notes = (await read_json(request, UploadRequest)).items
        check_count(len(notes), limit)
        texts = [note.image for note in notes]
        pictures = await decode_each(texts, "items", await fetch_each(texts, fetcher))
    else:
        raise unsupported(request, FORM, JSON)
    _refuse_twice(note.id for note in notes if note.id is not None)
    return pictures, notes


def _named(pictures: Sequence[Picture], notes: Sequence[ItemNote]) -> list[NewImage | ImageError]:
    """What is to be added: an image without an id gets one of its bytes."""
    found: list[NewImage | ImageError] = []
    for picture, note in zip(pictures, notes, strict=True):
        if isinstance(picture.data, ImageError):
            found.append(picture.data)
            continue
        id = check_name(note.id or hashlib.sha256(picture.data).hexdigest()[:32], "Item id")
        name = {} if picture.name is None else {"name": picture.name}
        found.append(NewImage(id, picture.data, {**name, **note.metadata}))
    return found


def _refuse_twice(ids: Iterable[str]) -> None:
    """One would overwrite the other, and nobody could tell which."""
    twice = [id for id, count in Counter(ids).items() if count > 1]
    if twice:
        raise InvalidRequest(f"The id {twice[0]!r:.150} is given twice in one request: give each item its own.")


def _uploaded(path: str, pictures: Sequence[Picture], results: Sequence[ImageError | str]) -> Response:
    entries: list[dict[str, Any]] = []
    broken: list[dict[str, Any]] = []
    for index, (picture, result) in enumerate(zip(pictures, results, strict=True)):
        entry: dict[str, Any] = {"index": index, "name": picture.name}
        if isinstance(result, str):
            entries.append(entry | {"id": result})
        else:
            error = {"code": result.code, "detail": str(result)}
            entries.append(entry | {"error": error})
            broken.append(entry | error)
    if len(broken) == len(entries):
        detail = f"None of the {len(entries)} images could be read; the first: {broken[0]['detail']}"
        return problem(path, 422, "undecodable_image", detail, items=broken)
    return JSONResponse({"results": entries})


def _not_found(collection: Collection, id: str) -> ItemNotFound:
    return ItemNotFound(f"Collection {collection.name!r} has no item {id!r}: list its items to see their ids.")


def _response(item: Item, with_vector: bool) -> dict[str, Any]:
    vector = item.vector if with_vector else None
    return {"id": item.id, "metadata": public_metadata(item.metadata), "vector": vector}
