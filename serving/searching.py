"""Queries of REST to matches: images are embedded together, then the store is asked.

await search_each(request, bench, metrics, "photos", [query, ...], ...)       # matches or an error for each
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from anyio import CapacityLimiter, to_thread
from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from PIL import Image

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.errors import ImageError, InvalidRequest, ItemNotFound, NNCLRHubError
from nnclr_hub.store.base import Collection, Match
from nnclr_hub.store.checks import check_asked
from nnclr_hub.store.queries import best_per_group, search_like
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.searching import crop_to_box, search_by_vector

from .departure import while_present
from .edge.url_fetcher import Fetched, Fetcher
from .models import Model
from .payloads import decode_text, decode_vector
from .schemas import Example, SearchRequest
from .telemetry import Metrics, measured
from .uploads import check_count, fetch_each

OPTIONS = ("where", "exact", "score_threshold", "with_vector", "effort")
# errors of one query, which leave the others of its batch alone
OWN = (InvalidRequest, ImageError, ItemNotFound)
Answer = list[Match] | NNCLRHubError


@dataclass(frozen=True)
class Resolved:
    """A query whose examples are ids and vectors."""

    query: SearchRequest
    positive: list[str | np.ndarray]
    negative: list[str | np.ndarray]

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self.query, name) for name in OPTIONS}

    @property
    def vector(self) -> np.ndarray | None:
        """The one vector that it asks for, if that is all."""
        plain = len(self.positive) == 1 and not self.negative and self.query.group_by is None
        return self.positive[0] if plain and isinstance(self.positive[0], np.ndarray) else None


async def search_each(
    request: Request,
    bench: Workbench,
    metrics: Metrics,
    name: str,
    queries: Sequence[SearchRequest],
    *,
    limit: int,
    cropping: CapacityLimiter,
    fetcher: Fetcher | None = None,
) -> list[Answer]:
    """Matches of each query, or what is wrong with it.

    Args:
        name: of the collection.
        limit: images in all queries together.
        request: whose client is to be there while images are embedded.
        cropping: how many searches may decode an image at once to cut a box out of it; others never wait for it.
        fetcher: of images that are given by their web addresses.

    Raises:
        CollectionNotFound, FingerprintMismatch, RequestTooLarge, Overloaded, NotReady, DeadlineExceeded.
        ClientDisconnect: the client has gone.
    """
    collection = await run_in_threadpool(bench.collection, name)
    check_count(sum(example.has_image for query in queries for example in _examples(query)), limit)
    texts = [example.image for query in queries for example in _examples(query) if example.image is not None]
    fetched = await fetch_each(texts, fetcher)
    prepared = [await _prepared(query, fetched, cropping) for query in queries]
    pictures = [picture for one in prepared if not isinstance(one, NNCLRHubError) for picture in one]
    vectors = iter(await while_present(request, _embedded(bench, collection, pictures)) if pictures else ())
    owned = [one if isinstance(one, NNCLRHubError) else [next(vectors) for _ in one] for one in prepared]
    return await run_in_threadpool(_search_all, metrics, collection, queries, owned)


async def _prepared(query: SearchRequest, fetched: Fetched, cropping: CapacityLimiter) -> Any:
    """The images of a query, or what is wrong with it: in a thread only where there is something to decode."""
    given = [example for example in _examples(query) if example.has_image]
    if not given:
        return _attempt(_images_of, query, fetched)
    limiter = cropping if any(example.box is not None for example in given) else None
    return await to_thread.run_sync(_attempt, _images_of, query, fetched, limiter=limiter)


def _attempt(work: Any, *arguments: Any) -> Any:
    """What the work gives, or its error if that is one query's own."""
    try:
        return work(*arguments)
    except OWN as error:
        return error


# ---- queries to vectors


def _examples(query: SearchRequest) -> list[Example]:
    return [*([query] if query.positive is None else query.positive), *query.negative]


