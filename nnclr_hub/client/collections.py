"""Collections: the store's verbs and those of one collection, asked of a server."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.client.pictures import bounded, read_picture
from nnclr_hub.client.steps import Answer, Call, Steps, aside, ask, to_json
from nnclr_hub.errors import CollectionNotFound, InvalidRequest, ItemNotFound
from nnclr_hub.store.base import CollectionInfo, CollectionSpec, IndexKind, Item, Match, Metric, Page, Precision, Where
from nnclr_hub.store.checks import check_ids, check_name

if TYPE_CHECKING:
    from nnclr_hub.client.pictures import ImageLike

ROOT = "/api/v1/collections"
PAGE = 1000

# ---- all of them


def create(
    name: str,
    *,
    model: str | None = None,
    dim: int | None = None,
    metric: Metric = "cosine",
    indexed: Sequence[str] = ("label",),
    index: IndexKind = "auto",
    precision: Precision = "f32",
) -> Steps[CollectionInfo]:
    """Makes a collection; one of the same specification that is there already is left as it is.

    Args:
        name: 1 to 128 of A-Z a-z 0-9 . _ ~ -
        model: whose vectors it holds; None: the server's default, or unknown ones where `dim` is given.
        dim: length of the vectors, for a collection of no model.
        metric, indexed, index, precision: see `CollectionSpec`.

    Raises:
        CollectionExists: with another specification.
    """
    about = {"metric": metric, "indexed": list(indexed), "index": index, "precision": precision}
    about |= {key: value for key, value in (("model", model), ("dim", dim)) if value is not None}
    return ask(Call("PUT", _path(name), lambda answer: _info(answer.json()), json=about))


def describe(name: str) -> Steps[CollectionInfo]:
    """How the collection stands.

    Raises:
        CollectionNotFound: names those that exist.
    """
    return ask(Call("GET", _path(name), lambda answer: _info(answer.json())))


def drop(name: str) -> Steps[None]:
    """Deletes the collection with everything in it.

    Raises:
        CollectionNotFound: names those that exist.
    """
    return ask(Call("DELETE", _path(name), lambda answer: None, gone=CollectionNotFound))


def list_collections() -> Steps[list[CollectionInfo]]:
    """How each collection stands, by name."""
    return ask(Call("GET", ROOT, lambda answer: [_info(one) for one in answer.json()["collections"]]))


# ---- one of them


def upsert(name: str, items: Sequence[Item]) -> Steps[int]:
    """Adds items or replaces those of the same id, and returns the number of the last change when all are durable.

    Each request is stored as a whole or not at all; many may take several. Thumbnails do not travel.

    Raises:
        InvalidRequest: an item is not possible; names it.
        DiskFull, StoreReadOnly: the request that met it was not stored.
    """
    for item in items:
        if item.thumbnail is not None:
            raise InvalidRequest(f"Item {item.id!r} has a thumbnail, which a server makes itself: send its picture.")
    rows = [
        {"id": check_name(item.id, "Item id"), "vector": vector_text(item.vector), "metadata": dict(item.metadata)}
        for item in items
    ]
    seq = 0
    for batch in _batches(rows):
        seq = yield from ask(Call("PUT", f"{_path(name)}/items", lambda answer: int(answer.json()["seq"]), json=batch))
    return seq


def delete(name: str, ids: Sequence[str]) -> Steps[int]:
    """Deletes items; returns how many there were."""
    deleted = 0
    for id in check_ids(ids):
        call = Call("DELETE", f"{_path(name)}/items/{id}", lambda answer: True, gone=ItemNotFound)
        try:
            yield from ask(call)
        except ItemNotFound:
            continue
        deleted += 1
    return deleted


def get(name: str, ids: Sequence[str]) -> Steps[list[Item]]:
    """The items of these ids that exist, in the order asked for, without thumbnails."""
    found: list[Item] = []
    for id in check_ids(ids):
        try:
            found.append(
                (yield from ask(Call("GET", f"{_path(name)}/items/{id}", lambda answer: _item(answer.json()))))
            )
        except ItemNotFound:
            continue
    return found


def thumbnail(name: str, id: str) -> Steps[bytes]:
    """The item's JPEG.

    Raises:
        ItemNotFound: no such item, or it has none.
    """
    return ask(Call("GET", f"{_path(name)}/items/{check_name(id, 'Item id')}/thumbnail", lambda answer: answer.body))


def count(name: str, where: Where | None = None) -> Steps[int]:
    """How many items there are, or pass the filter."""
    if where is None:
        return (yield from describe(name)).count
    total, cursor = 0, None
    while True:
        page = yield from scroll(name, cursor, PAGE, where, with_vector=False)
        total += len(page.items)
        cursor = page.cursor
        if cursor is None:
            return total


def scroll(
    name: str, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
) -> Steps[Page]:
    """Items in the order of their ids, without thumbnails; see `store.base.Collection.scroll`."""
    params = {"limit": str(limit), "with_vector": str(with_vector).lower()}
    params |= {"cursor": cursor} if cursor is not None else {}
    params |= {"where": to_json(where)} if where is not None else {}
    return ask(Call("GET", f"{_path(name)}/items", _page, params=params))


def search(
    name: str,
    vector: np.ndarray | None = None,
    k: int = 10,
    where: Where | None = None,
    *,
    image: ImageLike | None = None,
    box: tuple[float, float, float, float] | None = None,
    id: str | None = None,
    exact: bool = False,
    score_threshold: float | None = None,
    with_vector: bool = False,
    effort: int | None = None,
) -> Steps[list[Match]]:
    """The k nearest items of exactly one of a vector, a picture (or a box on it) and an item, best first.

    Args:
        vector: (D,) float.
        image: path, bytes, PIL image or (H, W, 3) uint8.
        box: x0, y0, x1, y1 on the upright image, in pixels.
        id: of an item, which is not among the matches.
        k, where, exact, score_threshold, with_vector, effort: see `store.base.Collection.search`.

    Raises:
        InvalidRequest, ImageError, CollectionNotFound, ItemNotFound, FingerprintMismatch.
    """
    query: dict[str, Any] = {"k": k, "exact": exact, "with_vector": with_vector}
    optional = {"where": where, "box": box, "id": id, "score_threshold": score_threshold, "effort": effort}
    query |= {key: value for key, value in optional.items() if value is not None}
    if vector is not None:
        query["vector"] = vector_text(vector)
    path = f"{_path(name)}/search"
    if image is None:
        return (yield from ask(Call("POST", path, _matches, json=query)))
    picture = yield from aside(lambda: read_picture(image))
    parts = [("image", picture)]
    return (yield from ask(Call("POST", path, _matches, files=parts, fields={"query": to_json(query)})))


def snapshot(name: str) -> Steps[None]:
    """Writes the index to the server's disk now, so that its next start is quick."""
    return ask(Call("POST", f"{_path(name)}/snapshot", lambda answer: None))


