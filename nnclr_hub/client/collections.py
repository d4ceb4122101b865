"""Collections of a server: create, list, write, read, search, and aliases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from nnclr_hub.client.images import bounded
from nnclr_hub.client.steps import Answer, Call, Steps, perform, to_json
from nnclr_hub.errors import CollectionNotFound, InvalidRequest
from nnclr_hub.store.base import ById, Item, Page, Where
from nnclr_hub.store.checks import check_collection_name, check_ids, check_name
from nnclr_hub.store.edits import check_choice, each_editor, editor
from nnclr_hub.store.facets import Facet, Histogram
from nnclr_hub.store.reports import Change, ChangePage, CollectionInfo, VerifyReport
from nnclr_hub.store.spec import CollectionSpec, Compared, IndexName, Metric, Precision
from nnclr_hub.workbench.payload import decode_vector, encode_vector

ROOT = "/api/v1/collections"
PAGE = 1000
ALIASES = "/api/v1/aliases"
READ_AT_ONCE = 200  # items of a request: 2048 numbers each make 5 MB of JSON
WRITTEN_AT_ONCE = 10_000
EDITED_AT_ONCE = 5000  # items of a request that has a patch for each
THUMBNAILS_AT_ONCE = 64

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
    vectors: Compared = "auto",
) -> Steps[CollectionInfo]:
    """Create a collection; does nothing if it exists with the same specification.

    Args:
        name: 1 to 128 of A-Z a-z 0-9 . _ ~ -
        model: whose vectors it holds; None: the server's default, or an unknown encoder if `dim` is given.
        dim: length of the vectors, for a collection without a model.
        metric, indexed, index, precision, vectors: see `CollectionSpec`.

    Raises:
        CollectionExists: if it exists with another specification.
    """
    body = {"metric": metric, "indexed": list(indexed), "index": index, "precision": precision, "vectors": vectors}
    body |= {key: value for key, value in (("model", model), ("dim", dim)) if value is not None}
    return perform(Call("PUT", path_of(name), lambda answer: _info(answer.json()), json=body))


def describe(name: str) -> Steps[CollectionInfo]:
    """Return the collection's specification, size and state.

    Raises:
        CollectionNotFound: names the existing ones.
    """
    return perform(Call("GET", path_of(name), lambda answer: _info(answer.json())))


def drop(name: str) -> Steps[None]:
    """Delete the collection with everything in it.

    Raises:
        CollectionNotFound: names the existing ones.
    """
    return perform(Call("DELETE", path_of(name), lambda answer: None, gone=CollectionNotFound))


def list_collections() -> Steps[list[CollectionInfo]]:
    """Return the info of each collection, by name."""
    return perform(Call("GET", ROOT, lambda answer: [_info(one) for one in answer.json()["collections"]]))


# ---- one of them


def upsert(name: str, items: Sequence[Item], *, fingerprint: str | None = None) -> Steps[int]:
    """Add or replace items by their vectors; return the number of the last change when all are durable.

    Many items take several requests, and each request is stored completely or not at all. Thumbnails cannot be sent.

    Args:
        fingerprint: fingerprint of the encoder that made the vectors; None: not checked.

    Raises:
        InvalidRequest: if an item is invalid; names it.
        FingerprintMismatch: the collection holds vectors of another encoder, such as after a re-embedding.
        DiskFull, StoreReadOnly: this request and those after it were not stored.
    """
    for item in items:
        if item.thumbnail is not None:
            raise InvalidRequest(f"Item {item.id!r} has a thumbnail, which a server makes; use add_images instead.")
    rows = [
        {"id": check_name(item.id, "Item id"), "vector": encode_vector(item.vector), "metadata": dict(item.metadata)}
        for item in items
    ]
    seq, params = 0, {} if fingerprint is None else {"fingerprint": fingerprint}
    for batch in bounded(rows, lambda row: len(to_json(row)) + 2, most=PAGE):
        seq = yield from perform(
            Call("PUT", f"{path_of(name)}/items", lambda answer: int(answer.json()["seq"]), params, json=batch)
        )
    return seq


def delete(name: str, ids: Sequence[str] | None = None, *, where: Where | None = None) -> Steps[int]:
    """Delete items by ids, or those that pass a filter; return how many existed.

    Many ids take several requests, each of which deletes all of its items or none.
    """
    deleted = 0
    for chosen in _chosen(ids, where):
        call = Call("POST", f"{path_of(name)}/delete", lambda answer: int(answer.json()["deleted"]), json=chosen)
        deleted += yield from perform(call)
    return deleted


def update_metadata(
    name: str,
    metadata: Mapping[str, Any],
    *,
    ids: Sequence[str] | None = None,
    where: Where | None = None,
    replace: bool = False,
) -> Steps[int]:
    """Change the metadata of items; return how many were found. See `store.base.Collection.update_metadata`.

    Many ids take several requests, each of which changes all of its items or none.
    """
    editor(metadata, replace=replace)  # a list would become a dict below
    updated = 0
    for chosen in _chosen(ids, where):
        body = chosen | {"metadata": dict(metadata), "replace": replace}
        call = Call("PATCH", f"{path_of(name)}/items", lambda answer: int(answer.json()["updated"]), json=body)
        updated += yield from perform(call)
    return updated


def update_each(name: str, metadata: ById, *, expected: ById | None = None) -> Steps[int]:
    """Change the metadata of items, of each by its own merge patch; return how many were found.

    Many items take several requests, each of which changes all of its items or none. See
    `store.base.Collection.update_each`.

    Raises:
        InvalidRequest: an id or a patch is not valid, and nothing was changed; or the metadata of an item would be too
            large.
        MetadataConflict: an item does not have the expected values; its request changed nothing.
    """
    each_editor(metadata, expected=expected)
    known = expected or {}
    updated = 0
    for ids in bounded(
        metadata, lambda id: len(to_json([id, metadata[id], id, known.get(id, {})])) + 8, most=EDITED_AT_ONCE
    ):
        body = {"each": {id: metadata[id] for id in ids}}
        body |= {"expected": {id: known[id] for id in ids if id in known}} if expected is not None else {}
        call = Call("PATCH", f"{path_of(name)}/items", lambda answer: int(answer.json()["updated"]), json=body)
        updated += yield from perform(call)
    return updated


def get(name: str, ids: Sequence[str]) -> Steps[list[Item]]:
    """Return the items of these ids that exist, in the order of the ids, without thumbnails."""
    checked, found = check_ids(ids), []
    for start in range(0, len(checked), READ_AT_ONCE):
        body = {"ids": checked[start : start + READ_AT_ONCE]}
        call = Call("POST", f"{path_of(name)}/lookup", lambda answer: answer.json()["items"], json=body)
        found += yield from perform(call)
    return [_item(one) for one in found]


def facets(
    name: str, keys: Sequence[str], where: Where | None = None, limit: int = 10, *, bins: int = 10
) -> Steps[dict[str, Facet]]:
    """Return how often the values of metadata keys occur; see `store.base.Collection.facets`."""
    body = {"keys": list(keys), "limit": limit, "bins": bins} | ({} if where is None else {"where": dict(where)})
    return perform(Call("POST", f"{path_of(name)}/facets", _facets, json=body))


def change_indexed(name: str, keys: Sequence[str]) -> Steps[CollectionInfo]:
    """Index these metadata keys and no others; return the collection's state."""
    return perform(
        Call("PUT", f"{path_of(name)}/indexed", lambda answer: _info(answer.json()), json={"keys": list(keys)})
    )


