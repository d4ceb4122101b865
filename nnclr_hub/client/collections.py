"""Collections: the store's verbs and those of one collection, asked of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from nnclr_hub.client.pictures import MOST_BYTES
from nnclr_hub.client.steps import Answer, Call, Steps, ask, spread, to_json
from nnclr_hub.client.vectors import read_vector, vector_text
from nnclr_hub.errors import CollectionNotFound, InvalidRequest, ItemNotFound
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import CollectionInfo, Item, Page, VerifyReport, Where
from nnclr_hub.store.checks import check_ids, check_name
from nnclr_hub.store.index_kinds import IndexName
from nnclr_hub.store.spec import CollectionSpec, Metric, Precision

ROOT = "/api/v1/collections"
PAGE = 1000
AT_ONCE = 8  # requests for single items
T = TypeVar("T")

# ---- all of them


def create(
    name: str,
    *,
    model: str | None = None,
    dim: int | None = None,
    metric: Metric = "cosine",
    indexed: Sequence[str] = ("label",),
    index: IndexName = "auto",
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
            raise InvalidRequest(f"Item {item.id!r} has a thumbnail, which a server makes itself: send its image.")
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
    deleted = yield from _each("DELETE", name, ids, lambda answer: True)
    return sum(one is not None for one in deleted)


def get(name: str, ids: Sequence[str]) -> Steps[list[Item]]:
    """The items of these ids that exist, in the order asked for, without thumbnails."""
    found = yield from _each("GET", name, ids, lambda answer: _item(answer.json()))
    return [item for item in found if item is not None]


def thumbnail(name: str, id: str) -> Steps[bytes]:
    """The item's JPEG.

    Raises:
        ItemNotFound: no such item, or it has none.
    """
    return ask(Call("GET", f"{_path(name)}/items/{check_name(id, 'Item id')}/thumbnail", lambda answer: answer.body))


def count(name: str, where: Where | None = None) -> Steps[int]:
    """How many items there are, or pass the filter."""
    params = {"where": to_json(where)} if where is not None else {}
    return ask(Call("GET", f"{_path(name)}/count", lambda answer: int(answer.json()["count"]), params=params))


def scroll(
    name: str, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
) -> Steps[Page]:
    """Items in the order of their ids, without thumbnails; see `store.base.Collection.scroll`."""
    params = {"limit": str(limit), "with_vector": str(with_vector).lower()}
    params |= {"cursor": cursor} if cursor is not None else {}
    params |= {"where": to_json(where)} if where is not None else {}
    return ask(Call("GET", f"{_path(name)}/items", _page, params=params))


def snapshot(name: str) -> Steps[None]:
    """Writes the index to the server's disk now, so that its next start is quick."""
    return ask(Call("POST", f"{_path(name)}/snapshot", lambda answer: None))


def verify(name: str) -> Steps[VerifyReport]:
    """Has the server read every vector back, and compare its index with an exhaustive search on a sample."""

    def read(answer: Answer) -> VerifyReport:
        body = answer.json()
        ids = {one: tuple(body[one]) for one in ("damaged", "disagreements", "missing")}
        return VerifyReport(items=body["items"], recall=body["recall"], **ids)

    return ask(Call("POST", f"{_path(name)}/verify", read))


# ---- inside


def _path(name: str) -> str:
    return f"{ROOT}/{check_name(name, 'Collection name')}"


def _each(method: str, name: str, ids: Sequence[str], read: Callable[[Answer], T]) -> Steps[list[T | None]]:
    """What becomes of each item, in the order of the ids; None where there is none."""
    asked = check_ids(ids)
    found: list[T | None] = [None] * len(asked)

    def one(job: tuple[int, str]) -> Steps[None]:
        gone = ItemNotFound if method == "DELETE" else None
        try:
            found[job[0]] = yield from ask(Call(method, f"{_path(name)}/items/{job[1]}", read, gone=gone))
        except ItemNotFound:
            return

    yield from spread(enumerate(asked), one, AT_ONCE)
    return found


def _batches(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    return batches(rows, PAGE, lambda row: len(to_json(row)) + 2, MOST_BYTES)


def _info(body: dict[str, Any]) -> CollectionInfo:
    spec = {one.name: body[one.name] for one in fields(CollectionSpec)}
    about = {one: body[one] for one in ("name", "count", "durable_seq", "indexed_seq", "state")}
    return CollectionInfo(**about, spec=CollectionSpec(**spec), index=body["index_in_use"])


def _item(body: dict[str, Any]) -> Item:
    return Item(body["id"], read_vector(body.get("vector")), body["metadata"])


def _page(answer: Answer) -> Page:
    body = answer.json()
    return Page([_item(one) for one in body["items"]], body["cursor"])
