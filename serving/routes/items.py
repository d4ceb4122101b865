"""/api/v1/collections/{name}/items."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from pydantic import TypeAdapter, ValidationError

from nnclr_hub.errors import InvalidFilter, InvalidRequest, ItemNotFound, RequestTooLarge
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.checks import check_name
from nnclr_hub.workbench import NewImage

from ..payloads import decode_vector
from ..problems import problem
from ..schemas import ItemNote, ItemRequest, ItemResponse, ItemsResponse
from .state import AppSettings, AppWorkbench

router = APIRouter(prefix="/api/v1/collections/{name}/items", tags=["items"])
_NOTES = TypeAdapter(list[ItemNote])
_WHERE = TypeAdapter(dict[str, Any])


@router.post("")
async def add_files(
    name: str,
    request: Request,
    files: Annotated[list[UploadFile], File(description="pictures")],
    bench: AppWorkbench,
    settings: AppSettings,
    items: Annotated[str | None, Form(description="JSON list of {id, metadata}, one a file")] = None,
) -> Response:
    """Embeds pictures into the collection: a result or an error each; 200 if any was stored, else 422."""
    if len(files) > settings.max_images:
        raise RequestTooLarge(
            f"{len(files)} pictures are too many for one request: send at most {settings.max_images}."
        )
    notes = _notes(items, len(files))
    images = []
    for file, note in zip(files, notes, strict=True):
        data = await file.read()
        id = check_name(note.id or hashlib.sha256(data).hexdigest()[:32], "Item id")
        images.append(NewImage(id, data, {"name": file.filename, **note.metadata}))
    errors = await run_in_threadpool(bench.add_images, name, images)
    results: list[dict[str, Any]] = []
    for index, (image, error) in enumerate(zip(images, errors, strict=True)):
        entry: dict[str, Any] = {"index": index, "name": files[index].filename}
        results.append(
            entry | ({"id": image.id} if error is None else {"error": {"code": error.code, "detail": str(error)}})
        )
    broken = [{k: v for k, v in one.items() if k != "error"} | one["error"] for one in results if "error" in one]
    if len(broken) == len(files):
        detail = f"None of the {len(files)} pictures could be read; the first: {broken[0]['detail']}"
        return problem(request.url.path, 422, "undecodable_image", detail, items=broken)
    return JSONResponse({"results": results})


def _notes(text: str | None, count: int) -> list[ItemNote]:
    if text is None:
        return [ItemNote()] * count
    try:
        notes = _NOTES.validate_json(text)
    except ValidationError as error:
        raise InvalidRequest(f"items is not a JSON list of {{id, metadata}}: {error.errors()[0]['msg']}.") from error
    if len(notes) != count:
        raise InvalidRequest(f"items has {len(notes)} entries for {count} files: give one a file, in their order.")
    return notes


@router.put("")
def put_vectors(name: str, body: list[ItemRequest], bench: AppWorkbench) -> dict[str, int]:
    """Adds or replaces items by their vectors, all or none."""
    items = [Item(one.id, decode_vector(one.vector, f"vector of {one.id!r}"), one.metadata) for one in body]
    return {"stored": len(items), "seq": bench.collection(name).upsert(items)}


@router.get("")
def list_items(
    name: str,
    bench: AppWorkbench,
    cursor: str | None = None,
    limit: int = 100,
    where: str | None = None,
    with_vector: bool = False,
) -> ItemsResponse:
    """A page of items in the order of their ids; `where` is JSON."""
    try:
        condition = _WHERE.validate_json(where) if where is not None else None
    except ValidationError as error:
        raise InvalidFilter(f"where is not a JSON object: {error.errors()[0]['msg']}.") from error
    page = bench.collection(name).scroll(cursor, limit, condition)
    return ItemsResponse(items=[_response(item, with_vector) for item in page.items], cursor=page.cursor)


@router.get("/{id}")
def get_item(name: str, id: str, bench: AppWorkbench) -> ItemResponse:
    """One item with its vector."""
    return _response(_find(bench.collection(name), id), with_vector=True)


@router.delete("/{id}", status_code=204)
def delete_item(name: str, id: str, bench: AppWorkbench) -> None:
    """Deletes an item; when this returns, it is gone for good."""
    if not bench.delete(name, [id]):
        raise _not_found(bench.collection(name), id)


@router.get("/{id}/thumbnail")
def thumbnail(name: str, id: str, bench: AppWorkbench) -> Response:
    """The item's JPEG, at most 256 pixels a side."""
    jpeg = bench.collection(name).thumbnail(id)
    if jpeg is None:
        raise ItemNotFound(f"Item {id!r} has no thumbnail: it was stored by its vector alone.")
    # an item may be replaced under its id, so a browser has to ask again
    tag = f'"{hashlib.sha256(jpeg).hexdigest()[:16]}"'
    return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "private, no-cache", "ETag": tag})


def _find(collection: Collection, id: str) -> Item:
    found = collection.get([id])
    if not found:
        raise _not_found(collection, id)
    return found[0]


def _not_found(collection: Collection, id: str) -> ItemNotFound:
    return ItemNotFound(f"Collection {collection.name!r} has no item {id!r}: list its items to see their ids.")


def _response(item: Item, with_vector: bool) -> ItemResponse:
    return ItemResponse(id=item.id, metadata=dict(item.metadata), vector=item.vector.tolist() if with_vector else None)
