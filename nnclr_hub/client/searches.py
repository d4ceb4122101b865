"""Searches in a collection of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.client.answers import make_error
from nnclr_hub.client.collections import path_of
from nnclr_hub.client.images import bounded
from nnclr_hub.client.steps import Answer, Call, Steps, for_each, in_thread, perform, to_json
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.store.base import Match, Where
from nnclr_hub.workbench.payload import decode_vector, image_file
from nnclr_hub.workbench.search_query import Box, Example, SearchQuery

if TYPE_CHECKING:
    from nnclr_hub.client.images import ImageLike

SEARCHES_AT_ONCE = 2  # concurrent requests of one batch of searches


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
    with_percentile: bool = False,
    group_by: str | None = None,
) -> Steps[list[Match]]:
    """Return the matches of a query, best first.

    Args:
        query: a complete SearchQuery; or a vector (D,), with the other fields of `SearchQuery` as arguments.
        vector, image, box, id: the example, if it is a single one.
        positive, negative: several examples; ids, vectors, and images as Path or bytes are accepted as they are.
        k, where, offset, exact, score_threshold, with_vector, effort, with_percentile, group_by: see `SearchQuery`.

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
            with_percentile=with_percentile,
            group_by=group_by,
        )
    path = f"{path_of(name)}/search"
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
    path = f"{path_of(name)}/search/batch"
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
    with_percentile: bool = False,
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
            with_percentile=with_percentile,
        )
        for row in np.asarray(vectors)
    ]
    answers = yield from search_each(name, queries)
    for answer in answers:
        if isinstance(answer, NNCLRHubError):
            raise answer
    return [answer for answer in answers if not isinstance(answer, NNCLRHubError)]


def _found(answer: Answer) -> list[Match]:
    return _matches(answer.json()["matches"])


def _matches(body: list[dict[str, Any]]) -> list[Match]:
    return [
        Match(
            one["id"],
            one["score"],
            one["metadata"],
            None if one.get("vector") is None else decode_vector(one["vector"]),
            one.get("percentile"),
        )
        for one in body
    ]
