"""Many searches of one collection at once: an answer for each query, its matches or its error.

images = [attempt(query.images) for query in queries]
vectors = embedder.embed_each([...])                        # of all images together
answer_each(collection, queries, images, vectors)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from nnclr_hub.errors import ImageError, InvalidRequest, ItemNotFound, NNCLRHubError
from nnclr_hub.store.base import Collection, Match
from nnclr_hub.workbench.search_query import SearchQuery

T = TypeVar("T")
Answer = list[Match] | NNCLRHubError
# errors that concern one query and leave the others alone
QUERY_ERRORS = (InvalidRequest, ImageError, ItemNotFound)


def attempt(work: Callable[[], T]) -> T | NNCLRHubError:
    """Return what `work` returns, or its error if it concerns one query only."""
    try:
        return work()
    except QUERY_ERRORS as error:
        return error


def answer_each(
    collection: Collection,
    queries: Sequence[SearchQuery | NNCLRHubError],
    images: Sequence[Sequence[Any] | NNCLRHubError],
    vectors: Iterable[np.ndarray | ImageError],
) -> list[Answer]:
    """Return the matches of each query, or its error.

    Args:
        queries: may hold errors, which become the answers.
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
    return run_each(collection, resolved)


def run_each(collection: Collection, queries: Sequence[SearchQuery | NNCLRHubError]) -> list[Answer]:
    """Run queries without images; those that are one vector each and share their options run as one batch."""
    answers: dict[int, Answer] = {i: one for i, one in enumerate(queries) if isinstance(one, NNCLRHubError)}
    for rows in _batches(collection, queries):
        together = attempt(lambda rows=rows: _run_together(collection, [queries[i] for i in rows]))  # type: ignore[misc]
        if not isinstance(together, NNCLRHubError):  # otherwise each runs alone, to find the one that fails
            answers |= zip(rows, together, strict=True)
    for i, query in enumerate(queries):
        if i not in answers:
            assert isinstance(query, SearchQuery)
            answers[i] = attempt(lambda query=query: query.run(collection))
    return [answers[i] for i in range(len(queries))]


def _batches(collection: Collection, queries: Sequence[SearchQuery | NNCLRHubError]) -> list[list[int]]:
    """Return the positions of queries that one `search_batch` can answer."""
    groups: dict[str, list[int]] = {}
    for i, query in enumerate(queries):
        if not isinstance(query, SearchQuery):
            continue
        vector = query.plain_vector
        if vector is not None and vector.shape == (collection.spec.dim,):
            options = json.dumps([query.k, query.offset, query.options()], sort_keys=True, default=repr)
            groups.setdefault(options, []).append(i)
    return [rows for rows in groups.values() if len(rows) > 1]


def _run_together(collection: Collection, queries: Sequence[SearchQuery]) -> list[list[Match]]:
    first = queries[0]
    vectors = np.stack([query.plain_vector for query in queries])  # type: ignore[misc]
    found = collection.search_batch(vectors, first.k + first.offset, **first.options())
    return [matches[first.offset :] for matches in found]
