"""/api/v1/collections: create, describe, rename, drop, count, snapshot and copy, and follow changes.

/api/v1/aliases: alternative names.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from nnclr_hub.errors import CollectionExists, CollectionNotFound
from nnclr_hub.hub.sources import split_reading
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.store.checks import MAX_LIMIT
from nnclr_hub.store.index_kinds import AUTO
from nnclr_hub.store.reports import CollectionInfo
from nnclr_hub.store.spec import Compared
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.label_keys import KEYS, LabelKeys, read_label_keys, write_label_keys
from nnclr_hub.workbench.privacy import public_name, without_paths
from nnclr_hub.workbench.requests import NewCollection

from ..access import READ, WRITE
from ..answers import PartsResponse, encoded
from ..limits import current_budget
from ..models import note_changes
from ..telemetry import measured
from .router import FAILED_WRITE, Here, Parts, Router, source_with_reading
from .schemas import (
    FIRST_WRONG,
    CollectionName,
    IndexedKey,
    Name,
    Strict,
    WhereText,
    described,
    read_where,
    schema_of,
)

MAX_WAIT = 30.0  # seconds; clients and proxies close connections that are silent for a minute
WAIT_SHARE = 0.8  # share of a request's deadline
POLL_SECONDS = 0.1
POLLS_PER_SECOND = 200  # by all waiting clients together: more clients wait longer between their polls
MAX_COPIED = 1000  # items with their vectors and thumbnails, in memory


_VECTORS = (
    "what searches compare: stored vectors, or these centered, half whitened or whitened; auto: half_whiten if they "
    "are of a model and the store can do it"
)


class CollectionRequest(
    schema_of(
        NewCollection,
        indexed=Annotated[list[IndexedKey], FIRST_WRONG],
        vectors=Annotated[Compared, described(_VECTORS)],
    )
):
    """A new collection. Without dim, it is bound to the vectors of `model`."""


class CollectionResponse(BaseModel):
    name: str
    dim: int
    metric: str
    model: str
    fingerprint: str
    indexed: list[str]
    index: str
    precision: str
    vectors: str
    count: int
    durable_seq: int
    indexed_seq: int
    vectors_seq: int = Field(
        description="number of the last change that stored or deleted items; later ones edited metadata only"
    )
    bytes: int | None = Field(None, description="size of the collection's file; null if unknown, as for Milvus")
    state: str
    index_in_use: str
    recall_estimate: float | None = Field(
        None, description="share of the ten nearest items that searches find, by a sample; null if unknown"
    )


class CollectionsResponse(BaseModel):
    collections: list[CollectionResponse]


class CountResponse(BaseModel):
    count: int


class RenameRequest(Strict):
    name: CollectionName


class CopyRequest(Strict):
    """Items to copy with their vectors, metadata and thumbnails."""

    to: CollectionName
    ids: Annotated[list[Name], FIRST_WRONG] = Field(max_length=MAX_COPIED)
    move: bool = Field(False, description="delete the items from this collection afterwards")


class CopyResponse(BaseModel):
    copied: int = Field(description="number of items that existed")


LabelOfKey = StrictBool | StrictInt | StrictFloat | Annotated[StrictStr, Field(max_length=1000)] | None


class LabelKeysRequest(Strict):
    """The metadata key that is labeled, and the labels of the keys 1 to 9; null: the key gives no label."""

    field: IndexedKey = "label"
    labels: list[LabelOfKey] = Field(max_length=KEYS)
    expected: list[LabelOfKey] | None = Field(
        None, description="the labels before; 409 if somebody else has changed them", max_length=KEYS
    )


class LabelKeysResponse(BaseModel):
    field: str
    labels: list[LabelOfKey]


class AliasRequest(Strict):
    collection: CollectionName


class AliasResponse(BaseModel):
    alias: str
    collection: str


class AliasesResponse(BaseModel):
    aliases: list[AliasResponse]


class ChangeResponse(Strict):
    """One change of an item; GET items/{id} returns its content."""

    seq: int = Field(description="number of the change")
    op: Literal["upsert", "delete"]
    id: str
    commit: int = Field(description="number of the last change of the same commit; a request is always in one commit")
    at: float = Field(description="time of the commit, seconds since 1970")


class ChangesResponse(Strict):
    """Part of the log of changes."""

    changes: list[ChangeResponse]
    next: int = Field(description="pass it as `since` to continue")
    last: int = Field(description="number of the collection's last change")
    log: str = Field("", description="the log that the numbers belong to; pass it with `since`")


router = Router(prefix="/api/v1/collections", tags=["collections"], stage="store")
MISSING = "collection_not_found"


@router.on("GET", "", READ)
def list_collections(here: Here) -> CollectionsResponse:
    """List all collections by name."""
    return CollectionsResponse(collections=[response_of(info) for info in here.workbench.store.list()])


@router.on(
    *("PUT", "/{name}", WRITE, f"collection_exists unknown_model model_error {FAILED_WRITE}"),
    responses={201: {"model": CollectionResponse, "description": "The collection was created."}},
)
async def create(name: str, body: CollectionRequest, response: Response, here: Here) -> CollectionResponse:
    """Create a collection (201). If it exists with the same specification, `indexed` aside, nothing changes (200)."""
    info, created = await run_in_threadpool(_create, here, name, body)
    response.status_code = 201 if created else 200
    return response_of(info)


@router.on("GET", "/{name}", READ, MISSING)
def describe(name: str, here: Here) -> CollectionResponse:
    """Describe a collection, by its name or an alias."""
    return response_of(here.workbench.collection(name).info())


@router.on("DELETE", "/{name}", WRITE, f"{MISSING} {FAILED_WRITE}", status_code=204)
def drop(name: str, here: Here) -> None:
    """Delete a collection with all its items, and the aliases that point to it."""
    here.workbench.drop(name)


@router.on("PATCH", "/{name}", WRITE, f"collection_exists {MISSING} {FAILED_WRITE}")
def rename(name: str, body: RenameRequest, here: Here) -> CollectionResponse:
    """Rename a collection. Its aliases and inspections follow."""
    bench = here.workbench
    bench.rename(name, body.name)
    return response_of(bench.collection(body.name).info())


@router.on("GET", "/{name}/label-keys", READ, f"{MISSING} invalid_filter")
def label_keys(
    name: str,
    here: Here,
    field: Annotated[str | None, Query(min_length=1, max_length=128, description="another metadata key")] = None,
) -> LabelKeysResponse:
    """Return the metadata key that people label, and the labels that the keys 1 to 9 give."""
    keys = read_label_keys(here.workbench.store.records, here.workbench.collection(name).name, field)
    return LabelKeysResponse(field=keys.field, labels=list(keys.labels))


@router.on("PUT", "/{name}/label-keys", WRITE, f"metadata_conflict {MISSING} invalid_filter {FAILED_WRITE}")
def set_label_keys(name: str, body: LabelKeysRequest, here: Here) -> LabelKeysResponse:
    """Set them, for everybody who labels the collection."""
    keys, expected = LabelKeys(body.field, tuple(body.labels)), None if body.expected is None else tuple(body.expected)
    write_label_keys(here.workbench.store.records, here.workbench.collection(name).name, keys, expected)
    return LabelKeysResponse(field=keys.field, labels=list(keys.labels))


@router.on("GET", "/{name}/count", READ, f"{MISSING} invalid_filter")
def count(name: str, here: Here, where: WhereText = None) -> CountResponse:
    """Count the items, or the items that match a filter."""
    condition = read_where(where)
    collection = here.workbench.collection(name)
    here.answers.open()
    return CountResponse(count=collection.count(condition))


@router.on("POST", "/{name}/snapshot", WRITE, f"{MISSING} {FAILED_WRITE}", status_code=204)
async def snapshot(name: str, here: Here) -> None:
    """Write the index to disk now, so that the next start is fast."""
    with measured("store"):
        await to_thread.run_sync(lambda: here.workbench.collection(name).snapshot(), limiter=here.long_threads)


@router.on("POST", "/{name}/copy", WRITE, f"fingerprint_mismatch {MISSING} {FAILED_WRITE}")
def copy_items(name: str, body: CopyRequest, here: Here) -> CopyResponse:
    """Copy or move items to another collection of the same encoder. Items with the same ids are replaced there."""
    bench = here.workbench
    source, target = bench.collection(name), bench.collection(body.to)
    copied = bench.copy_items(source.name, target.name, body.ids, move=body.move)
    if copied and target.name != source.name:
        note_changes(bench, target.name, copied)
        note_changes(bench, source.name, copied if body.move else 0)
    return CopyResponse(copied=copied)


@router.on(
    *("GET", "/{name}/changes", READ, f"{MISSING} changes_unavailable answer_too_large"),
    response_model=ChangesResponse,
)
async def changes(
    request: Request,
    name: str,
    here: Here,
    since: Annotated[int, Query(ge=0, description="number of the last change that is known; 0: from the first")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 1000,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, description="seconds to wait for a change")] = 0.0,
    log: Annotated[str | None, Query(max_length=64, description="`log` of the answer that `since` is from")] = None,
) -> Response:
    """List what changed after a change, in order; with `wait`, wait for the next one (long poll).

    410 if the log does not reach back to `since`, or is not `log`: read all items, then continue after `last`.
    """

    def has_changes() -> bool:
        return here.workbench.collection(name).changes(since, 1, log=log).next > since

    def answer() -> Response:
        encoder = here.answers.open()
        page = here.workbench.collection(name).changes(since, limit, log=log)
        rest = encoded({field: getattr(page, field) for field in ("next", "last", "log")})
        return PartsResponse([b'{"changes":', *encoder.list(vars(one) for one in page.changes), b",", rest[1:]])

    until = time.monotonic() + min(wait, WAIT_SHARE * current_budget().seconds)
    waiting = here.waiting_for_changes
    waiting.add(request)
    try:
        # neither a thread nor a permit is held while it waits
        while (left := until - time.monotonic()) > 0 and not await run_in_threadpool(has_changes):
            await asyncio.sleep(min(max(POLL_SECONDS, len(waiting) / POLLS_PER_SECOND), left))
    finally:
        waiting.discard(request)
    return await to_thread.run_sync(answer, limiter=here.search_threads)


def response_of(info: CollectionInfo) -> CollectionResponse:
    """Return the JSON of a collection's state."""
    spec = asdict(info.spec) | {"model": public_name(info.spec.model) if info.spec.model else ""}
    names = ("name", "count", "durable_seq", "indexed_seq", "vectors_seq", "bytes")
    about = {name: getattr(info, name) for name in names}
    return CollectionResponse(
        **spec, **about, state=without_paths(info.state), index_in_use=info.index, recall_estimate=info.recall_estimate
    )