def _images_of(query: SearchRequest, fetched: Fetched) -> list[bytes | Image.Image]:
    """The images of a query whose form is right, boxes cut out."""
    if sum(given is not None for given in (query.id, query.picture, query.vector, query.positive)) != 1:
        raise InvalidRequest("A search takes exactly one of id, image, vector and positive.")
    if query.positive is not None and query.box is not None:
        raise InvalidRequest("A box goes with an image: give it beside the image that it lies on.")
    check_asked(query.k, query.effort)
    if query.group_by is not None and (query.positive is not None or query.negative):
        raise InvalidRequest("group_by goes with one id, image or vector, without further examples.")
    pictures: list[bytes | Image.Image] = []
    for example in _examples(query):
        if sum(given is not None for given in (example.id, example.picture, example.vector)) != 1:
            raise InvalidRequest("An example is exactly one of id, image and vector.")
        if example.box is not None and not example.has_image:
            raise InvalidRequest("A box goes with an image: give the image that it lies on.")
        if example.picture is not None:
            given = example.picture
            data = decode_text(given, "image", fetched) if isinstance(given, str) else given
            pictures.append(data if example.box is None else crop_to_box(decode_image(data), example.box))
    return pictures


async def _embedded(
    bench: Workbench, collection: Collection, pictures: Sequence[bytes | Image.Image]
) -> list[np.ndarray | ImageError]:
    engine = cast(Model, await run_in_threadpool(bench.embedder_of, collection))
    return await engine.embed_each_async(pictures)


def _resolved(query: SearchRequest, vectors: Sequence[np.ndarray | ImageError]) -> Resolved:
    """The query with a vector for each of its images."""
    left = iter(vectors)

    def resolve(example: Example) -> str | np.ndarray:
        if example.id is not None:
            return example.id
        if example.vector is not None:
            return decode_vector(example.vector, "vector")
        vector = next(left)
        if isinstance(vector, ImageError):
            raise vector
        return vector

    found = [resolve(example) for example in _examples(query)]
    negatives = len(query.negative)
    return Resolved(query, found[: len(found) - negatives], found[len(found) - negatives :])


# ---- vectors to matches


def _search_all(
    metrics: Metrics,
    collection: Collection,
    asked: Sequence[SearchRequest],
    vectors: Sequence[list[np.ndarray | ImageError] | NNCLRHubError],
) -> list[Answer]:
    with measured(metrics, "search"):
        queries: list[Resolved | NNCLRHubError] = [
            own if isinstance(own, NNCLRHubError) else _attempt(_resolved, query, own)
            for query, own in zip(asked, vectors, strict=True)
        ]
        answers: dict[int, Answer] = {i: one for i, one in enumerate(queries) if isinstance(one, NNCLRHubError)}
        for rows in _alike(collection, queries):
            together = _attempt(_search_together, collection, queries, rows)
            if not isinstance(together, NNCLRHubError):  # else each has to say for itself what is wrong with it
                answers |= together
        for i, one in enumerate(queries):
            if i not in answers:
                answers[i] = _attempt(_search_one, collection, one)
    return [answers[i] for i in range(len(queries))]


def _alike(collection: Collection, queries: Sequence[Resolved | NNCLRHubError]) -> list[list[int]]:
    """Which queries are one vector each, under the same options: the store answers those at once."""
    groups: dict[str, list[int]] = {}
    for i, one in enumerate(queries):
        if isinstance(one, Resolved) and one.vector is not None and one.vector.shape == (collection.spec.dim,):
            groups.setdefault(json.dumps([one.query.k, one.options], sort_keys=True), []).append(i)
    return [rows for rows in groups.values() if len(rows) > 1]


def _search_together(collection: Collection, queries: Sequence[Any], rows: Sequence[int]) -> dict[int, Answer]:
    first: Resolved = queries[rows[0]]
    vectors = np.stack([queries[i].vector for i in rows])
    return dict(zip(rows, collection.search_batch(vectors, first.query.k, **first.options), strict=True))


def _search_one(collection: Collection, one: Resolved) -> list[Match]:
    k = one.query.k
    if one.query.group_by is not None:
        return _best_of_groups(collection, one, one.query.group_by)
    if one.vector is not None:
        return search_by_vector(collection, one.vector, k, **one.options)
    return search_like(collection, one.positive, one.negative, k, **one.options)


def _best_of_groups(collection: Collection, one: Resolved, key: str) -> list[Match]:
    """An item that is asked for by its id is no answer: its group, of which it is the best itself, is left out."""
    [example], k = one.positive, one.query.k
    if not isinstance(example, str):
        return best_per_group(collection, example, key, k, **one.options)
    [item] = collection.get([example]) or [None]
    if item is None:
        raise ItemNotFound(f"Collection {collection.name!r} has no item {example!r}: list its items to see their ids.")
    matches = best_per_group(collection, item.vector, key, k + 1, **one.options)
    return [match for match in matches if match.id != example][:k]
