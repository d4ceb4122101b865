"""Run REST searches: embed the images of all queries together, then search.

await search_each(request, bench, metrics, "photos", [query, ...], ...)       # matches or an error for each
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from anyio import CapacityLimiter, to_thread
from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from nnclr_hub.errors import ImageError, NNCLRHubError
from nnclr_hub.store.base import Collection
from nnclr_hub.workbench import SearchQuery, Workbench
from nnclr_hub.workbench.search_batch import Answer, answer_each, attempt

from .disconnect import while_connected
from .edge.url_fetcher import Fetched, Fetcher
from .models import Model
from .payloads import decode_text
from .request_bodies import check_count, fetch_each
from .schemas.search import Example, SearchRequest
from .telemetry import Metrics, measured


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
    parsed = [await _parsed(query, fetched) for query in queries]
    images = [await _images(query, cropping) for query in parsed]
    together = [image for own in images if not isinstance(own, NNCLRHubError) for image in own]
    vectors = await while_connected(request, _embedded(bench, collection, together)) if together else []
    return await run_in_threadpool(_answered, metrics, collection, parsed, images, vectors)


def _examples(query: SearchRequest) -> list[Example]:
    return [*([query] if query.positive is None else query.positive), *query.negative]


async def _parsed(query: SearchRequest, fetched: Fetched) -> SearchQuery | NNCLRHubError:
    """Return the query, or what is wrong with it; in a thread only where there are images to decode from text."""

    def parse() -> SearchQuery:
        return SearchQuery.from_json(query.body(), partial(decode_text, what="image", fetched=fetched))

    if any(one.has_image for one in _examples(query)):
        return await to_thread.run_sync(attempt, parse)
    return attempt(parse)


async def _images(query: SearchQuery | NNCLRHubError, cropping: CapacityLimiter) -> list[Any] | NNCLRHubError:
    """Return the images of a query; in a thread only where a box must be cut out of one."""
    if isinstance(query, NNCLRHubError):
        return query
    if all(example.box is None for example in query.examples):
        return attempt(query.images)
    return await to_thread.run_sync(attempt, query.images, limiter=cropping)


async def _embedded(
    bench: Workbench, collection: Collection, images: Sequence[Any]
) -> Sequence[np.ndarray | ImageError]:
    engine = cast(Model, await run_in_threadpool(bench.embedder_of, collection))
    return await engine.embed_each_async(images)


def _answered(metrics: Metrics, *arguments: Any) -> list[Answer]:
    with measured(metrics, "search"):
        return answer_each(*arguments)
