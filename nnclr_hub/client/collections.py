"""Collections of a server: create, list, write, read, search, and aliases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nnclr_hub.client.answers import make_error
from nnclr_hub.client.images import bounded
from nnclr_hub.client.steps import Answer, Call, Steps, for_each, in_thread, perform, to_json
from nnclr_hub.errors import CollectionNotFound, InvalidRequest, ItemNotFound, NNCLRHubError
from nnclr_hub.store.base import Item, Match, Page, Where
from nnclr_hub.store.checks import check_ids, check_name
from nnclr_hub.store.index_kinds import IndexName
from nnclr_hub.store.reports import Change, ChangePage, CollectionInfo, VerifyReport
from nnclr_hub.store.spec import CollectionSpec, Metric, Precision
from nnclr_hub.workbench.payload import decode_vector, encode_vector, image_file
from nnclr_hub.workbench.search_query import Box, Example, SearchQuery

if TYPE_CHECKING:
    from nnclr_hub.client.images import ImageLike

ROOT = "/api/v1/collections"
PAGE = 1000
ALIASES = "/api/v1/aliases"
ITEMS_AT_ONCE = 8  # concurrent requests for single items
SEARCHES_AT_ONCE = 2  # concurrent requests of one batch of searches
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
    """Create a collection; does nothing if it exists with the same specification.

    Args:
        name: 1 to 128 of A-Z a-z 0-9 . _ ~ -
        model: whose vectors it holds; None: the server's default, or an unknown encoder if `dim` is given.
        dim: length of the vectors, for a collection without a model.
        metric, indexed, index, precision: see `CollectionSpec`.

    Raises:
        CollectionExists: if it exists with another specification.
    """
    body = {"metric": metric, "indexed": list(indexed), "index": index, "precision": precision}
    body |= {key: value for key, value in (("model", model), ("dim", dim)) if value is not None}
    return perform(Call("PUT", _path(name), lambda answer: _info(answer.json()), json=body))


def describe(name: str) -> Steps[CollectionInfo]:
    """Return the collection's specification, size and state.

    Raises:
        CollectionNotFound: names the existing ones.
    """
    return perform(Call("GET", _path(name), lambda answer: _info(answer.json())))


def drop(name: str) -> Steps[None]:
    """Delete the collection with everything in it.

    Raises:
        CollectionNotFound: names the existing ones.
    """
    return perform(Call("DELETE", _path(name), lambda answer: None, gone=CollectionNotFound))


def list_collections() -> Steps[list[CollectionInfo]]:
    """Return the info of each collection, by name."""
    return perform(Call("GET", ROOT, lambda answer: [_info(one) for one in answer.json()["collections"]]))


# ---- one of them


def upsert(name: str, items: Sequence[Item]) -> Steps[int]:
    """Add or replace items by their vectors; return the number of the last change when all are durable.

    Many items take several requests, and each request is stored completely or not at all. Thumbnails cannot be sent.

    Raises:
        InvalidRequest: if an item is invalid; names it.
        DiskFull, StoreReadOnly: this request and those after it were not stored.
    """
    for item in items:
        if item.thumbnail is not None:
            raise InvalidRequest(f"Item {item.id!r} has a thumbnail, which a server makes; use add_images instead.")
    rows = [
        {"id": check_name(item.id, "Item id"), "vector": encode_vector(item.vector), "metadata": dict(item.metadata)}
        for item in items
    ]
    seq = 0
    for batch in bounded(rows, lambda row: len(to_json(row)) + 2, most=PAGE):
        seq = yield from perform(
            Call("PUT", f"{_path(name)}/items", lambda answer: int(answer.json()["seq"]), json=batch)
        )
    return seq


def delete(name: str, ids: Sequence[str]) -> Steps[int]:
    """Delete items; return how many existed."""
    deleted = yield from _each("DELETE", name, ids, lambda answer: True)
    return sum(one is not None for one in deleted)


def get(name: str, ids: Sequence[str]) -> Steps[list[Item]]:
    """Return the items of these ids that exist, in the order of the ids, without thumbnails."""
    found = yield from _each("GET", name, ids, lambda answer: _item(answer.json()))
    return [item for item in found if item is not None]


def thumbnail(name: str, id: str) -> Steps[bytes]:
    """Return the item's JPEG.

    Raises:
        ItemNotFound: if the item does not exist, or has none.
    """
    return perform(
        Call("GET", f"{_path(name)}/items/{check_name(id, 'Item id')}/thumbnail", lambda answer: answer.body)
    )


def count(name: str, where: Where | None = None) -> Steps[int]:
    """Return how many items exist, or pass the filter."""
    params = {"where": to_json(where)} if where is not None else {}
    return perform(Call("GET", f"{_path(name)}/count", lambda answer: int(answer.json()["count"]), params=params))


def scroll(
    name: str, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
) -> Steps[Page]:
    """Return a page of items in the order of their ids, without thumbnails; see `store.base.Collection.scroll`."""
    params = {"limit": str(limit), "with_vector": str(with_vector).lower()}
    params |= {"cursor": cursor} if cursor is not None else {}
    params |= {"where": to_json(where)} if where is not None else {}
    return perform(Call("GET", f"{_path(name)}/items", _page, params=params))


def changes(
    name: str, since: int = 0, limit: int = 1000, *, wait: float = 0.0, log: str | None = None
) -> Steps[ChangePage]:
    """Return what changed after a change; see `store.base.Collection.changes`. `wait` is at most 30 seconds."""
    params = {"since": str(since), "limit": str(limit), "wait": str(wait)}
    params |= {"log": log} if log is not None else {}

    def read(answer: Answer) -> ChangePage:
        body = answer.json()
        return ChangePage([Change(**one) for one in body["changes"]], body["next"], body["last"], body.get("log", ""))

    return perform(Call("GET", f"{_path(name)}/changes", read, params=params))


def snapshot(name: str) -> Steps[None]:
    """Write the index to the server's disk now, so that its next start is fast."""
    return perform(Call("POST", f"{_path(name)}/snapshot", lambda answer: None))