def thumbnail(name: str, id: str) -> Steps[bytes]:
    """Return the item's JPEG.

    Raises:
        ItemNotFound: if the item does not exist, or has none.
    """
    return perform(
        Call("GET", f"{path_of(name)}/items/{check_name(id, 'Item id')}/thumbnail", lambda answer: answer.body)
    )


def thumbnails(name: str, ids: Sequence[str]) -> Steps[list[bytes | None]]:
    """Return the JPEG of each item; None for items without one, and for ids that do not exist."""
    found: list[bytes | None] = []
    checked = check_ids(ids)
    for first in range(0, len(checked), THUMBNAILS_AT_ONCE):
        some = checked[first : first + THUMBNAILS_AT_ONCE]
        call = Call("POST", f"{path_of(name)}/thumbnails", lambda answer: answer.body, json={"ids": some})
        body, start = (yield from perform(call)), 0
        for _ in some:
            end = start + 4 + int.from_bytes(body[start : start + 4], "little")
            found.append(body[start + 4 : end] or None)
            start = end
    return found


def count(name: str, where: Where | None = None) -> Steps[int]:
    """Return how many items exist, or pass the filter."""
    params = {"where": to_json(where)} if where is not None else {}
    return perform(Call("GET", f"{path_of(name)}/count", lambda answer: int(answer.json()["count"]), params=params))


