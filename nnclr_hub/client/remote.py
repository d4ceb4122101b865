"""RemoteStore and RemoteCollection: the store of a server, with the methods of `store.base`, which describes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

import numpy as np

from nnclr_hub.client.jobs import RemoteJobs
from nnclr_hub.client.transport import Call, Connection, make_error, to_json
from nnclr_hub.client.uploads import (
    MOST,
    bounded,
    files_of,
    image_error,
    list_folder,
    load,
    own_items,
    patiently,
    send_files,
)
from nnclr_hub.errors import CollectionNotFound, ImageError, InvalidFilter, InvalidRequest, NNCLRHubError
from nnclr_hub.json_text import is_utf8
from nnclr_hub.store.base import (
    DEFAULTS,
    ById,
    Collection,
    Item,
    Match,
    Page,
    Progress,
    SearchOptions,
    VectorStore,
    Where,
)
from nnclr_hub.store.checks import check_collection_name, check_ids, check_items, check_name, described_items
from nnclr_hub.store.edits import check_choice, each_editor, editor
from nnclr_hub.store.facets import Facet, Histogram
from nnclr_hub.store.reports import Change, ChangePage, CollectionInfo, RepairReport, VerifyReport
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.where import parse
from nnclr_hub.workbench.folder_changes import FolderImage, IndexReport, find_changes, warn_of_other_sources
from nnclr_hub.workbench.inspections import KeptInspection, Placements
from nnclr_hub.workbench.payload import decode_vector, encode_vector, image_file
from nnclr_hub.workbench.requests import AddRequest, FolderRequest, NewCollection, NewImage
from nnclr_hub.workbench.search_query import Answer, SearchQuery

API = "/api/v1"
PAGE = 1000
CREATED = 201
READ_AT_ONCE = 200  # items of a request: 2048 numbers each make 5 MB of JSON
WRITTEN_AT_ONCE = 10_000
MOST_IN_ADDRESS = 60_000  # characters; clients and servers of HTTP take 65,536 with the rest
EDITED_AT_ONCE = 5000  # items of a request that has a patch for each
SEARCHES_AT_ONCE = 2  # concurrent requests of one batch of searches
UPLOADS_AT_ONCE = 4  # concurrent requests to index a folder
SMALLEST = 8  # images of a request to index a folder, if there are as many
log = logging.getLogger(__name__)
T = TypeVar("T")


class RemoteCollection(Collection):
    """A collection of a server. The first call fails if it does not exist.

    Many ids or items take several requests, each of which is done for all of its items or for none.

    The limits are those of REST: k and the limit of a page are at most 1000, and a filter of `count` and `scroll` has
    at most 60,000 characters. The server makes thumbnails, decides which keys stay in an edit, and returns percentiles
    with the matches of a search only. A cursor is one of a page before.
    """

    UNCHECKED = ()
    takes_thumbnails = False  # a server makes them from images

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self.name, self._path = connection, name, _path(name)

    def __repr__(self) -> str:
        return f"RemoteCollection({self.name!r}, {self._connection.url!r})"

    def _ask(self, method: str, path: str, read: Callable[[Any], T], **options: Any) -> T:
        return self._connection.send(Call(method, f"{self._path}/{path}".rstrip("/"), **options)).read(read)

    def info(self) -> CollectionInfo:
        """Return the collection's specification, size and state."""
        return self._ask("GET", "", _read_info)

    @cached_property
    def spec(self) -> CollectionSpec:  # type: ignore[override]
        return self.info().spec

    # ---- items

    def upsert(self, items: Sequence[Item], *, fingerprint: str | None = None) -> int:
        """Add or replace items by their vectors; return the number of the last change when all are durable.

        Thumbnails cannot be sent.

        Args:
            fingerprint: fingerprint of the encoder that made the vectors; None: not checked.
        """
        ids, texts = described_items(items)
        for item in items:
            if item.thumbnail is not None:
                raise InvalidRequest(f"Item {item.id!r} has a thumbnail, which a server makes; use add_images instead.")
        if len(set(ids)) < len(ids):  # a request holds each id once, and those that are left out must be valid
            check_items(items, self.spec)
        rows = {
            id: {"id": id, "vector": encode_vector(item.vector), "metadata": json.loads(text)}
            for id, text, item in zip(ids, texts, items, strict=True)
        }
        seq, params = 0, {} if fingerprint is None else {"fingerprint": fingerprint}
        for batch in bounded(rows.values(), lambda row: len(to_json(row)) + 2, most=PAGE):
            seq = self._ask("PUT", "items", lambda body: int(body["seq"]), params=params, json=batch)
        return seq

    def delete(self, ids: Sequence[str] | None = None, *, where: Where | None = None) -> int:
        """Delete items by ids, or those that pass a filter; return how many existed."""
        return sum(
            self._ask("POST", "delete", lambda body: int(body["deleted"]), json=some) for some in _chosen(ids, where)
        )

    def update_metadata(
        self,
        metadata: Mapping[str, Any],
        *,
        ids: Sequence[str] | None = None,
        where: Where | None = None,
        replace: bool = False,
        keep: Sequence[str] = (),
    ) -> int:
        """Change the metadata of items; return how many were found. The server decides which keys stay."""
        editor(metadata, replace=replace)  # a list would become a dict below
        body = {"metadata": dict(metadata), "replace": replace}
        return sum(
            self._ask("PATCH", "items", lambda body: int(body["updated"]), json=some | body)
            for some in _chosen(ids, where)
        )

    def update_each(self, metadata: ById, *, expected: ById | None = None, keep: Sequence[str] = ()) -> int:
        """Change the metadata of items, of each by its own merge patch; return how many were found."""
        each_editor(metadata, expected=expected)
        known, updated = expected or {}, 0
        for ids in bounded(
            metadata, lambda id: len(to_json([id, metadata[id], id, known.get(id, {})])) + 8, most=EDITED_AT_ONCE
        ):
            body = {"each": {id: metadata[id] for id in ids}}
            body |= {"expected": {id: known[id] for id in ids if id in known}} if expected is not None else {}
            updated += self._ask("PATCH", "items", lambda body: int(body["updated"]), json=body)
        return updated

    def get(self, ids: Sequence[str]) -> list[Item]:
        """Return the items of these ids that exist, in the order of the ids, without thumbnails."""
        checked, found = check_ids(ids), []
        for start in range(0, len(checked), READ_AT_ONCE):
            body = {"ids": checked[start : start + READ_AT_ONCE]}
            found += self._ask("POST", "lookup", lambda body: body["items"], json=body)
        return list(map(_read_item, found))

    def count(self, where: Where | None = None) -> int:
        """Return how many items exist, or pass the filter."""
        return self._ask("GET", "count", lambda body: int(body["count"]), params=_in_address(where))

    def facets(
        self, keys: Sequence[str], where: Where | None = None, limit: int = 10, *, bins: int = 10
    ) -> dict[str, Facet]:
        """Return how often the values of metadata keys occur."""
        parse(where)  # the schema of REST refuses what is not an object with another code
        body = {"keys": list(keys), "limit": limit, "bins": bins} | ({} if where is None else {"where": where})
        return self._ask(
            "POST", "facets", lambda body: {one["key"]: _read_facet(one) for one in body["facets"]}, json=body
        )

    def scroll(
        self, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
    ) -> Page:
        """Return a page of items in the order of their ids, without thumbnails."""
        params = {"limit": str(limit), "with_vector": str(with_vector).lower()}
        if cursor is not None:
            if not is_utf8(cursor):
                raise InvalidRequest(f"Invalid cursor {cursor!r:.150}; pass the one from the previous page.")
            params["cursor"] = cursor
        params |= _in_address(where)
        return self._ask(
            "GET", "items", lambda body: Page(list(map(_read_item, body["items"])), body["cursor"]), params=params
        )

    def read_all(self, limit: int = PAGE, *, thumbnails: bool = True) -> Iterator[list[Item]]:
        """Yield all items in the order of their ids, in lists of 1 to `limit`."""
        for items in self.pages(limit=limit):
            jpegs = self.thumbnails([item.id for item in items]) if thumbnails else [None] * len(items)
            yield [replace(item, thumbnail=jpeg) for item, jpeg in zip(items, jpegs, strict=True)]

    def change_indexed(self, keys: Sequence[str]) -> None:
        """Index these metadata keys and no others."""
        self.__dict__.pop("spec", None)
        self._ask("PUT", "indexed", dict, json={"keys": list(keys)})

    def thumbnail(self, id: str) -> bytes:
        """Return the item's JPEG; ItemNotFound is raised if it has none, too."""
        return self._connection.send(Call("GET", f"{self._path}/items/{check_name(id, 'Item id')}/thumbnail")).body

    def thumbnails(self, ids: Sequence[str]) -> list[bytes | None]:
        """Return the JPEG of each item; None for items without one, and for ids that do not exist."""
        found: list[bytes | None] = []
        checked = check_ids(ids)
        for first in range(0, len(checked), MOST):
            some = checked[first : first + MOST]
            body = self._connection.send(Call("POST", f"{self._path}/thumbnails", json={"ids": some})).body
            for _ in some:  # each JPEG is behind its size
                size = int.from_bytes(body[:4], "little")
                found.append(body[4 : 4 + size] or None)
                body = body[4 + size :]
        return found

    # ---- search

    def search(  # type: ignore[override]
        self,
        query: SearchQuery | np.ndarray | None = None,
        k: int = 10,
        where: Where | None = None,
        **options: Any,
    ) -> list[Match]:
        """Return the matches of a query, best first.

        Args:
            query: a complete SearchQuery; or a vector (D,).
            options: the other arguments of `SearchQuery.of`, such as image, id, positive, offset and effort.
        """
        if not isinstance(query, SearchQuery):
            vector = {} if query is None else {"vector": query}
            query = SearchQuery.of(k=k, where=where, **vector, **options)
        if len(query.positive) == 1 and not query.negative and (single := query.positive[0].image) is not None:
            # a single image is sent as a file, which is a third smaller than base64
            fields = {"query": to_json(query.to_json(encode=lambda image: None))}
            return self._ask("POST", "search", _read_matches, files=[("image", image_file(single))], fields=fields)
        return self._ask("POST", "search", _read_matches, json=query.to_json())

    def search_queries(self, queries: Sequence[SearchQuery]) -> list[Answer]:
        """Return the matches of each query, or the error that concerns it alone; many queries per request.

        Raises:
            CollectionNotFound, FingerprintMismatch: nothing was searched.
            RequestTooLarge: a single query is too large.
        """
        bodies = [(i, query.to_json()) for i, query in enumerate(queries)]
        found: list[Answer] = [[] for _ in bodies]

        def search(batch: list[tuple[int, dict[str, Any]]]) -> None:
            body = {"queries": [query for _, query in batch]}
            answers = self._ask("POST", "search/batch", lambda body: body["results"], json=body)
            for (i, _), answer in zip(batch, answers, strict=True):
                error = answer.get("error")
                found[i] = _read_matches(answer) if error is None else make_error(error["code"], error["detail"])

        self._connection.for_each(bounded(bodies, lambda one: len(to_json(one[1])) + 2), search, SEARCHES_AT_ONCE)
        return found

    def nearest(
        self, vectors: Sequence[np.ndarray] | np.ndarray, k: int = 10, options: SearchOptions = DEFAULTS
    ) -> list[list[Match]]:
        """Run `search` for each vector, with the options as one object."""
        answers = self.search_queries([SearchQuery.of(vector=row, k=k, **vars(options)) for row in vectors])
        for answer in answers:
            if isinstance(answer, NNCLRHubError):
                raise answer
        return [answer for answer in answers if not isinstance(answer, NNCLRHubError)]

    search_each = nearest  # the server adds the percentiles

    def percentiles(self, scores: Sequence[float]) -> list[float] | None:
        """Raise InvalidRequest: a server returns percentiles with the matches of a search."""
        refuse("search with `with_percentile` instead")

    random_scores: Any = property(lambda self: self.percentiles(()))  # type: ignore[assignment]

    def random_vectors(self) -> Any:
        """Raise InvalidRequest; see `percentiles`."""
        self.percentiles(())

    vector_changes: Any = random_vectors

    # ---- images

    def add_images(self, images: AddRequest | Sequence[NewImage]) -> list[ImageError | None]:
        """Add images; return one entry per image when those that could be read are durable: None or its error."""
        connection, new = patiently(self._connection), AddRequest.of(images).images
        errors: list[ImageError | None] = [None] * len(new)
        notes = [to_json(one.note()) for one in new]

        def read(body: Any) -> Iterator[ImageError | None]:
            for error in (one.get("error") for one in body["results"]):
                yield None if error is None else image_error(make_error(error["code"], error["detail"]))

        options: Any = {"extra": lambda i: len(notes[i].encode()) + 1}
        options |= {"fields": lambda positions: {"items": f"[{','.join(notes[i] for i in positions)}]"}}
        files = files_of((one.image for one in new), errors)
        send_files(connection, f"{self._path}/items", files, errors, read, **options)
        return errors

    def index_folder(
        self, folder: FolderRequest | str | Path, *, progress: Progress = lambda done, total: None
    ) -> IndexReport:
        """Make the collection, which exists, hold a folder's images; see `Bench.index_folder`."""
        request = FolderRequest.of(folder)
        if request.tiling is not None:
            raise InvalidRequest("Tiles are read from files of this machine; index into a local store.")
        listing = list_folder(request)
        self.info()  # a wrong name is reported before anything is compared
        patient = RemoteCollection(patiently(self._connection), self.name)
        indexed = patient.pages({"must": [{"key": "path", "exists": True}]}, limit=PAGE, with_vector=False)
        held = {item.id: dict(item.metadata) for page in indexed for item in page if "root" in item.metadata}
        known = own_items(self.name, listing, held)
        changes = find_changes(listing, known, prune=request.prune, unique=request.source is not None)
        if request.prune:
            warn_of_other_sources(listing, held, "if they are of this folder, repeat with --source {}")
        done, failed = [0], []

        def send(images: Sequence[FolderImage]) -> None:
            loaded = [(one, load(one, request)) for one in images]
            good = [(one, new) for one, new in loaded if isinstance(new, NewImage)]
            broken = [(one, str(error)) for one, error in loaded if isinstance(error, ImageError)]
            errors = patient.add_images([new for _, new in good])
            broken += [(one, str(error)) for (one, _), error in zip(good, errors, strict=True) if error is not None]
            with lock:  # several workers report progress
                failed.extend(broken)
                done[0] += len(images)
                progress(done[0], len(changes.wanted))

        lock = Lock()
        # requests of similar size, so that a small folder keeps all workers busy, too
        share = min(MOST, max(SMALLEST, -(-len(changes.wanted) // UPLOADS_AT_ONCE)))
        parts = bounded(changes.wanted, lambda one: one.metadata["size"], most=share)
        self._connection.for_each(parts, send, UPLOADS_AT_ONCE)
        patient.update_each(changes.labels)
        removed = patient.delete(changes.gone) if request.prune else 0
        return changes.report(sorted(failed, key=lambda one: one[0].name), removed, listing.left_out)

    # ---- look after

    def changes(self, since: int = 0, limit: int = 1000, *, wait: float = 0.0, log: str | None = None) -> ChangePage:
        """Return what changed after a change. `wait` is at most 30 seconds."""
        params = {"since": str(since), "limit": str(limit), "wait": str(wait)}
        params |= {"log": log} if log is not None else {}

        def read(body: Any) -> ChangePage:
            return ChangePage([Change(**one) for one in body["changes"]], body["next"], body["last"], body["log"])

        return self._ask("GET", "changes", read, params=params)

    def snapshot(self) -> None:
        """Write the index to the server's disk now, so that its next start is fast."""
        self._connection.send(Call("POST", f"{self._path}/snapshot"))

    def verify(self, progress: Progress = lambda done, total: None) -> VerifyReport:
        """Verify the collection in a job, and wait for it; the report has at most 1000 ids of each kind of damage."""
        result = self._done("verify", progress)
        ids = {one: tuple(result[one]) for one in ("damaged", "disagreements", "missing", "parts")}
        return VerifyReport(items=result["items"], recall=result["recall"], **ids)

    def compact(self, progress: Progress = lambda done, total: None) -> None:
        """Rebuild the index without deleted items, in a job, and wait for it."""
        self._done("compact", progress)

    def repair(self, progress: Progress = lambda done, total: None) -> RepairReport:
        """Raise InvalidRequest: the machine of the server keeps what is removed."""
        refuse("run `nnclr store repair` on the machine of the server")

    def _done(self, kind: str, progress: Progress) -> Mapping[str, Any]:
        from nnclr_hub.workbench.maintenance import CollectionRequest

        jobs = RemoteJobs(self._connection)
        return jobs.wait(jobs.start(kind, CollectionRequest(self.name)).id, progress=progress).result or {}

    # ---- inspections

    def inspections(self) -> list[int]:
        """Return the numbers of the inspections that are kept, the newest first."""
        return self._ask("GET", "inspections", lambda body: body["inspections"])

    def inspection(self, number: int | None = None) -> KeptInspection:
        """Return an inspection; without a number, the newest. `is_current` compares it with the collection."""
        known = self._ask("GET", f"inspections/{number or 'latest'}", dict)
        path = f"inspections/{known['number']}"  # another inspection may become the newest
        if known["truncated"]:
            log.warning(
                "the findings of inspection %s of %s are incomplete: %s", known["number"], self.name, known["truncated"]
            )
        ids = self._ask("GET", f"{path}/ids", lambda body: body["ids"])
        arrays: dict[str, Any] = {}
        for values in ("coordinates", "clusters", "outlier_scores", "labels", "predicted"):
            data = self._connection.send(Call("GET", f"{self._path}/{path}/{values}")).body
            arrays[values] = np.frombuffer(data, "<f4" if values in ("coordinates", "outlier_scores") else "<i4")
        arrays["coordinates"] = arrays["coordinates"].reshape(-1, 2)
        said: dict[str, Any] = {key: known[key] for key in ("number", "made", "seq", "findings", "fields_seq")}
        return KeptInspection(collection=self.name, ids=tuple(ids), **arrays, **said)

    def placements(self, number: int | None = None, cursor: str | None = None, limit: int = 1000) -> Placements:
        """Place items that were added after an inspection on its map and in its clusters; see `place_new`.

        Args:
            number: number of the inspection; None: the newest.
            cursor: cursor of the previous answer; None: from the first.
            limit: 1 to 1000.
        """

        def read(body: Any) -> Placements:
            items = body["items"]
            points = np.array([(one["x"], one["y"]) for one in items], np.float32).reshape(-1, 2)
            clusters = np.array([one["cluster"] for one in items], np.int32)
            return Placements(tuple(one["id"] for one in items), points, clusters, body["cursor"])

        params = {"limit": str(limit)} | ({} if cursor is None else {"cursor": cursor})
        return self._ask("GET", f"inspections/{number or 'latest'}/placements", read, params=params)


class RemoteStore(VectorStore):
    """The collections and aliases of a server. Records and promotion stay with the server."""

    read_only = False  # the server refuses writes itself

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def records(self) -> Any:  # type: ignore[override]
        """Raise InvalidRequest: a server keeps its jobs and probes itself."""
        refuse("jobs and probes are read by `Client.jobs` and `Client.probes`")

    def create(self, name: str, spec: CollectionSpec) -> RemoteCollection:
        """Create an empty collection, for the model of the server that the spec names, if it names one."""
        bound = {"model": spec.model} if spec.model else {"dim": spec.dim}
        options: Any = {one: getattr(spec, one) for one in ("metric", "indexed", "index", "precision", "vectors")}
        return self.create_for(name, NewCollection(**bound, **options))

    def create_for(self, name: str, request: NewCollection) -> RemoteCollection:
        """Create an empty collection; raise CollectionExists if it exists."""
        self.refuse_taken(name)  # the server itself accepts the same specification again
        self.put(name, request)
        return self.get(name)

    def put(self, name: str, request: NewCollection) -> bool:
        """Create a collection, unless it exists with this specification; return whether it was created.

        CollectionExists is raised if it has another specification.
        """
        return self._connection.send(Call("PUT", _path(name), json=request.as_json())).status == CREATED

    def get(self, name: str) -> RemoteCollection:
        """Return the collection with that name or alias."""
        info = self._connection.send(Call("GET", self._existing(name))).read(_read_info)
        collection = RemoteCollection(self._connection, info.name)
        collection.spec = info.spec
        return collection

    def drop(self, name: str) -> None:
        """Delete a collection with everything in it, and its aliases."""
        self._connection.send(Call("DELETE", self._existing(name), gone=CollectionNotFound))

    def list(self) -> list[CollectionInfo]:
        """Return the state of each collection, by name."""
        answer = self._connection.send(Call("GET", f"{API}/collections"))
        return answer.read(lambda body: list(map(_read_info, body["collections"])))

    def names(self) -> Sequence[str]:
        """Return the names of the collections, sorted."""
        return [info.name for info in self.list()]

    def alias(self, alias: str, name: str) -> None:
        """Point an alias to a collection, whatever it pointed to before."""
        self._connection.send(Call("PUT", _alias_path(alias), json={"collection": name}))

    def unalias(self, alias: str) -> None:
        """Remove an alias."""
        self._connection.send(Call("DELETE", _alias_path(alias), gone=CollectionNotFound))

    def aliases(self) -> dict[str, str]:
        """Return the names of collections by alias."""
        answer = self._connection.send(Call("GET", f"{API}/aliases"))
        return answer.read(lambda body: {one["alias"]: one["collection"] for one in body["aliases"]})

    def rename(self, name: str, to: str) -> None:
        """Rename a collection; its aliases follow."""
        self._connection.send(Call("PATCH", self._existing(name), json={"name": to}))

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def _existing(self, name: str) -> str:
        """Return the path of a collection; as in every store, one with an invalid name does not exist."""
        try:
            return _path(name)
        except InvalidRequest:
            raise self.not_found(name) from None


# ------------------------------------------------------------------------------ inside


def _path(name: str) -> str:
    return f"{API}/collections/{check_collection_name(name)}"


def _alias_path(alias: str) -> str:
    return f"{API}/aliases/{check_collection_name(alias, 'Alias')}"


def _read_info(body: dict[str, Any]) -> CollectionInfo:
    spec = {one.name: body[one.name] for one in fields(CollectionSpec)}
    known = {one: body[one] for one in ("name", "count", "durable_seq", "indexed_seq", "vectors_seq", "state", "bytes")}
    return CollectionInfo(
        **known, spec=CollectionSpec(**spec), index=body["index_in_use"], recall_estimate=body["recall_estimate"]
    )


def refuse(hint: str) -> NoReturn:
    """Raise the error of an operation that REST does not have."""
    raise InvalidRequest(f"A server does not support this operation; {hint}.")


def _chosen(ids: Sequence[str] | None, where: Where | None) -> Iterator[dict[str, Any]]:
    wanted, _ = check_choice(ids, where)
    if wanted is None:
        yield {"where": where}
        return
    for start in range(0, len(wanted), WRITTEN_AT_ONCE):
        yield {"ids": wanted[start : start + WRITTEN_AT_ONCE]}


def _in_address(where: Where | None) -> dict[str, str]:
    """Return a filter as a parameter of an address, which is short."""
    if where is None:
        return {}
    parse(where)
    text = to_json(where)
    if (length := len(quote(text))) > MOST_IN_ADDRESS:
        raise InvalidFilter(
            f"A server counts and lists by filters of at most {MOST_IN_ADDRESS:,} characters in an address, got "
            f"{length:,}. Name fewer ids, or read the items of ids by `get`."
        )
    return {"where": text}


def _read_item(body: dict[str, Any]) -> Item:
    return Item(body["id"], decode_vector(body.get("vector") or []), body["metadata"])


def _read_matches(body: dict[str, Any]) -> list[Match]:
    return [
        Match(
            one["id"],
            one["score"],
            one["metadata"],
            None if one.get("vector") is None else decode_vector(one["vector"]),
            one.get("percentile"),
        )
        for one in body["matches"]
    ]


def _read_facet(body: dict[str, Any]) -> Facet:
    values = [(pair["value"], pair["count"]) for pair in body["values"]]
    histogram = None if body["histogram"] is None else Histogram(**body["histogram"])
    return Facet(body["key"], body["items"], values, body["distinct"], histogram)