def verify(name: str) -> Steps[VerifyReport]:
    """Make the server read every vector back, and compare its index with an exhaustive search on a sample."""

    def read(answer: Answer) -> VerifyReport:
        body = answer.json()
        ids = {one: tuple(body[one]) for one in ("damaged", "disagreements", "missing")}
        parts = tuple(body.get("parts", ()))  # an earlier server does not send them
        return VerifyReport(items=body["items"], recall=body["recall"], parts=parts, **ids)

    return perform(Call("POST", f"{_path(name)}/verify", read))


# ---- search


def search(
    name: str,
    query: SearchQuery | np.ndarray | None = None,
    k: int = 10,
    where: Where | None = None,
    *,
    vector: np.ndarray | None = None,
    image: ImageLike | None = None,
    box: Box | None = None,
    id: str | None = None,
    positive: Sequence[Example] = (),
    negative: Sequence[Example] = (),
    offset: int = 0,
    exact: bool = False,
    score_threshold: float | None = None,
    with_vector: bool = False,
    effort: int | None = None,
    group_by: str | None = None,
) -> Steps[list[Match]]:
    """Return the matches of a query, best first.

    Args:
        query: a complete SearchQuery; or a vector (D,), with the other fields of `SearchQuery` as arguments.
        vector, image, box, id: the example, if it is a single one.
        positive, negative: several examples; ids, vectors, and images as Path or bytes are accepted as they are.
        k, where, offset, exact, score_threshold, with_vector, effort, group_by: see `SearchQuery`.

    Raises:
        InvalidRequest: the query is invalid for this collection.
        ImageError: an example's image cannot be read.
        CollectionNotFound: the collection does not exist.
        ItemNotFound: an example's id is not in the collection.
        FingerprintMismatch: the encoder that the collection is bound to is unavailable.
    """
    if not isinstance(query, SearchQuery):
        query = SearchQuery.of(
            id=id,
            vector=vector if query is None else query,
            image=image,
            box=box,
            positive=positive,
            negative=negative,
            k=k,
            offset=offset,
            where=where,
            exact=exact,
            score_threshold=score_threshold,
            with_vector=with_vector,
            effort=effort,
            group_by=group_by,
        )
    path = f"{_path(name)}/search"
    if len(query.positive) == 1 and not query.negative and (single := query.positive[0].image) is not None:
        # a single image is sent as a file, which is a third smaller than base64
        file = yield from in_thread(lambda: image_file(single))
        body = query.to_json(encode=lambda image: None)
        return (
            yield from perform(Call("POST", path, _found, files=[("image", file)], fields={"query": to_json(body)}))
        )
    body = yield from in_thread(query.to_json)
    return (yield from perform(Call("POST", path, _found, json=body)))