_counting = threading.Lock()  # between the count of readings and the collection that adds one


def _create(here: Parts, name: str, body: CollectionRequest) -> tuple[CollectionInfo, bool]:
    """Create a collection, or return the one that exists, and whether it was created."""
    with _counting if split_reading(body.model or "")[1] else nullcontext():
        request = NewCollection(**dict(body))

        def embedder(source: str | None) -> Any:
            return here.engines.get(source_with_reading(here.engines, here.workbench, source))

        spec = request.spec(embedder)
        with measured("store"):
            return _create_or_compare(here.workbench, name, spec)


def _create_or_compare(bench: Workbench, name: str, spec: CollectionSpec) -> tuple[CollectionInfo, bool]:
    try:
        existing = bench.collection(name)
    except CollectionNotFound:
        with suppress(CollectionExists):
            return bench.store.create(name, spec).info(), True
        existing = bench.collection(name)  # another request created it just now
    # which keys are indexed can change at any time, and "auto" is content with what an existing collection compares
    vectors = spec.vectors if spec.vectors == AUTO else existing.spec.vectors
    there = vars(replace(existing.spec, indexed=spec.indexed, vectors=vectors))
    if other := [field for field, value in vars(spec).items() if value != there[field]]:
        raise CollectionExists(
            f"Collection {name!r} exists with another {' and another '.join(other)}; choose another name."
        )
    return existing.info(), False


# ---- aliases; the ids of operations are published, and generated clients are named after them

aliases = Router(prefix="/api/v1/aliases", tags=["aliases"], stage="store")


@aliases.on("GET", "", READ)
def list_aliases(here: Here) -> AliasesResponse:
    """List all aliases with their collections."""
    found = here.workbench.store.aliases()
    return AliasesResponse(aliases=[AliasResponse(alias=alias, collection=name) for alias, name in found.items()])


@aliases.on("PUT", "/{alias}", WRITE, f"collection_exists {MISSING} {FAILED_WRITE}", operation_id="aliases-point")
def set_alias(alias: str, body: AliasRequest, here: Here) -> AliasResponse:
    """Point an alias to a collection. If it pointed to another one, it switches atomically."""
    here.workbench.store.alias(alias, body.collection)
    return AliasResponse(alias=alias, collection=here.workbench.collection(alias).name)


@aliases.on("DELETE", "/{alias}", WRITE, f"{MISSING} {FAILED_WRITE}", status_code=204, operation_id="aliases-forget")
def delete_alias(alias: str, here: Here) -> None:
    """Delete an alias; its collection stays."""
    here.workbench.store.unalias(alias)