def scroll(
    name: str, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
) -> Steps[Page]:
    """Return a page of items in the order of their ids, without thumbnails; see `store.base.Collection.scroll`."""
    params = {"limit": str(limit), "with_vector": str(with_vector).lower()}
    params |= {"cursor": cursor} if cursor is not None else {}
    params |= {"where": to_json(where)} if where is not None else {}
    return perform(Call("GET", f"{path_of(name)}/items", _page, params=params))


def changes(
    name: str, since: int = 0, limit: int = 1000, *, wait: float = 0.0, log: str | None = None
) -> Steps[ChangePage]:
    """Return what changed after a change; see `store.base.Collection.changes`. `wait` is at most 30 seconds."""
    params = {"since": str(since), "limit": str(limit), "wait": str(wait)}
    params |= {"log": log} if log is not None else {}

    def read(answer: Answer) -> ChangePage:
        body = answer.json()
        return ChangePage([Change(**one) for one in body["changes"]], body["next"], body["last"], body["log"])

    return perform(Call("GET", f"{path_of(name)}/changes", read, params=params))


def snapshot(name: str) -> Steps[None]:
    """Write the index to the server's disk now, so that its next start is fast."""
    return perform(Call("POST", f"{path_of(name)}/snapshot", lambda answer: None))


def verify(name: str) -> Steps[VerifyReport]:
    """Make the server read every vector back, and compare its index with an exhaustive search on a sample.

    A large collection takes longer than a request may; start a job with `start_verify` instead.
    """
    return perform(Call("POST", f"{path_of(name)}/verify", lambda answer: read_report(answer.json())))


def read_report(body: Mapping[str, Any]) -> VerifyReport:
    """Return the report in a response, or in the result of a job."""
    ids = {one: tuple(body[one]) for one in ("damaged", "disagreements", "missing", "parts")}
    return VerifyReport(items=body["items"], recall=body["recall"], **ids)


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


def path_of(name: str) -> str:
    """Return the path of a collection on the server."""
    return f"{ROOT}/{check_collection_name(name)}"


def _chosen(ids: Sequence[str] | None, where: Where | None) -> Iterator[dict[str, Any]]:
    """Yield what chooses the items in the bodies of as many requests as it takes."""
    wanted, _ = check_choice(ids, where)
    if wanted is None:
        yield {"where": dict(where or {})}
        return
    for start in range(0, len(wanted), WRITTEN_AT_ONCE):
        yield {"ids": wanted[start : start + WRITTEN_AT_ONCE]}


def _facets(answer: Answer) -> dict[str, Facet]:
    return {
        one["key"]: Facet(
            one["key"],
            one["items"],
            [(pair["value"], pair["count"]) for pair in one["values"]],
            one["distinct"],
            None if one["histogram"] is None else Histogram(**one["histogram"]),
        )
        for one in answer.json()["facets"]
    }


def _info(body: dict[str, Any]) -> CollectionInfo:
    spec = {one.name: body[one.name] for one in fields(CollectionSpec)}
    about = {one: body[one] for one in ("name", "count", "durable_seq", "indexed_seq", "vectors_seq", "state")}
    return CollectionInfo(
        **about, spec=CollectionSpec(**spec), index=body["index_in_use"], recall_estimate=body["recall_estimate"]
    )


def _item(body: dict[str, Any]) -> Item:
    return Item(body["id"], decode_vector(body.get("vector") or []), body["metadata"])


def _page(answer: Answer) -> Page:
    body = answer.json()
    return Page([_item(one) for one in body["items"]], body["cursor"])


def _alias_path(alias: str) -> str:
    return f"{ALIASES}/{check_collection_name(alias, 'Alias')}"
