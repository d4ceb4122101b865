"""Many searches of one collection at once: an answer for each query, its matches or its error.

images = [attempt(query.images) for query in queries]
vectors = embedder.embed_each([...])                        # of all images together
resolved = resolve_each(queries, images, vectors)
run_each(collection, resolved)                              # a list
for position, answer in run_in_turn(collection, resolved):  # as soon as each is known, in any order
    ...
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from nnclr_hub.errors import ImageError, InvalidRequest, ItemNotFound, NNCLRHubError
from nnclr_hub.store.base import Collection, Match
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.workbench.search_query import SearchQuery

T = TypeVar("T")
Answer = list[Match] | NNCLRHubError
# errors that concern one query and leave the others alone
QUERY_ERRORS = (InvalidRequest, ImageError, ItemNotFound)
TOGETHER = 1000  # matches of the queries that run as one batch: all of them are in memory at the same time


def attempt(work: Callable[[], T]) -> T | NNCLRHubError:
    """Return what `work` returns, or its error if it concerns one query only."""
    try:
        return work()
    except QUERY_ERRORS as error:
        return error


def resolve_each(
    queries: Sequence[SearchQuery | NNCLRHubError],
    images: Sequence[Sequence[Any] | NNCLRHubError],
    vectors: Iterable[np.ndarray | ImageError],
) -> list[SearchQuery | NNCLRHubError]:
    """Return the queries with vectors in place of images, or the error of each.

    Args:
        queries: may hold errors, which stay.
        images: the `images()` of each query, or the error that they raised.
        vectors: one for each image of all queries, in order.
    """
    remaining = iter(vectors)
    resolved: list[SearchQuery | NNCLRHubError] = []
    for query, own in zip(queries, images, strict=True):
        if isinstance(query, NNCLRHubError):
            resolved.append(query)
        elif isinstance(own, NNCLRHubError):
            resolved.append(own)
        else:
            rows = [next(remaining) for _ in own]
            resolved.append(attempt(lambda query=query, rows=rows: query.resolve(rows)))
    return resolved


def run_each(collection: Collection, queries: Sequence[SearchQuery | NNCLRHubError]) -> list[Answer]:
    """Run queries without images; return the answer of each."""
    found = dict(run_in_turn(collection, queries))
    return [found[i] for i in range(len(queries))]


def run_in_turn(collection: Collection, queries: Sequence[SearchQuery | NNCLRHubError]) -> Iterator[tuple[int, Answer]]:
    """Run queries without images; yield the position and the answer of each, in any order.

    Queries that are one vector each and share their options run in batches. Between two batches the search can be
    cancelled, see `store.cancellation`.
    """
    alone = set(range(len(queries)))
    for rows in _batches(collection, queries):
        check_cancelled()
        together = attempt(lambda rows=rows: _run_together(collection, [queries[i] for i in rows]))  # type: ignore[misc]
        if not isinstance(together, NNCLRHubError):  # otherwise each runs alone, to find the one that fails
            alone -= set(rows)
            yield from zip(rows, together, strict=True)
    for i in sorted(alone):
        check_cancelled()
        query = queries[i]
        yield i, query if isinstance(query, NNCLRHubError) else attempt(lambda query=query: query.run(collection))


def _batches(collection: Collection, queries: Sequence[SearchQuery | NNCLRHubError]) -> list[list[int]]:
    """Return the positions of queries that one `search_batch` can answer."""
    groups: dict[str, list[int]] = {}
    for i, query in enumerate(queries):
        if not isinstance(query, SearchQuery):
            continue
        vector = query.plain_vector
        if vector is not None and vector.shape == (collection.spec.dim,):
            options = json.dumps([query.k, query.offset, vars(query.options())], sort_keys=True, default=repr)
            groups.setdefault(options, []).append(i)
    batches: list[list[int]] = []
    for rows in groups.values():
        query = queries[rows[0]]
        assert isinstance(query, SearchQuery)
        step = max(1, TOGETHER // (query.k + query.offset))
        batches += [rows[start : start + step] for start in range(0, len(rows), step)]
    return [rows for rows in batches if len(rows) > 1]


def _run_together(collection: Collection, queries: Sequence[SearchQuery]) -> list[list[Match]]:
    first = queries[0]
    vectors = np.stack([query.plain_vector for query in queries])  # type: ignore[misc]
    found = collection.search_each(vectors, first.k + first.offset, first.options())
    return [matches[first.offset :] for matches in found]