def search_each(name: str, queries: Sequence[SearchQuery]) -> Steps[list[list[Match] | NNCLRHubError]]:
    """Return the matches of each query, or the error that concerns it alone; many queries per request.

    Raises:
        CollectionNotFound, FingerprintMismatch: nothing was searched.
        NotReady, Overloaded, DeadlineExceeded: the server did not answer in time.
        RequestTooLarge: a single query is too large.
    """
    path = f"{_path(name)}/search/batch"
    bodies = yield from in_thread(lambda: list(enumerate(query.to_json() for query in queries)))
    found: list[list[Match] | NNCLRHubError] = [[] for _ in bodies]

    def send(batch: list[tuple[int, dict[str, Any]]]) -> Steps[None]:
        body = {"queries": [query for _, query in batch]}
        answers = yield from perform(Call("POST", path, lambda answer: answer.json()["results"], json=body))
        for (i, _), answer in zip(batch, answers, strict=True):
            error = answer.get("error")
            found[i] = _matches(answer["matches"]) if error is None else make_error(error["code"], error["detail"])

    yield from for_each(bounded(bodies, lambda one: len(to_json(one[1])) + 2), send, SEARCHES_AT_ONCE)
    return found


def search_batch(
    name: str,
    vectors: np.ndarray,
    k: int = 10,
    where: Where | None = None,
    *,
    exact: bool = False,
    score_threshold: float | None = None,
    with_vector: bool = False,
    effort: int | None = None,
) -> Steps[list[list[Match]]]:
    """Run `search` for each row of vectors (n, D), with the same options.

    Raises:
        InvalidRequest: a vector or an option is invalid.
        CollectionNotFound: the collection does not exist.
        FingerprintMismatch: the encoder that the collection is bound to is unavailable.
    """
    queries = [
        SearchQuery.of(
            vector=row,
            k=k,
            where=where,
            exact=exact,
            score_threshold=score_threshold,
            with_vector=with_vector,
            effort=effort,
        )
        for row in np.asarray(vectors)
    ]
    answers = yield from search_each(name, queries)
    for answer in answers:
        if isinstance(answer, NNCLRHubError):
            raise answer
    return [answer for answer in answers if not isinstance(answer, NNCLRHubError)]


# ---- aliases


def point_alias(alias: str, collection: str) -> Steps[None]:
    """Point an alias to a collection, atomically, whatever it pointed to before.

    Raises:
        CollectionNotFound: names the existing collections.
        CollectionExists: if a collection has that name.
    """
    return perform(Call("PUT", _alias_path(alias), lambda answer: None, json={"collection": collection}))


def list_aliases() -> Steps[dict[str, str]]:
    """Return the names of collections by alias."""

    def read(answer: Answer) -> dict[str, str]:
        return {one["alias"]: one["collection"] for one in answer.json()["aliases"]}

    return perform(Call("GET", ALIASES, read))


def forget_alias(alias: str) -> Steps[None]:
    """Delete an alias; its collection stays.

    Raises:
        CollectionNotFound: if there is no such alias.
    """
    return perform(Call("DELETE", _alias_path(alias), lambda answer: None, gone=CollectionNotFound))


# ---- inside


def _path(name: str) -> str:
    return f"{ROOT}/{check_name(name, 'Collection name')}"


def _each(method: str, name: str, ids: Sequence[str], read: Callable[[Answer], T]) -> Steps[list[T | None]]:
    """Return the result for each item in the order of the ids; None for items that do not exist."""
    checked = check_ids(ids)
    found: list[T | None] = [None] * len(checked)

    def one(job: tuple[int, str]) -> Steps[None]:
        gone = ItemNotFound if method == "DELETE" else None
        try:
            found[job[0]] = yield from perform(Call(method, f"{_path(name)}/items/{job[1]}", read, gone=gone))
        except ItemNotFound:
            return

    yield from for_each(enumerate(checked), one, ITEMS_AT_ONCE)
    return found


def _info(body: dict[str, Any]) -> CollectionInfo:
    spec = {one.name: body[one.name] for one in fields(CollectionSpec)}
    about = {one: body[one] for one in ("name", "count", "durable_seq", "indexed_seq", "state")}
    return CollectionInfo(**about, spec=CollectionSpec(**spec), index=body["index_in_use"])


def _item(body: dict[str, Any]) -> Item:
    return Item(body["id"], decode_vector(body.get("vector") or []), body["metadata"])


def _page(answer: Answer) -> Page:
    body = answer.json()
    return Page([_item(one) for one in body["items"]], body["cursor"])


def _alias_path(alias: str) -> str:
    return f"{ALIASES}/{check_name(alias, 'Alias')}"


def _found(answer: Answer) -> list[Match]:
    return _matches(answer.json()["matches"])


def _matches(body: list[dict[str, Any]]) -> list[Match]:
    return [
        Match(
            one["id"],
            one["score"],
            one["metadata"],
            None if one.get("vector") is None else decode_vector(one["vector"]),
        )
        for one in body
    ]