# ---- inside


def _path(name: str) -> str:
    return f"{ROOT}/{check_name(name, 'Collection name')}"


def _batches(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    return bounded(rows, lambda row: len(to_json(row)) + 2, most=PAGE)


def vector_text(vector: Any) -> str:
    """A vector (D,) as base64 of little-endian float32.

    Raises:
        InvalidRequest: it is no vector.
    """
    row = np.asarray(vector)
    if row.ndim != 1 or row.dtype.kind not in "fiu":
        raise InvalidRequest(f"A vector of shape {row.shape} and type {row.dtype} is not possible: give (D,) floats.")
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def _info(body: dict[str, Any]) -> CollectionInfo:
    spec = {one.name: body[one.name] for one in fields(CollectionSpec)}
    about = {one: body[one] for one in ("name", "count", "durable_seq", "indexed_seq", "state")}
    return CollectionInfo(**about, spec=CollectionSpec(**spec), index=body["index_in_use"])


def _item(body: dict[str, Any]) -> Item:
    return Item(body["id"], _vector(body.get("vector")), body["metadata"])


def _page(answer: Answer) -> Page:
    body = answer.json()
    return Page([_item(one) for one in body["items"]], body["cursor"])


def _matches(answer: Answer) -> list[Match]:
    return [
        Match(one["id"], one["score"], one["metadata"], None if one.get("vector") is None else _vector(one["vector"]))
        for one in answer.json()["matches"]
    ]


def _vector(numbers: list[float] | None) -> np.ndarray:
    return np.asarray(numbers or (), np.float32)
