"""Neighbors in Milvus: by its index where that gives the right answer, else by comparing with every vector.

Milvus has no exact search alongside an approximate index, and returns at most 16,384 neighbors. Under a filter, an
approximate index may return fewer items than exist, or farther ones: Milvus 2.3.5 found 0.63 of the ten nearest among
the hundredth that passed. In these cases the items that pass are read page by page and compared here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.store.base import Match, SearchOptions, Where
from nnclr_hub.store.checks import check_k
from nnclr_hub.store.index_kinds import IndexKind, milvus_kind
from nnclr_hub.store.milvus.rows import METRICS, to_vector
from nnclr_hub.store.milvus.where import Plan
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.where import EVERYTHING, passes

if TYPE_CHECKING:
    from nnclr_hub.store.milvus.collection import MilvusCollection

# up to this many items that pass a filter are read and compared here: 2 MB at 256 numbers each
FEW = 2000
# Milvus's limit
_MAX_K = 16_384
# matches per request that include their rows: 64 KiB each make 64 MiB
_WITH_ROWS = 1000


def search(collection: MilvusCollection, queries: np.ndarray, k: int, options: SearchOptions) -> list[list[Match]]:
    """Run `Collection.search` for queries (n, D) float32, as `check_queries` returns them."""
    k, wanted = check_k(k), collection.plan(options.where)
    if (options.exact and not _is_exact(collection)) or _few_pass(collection, options.where, wanted):
        found = exhaustive(collection, queries, k, wanted)
    else:
        found = _indexed(collection, queries, k, wanted, options)
    if options.score_threshold is not None:
        found = [[match for match in matches if match.score >= options.score_threshold] for matches in found]
    return _with_vectors(collection, found) if options.with_vector else found


def _kind(collection: MilvusCollection) -> IndexKind:
    return milvus_kind(collection.spec.index, lite=collection.connection.is_lite)


def _is_exact(collection: MilvusCollection) -> bool:
    return _kind(collection).milvus_exact(lite=collection.connection.is_lite)


def _few_pass(collection: MilvusCollection, where: Where | None, wanted: Plan) -> bool:
    """Return whether a filter leaves so few items that an approximate index would miss the nearest of them."""
    return bool(wanted.expression) and not _is_exact(collection) and collection.count(where) <= FEW


# ------------------------------------------------------------------------------ with the index


def _indexed(
    collection: MilvusCollection, queries: np.ndarray, k: int, wanted: Plan, options: SearchOptions
) -> list[list[Match]]:
    found: dict[int, list[Match]] = {}
    where = options.where
    # more than k, because the filter in Python will drop some, and exact distances will reorder them
    # and one more, which shows whether others have the score of the last one
    limit = k + 1 if wanted.exact and _kind(collection).lossless else min(_MAX_K, 4 * k + 64)
    missing = list(range(len(queries)))
    while missing:
        answers = _request(collection, queries[missing], limit, wanted, options)
        for row, matches in zip(missing, answers, strict=True):
            found[row] = [match for match in matches if passes(wanted.group, match.id, match.metadata)][:k]
        # these may have more matches beyond the limit
        missing = [
            row
            for row, matches in zip(missing, answers, strict=True)
            if len(matches) == limit < _MAX_K and (len(found[row]) < k or found[row][-1].score == matches[-1].score)
        ]
        limit = min(_MAX_K, 8 * limit)
    short = [row for row, matches in found.items() if len(matches) < k]
    if short:
        possible = min(k, collection.count(where))
        short = [row for row in short if len(found[row]) < possible]
    if short:
        found |= dict(zip(short, exhaustive(collection, queries[short], k, wanted), strict=True))
    return [found[row] for row in range(len(queries))]


def _request(
    collection: MilvusCollection, queries: np.ndarray, limit: int, wanted: Plan, options: SearchOptions
) -> list[list[Match]]:
    """Return Milvus's matches of all queries, in as many requests as its limits require."""
    kind = _kind(collection)
    fields = ["metadata"] if kind.lossless else ["metadata", "vector"]
    at_once = max(1, _WITH_ROWS // limit)
    answers: list[list[Match]] = []
    for start in range(0, len(queries), at_once):
        some = queries[start : start + at_once]
        found = collection.read(
            "search",
            data=list(some),
            anns_field="vector",
            limit=limit,
            filter=wanted.superset,
            output_fields=fields if limit <= _WITH_ROWS else [],
            search_params={
                "metric_type": METRICS[collection.spec.metric],
                "params": kind.milvus_options(
                    limit,
                    options.effort,
                    lite=collection.connection.is_lite,
                    exact=options.exact,
                    filtered=bool(wanted.expression),
                ),
            },
        )
        for query, results in zip(some, found, strict=True):
            if limit <= _WITH_ROWS:
                rows = {result["id"]: result["entity"] for result in results}
            else:
                rows = collection.rows([result["id"] for result in results], ["id", *fields])
            answers.append(_matches(collection, query, results, rows))
    return answers


def _matches(
    collection: MilvusCollection, query: np.ndarray, results: list[Any], rows: Mapping[str, Mapping[str, Any]]
) -> list[Match]:
    """Return results as matches, without those that were deleted after the search."""
    kept = [result for result in results if result["id"] in rows]
    if kept and not _kind(collection).lossless:  # Milvus's distances are those of compressed vectors
        vectors = np.stack([to_vector(rows[result["id"]]) for result in kept])
        exact = scores(query[None], vectors, collection.spec)[0].tolist()
    else:
        exact = [_score(result["distance"], collection.spec) for result in kept]
    made = [
        Match(result["id"], score, json.loads(rows[result["id"]]["metadata"]))
        for result, score in zip(kept, exact, strict=True)
    ]
    return sorted(made, key=lambda match: (-match.score, match.id))


def _score(distance: float, spec: CollectionSpec) -> float:
    # Milvus returns the square of the L2 distance
    return -float(np.sqrt(max(0.0, distance))) if spec.metric == "l2" else float(distance)


def _with_vectors(collection: MilvusCollection, found: list[list[Match]]) -> list[list[Match]]:
    ids = [match.id for matches in found for match in matches]
    rows = collection.rows(ids, ["id", "vector"])
    return [
        [
            Match(match.id, match.score, match.metadata, to_vector(rows[match.id]))
            for match in matches
            if match.id in rows
        ]
        for matches in found
    ]


# ------------------------------------------------------------------------------ with every vector


def scores(queries: np.ndarray, vectors: np.ndarray, spec: CollectionSpec) -> np.ndarray:
    """Return scores (n, m) float32; a higher score is nearer."""
    if spec.metric != "l2":
        return queries @ vectors.T
    # the difference itself, one row at a time: the expanded square loses near neighbors to rounding
    return np.stack([-np.linalg.norm(vectors - query, axis=1) for query in queries])


def exhaustive(collection: MilvusCollection, queries: np.ndarray, k: int, wanted: Plan) -> list[list[Match]]:
    """Return the true k nearest, by reading every item that passes, in pages."""
    fields = ["id", "vector"] if wanted.group == EVERYTHING else ["id", "vector", "metadata"]
    best_ids = np.zeros((len(queries), 0), dtype="U128")
    best_scores = np.zeros((len(queries), 0), np.float32)
    page: list[dict[str, Any]] = []

    def merge_page() -> None:
        nonlocal best_ids, best_scores
        ids = np.array([row["id"] for row in page], dtype="U128")
        new = scores(queries, np.stack([to_vector(row) for row in page]), collection.spec)
        all_ids = np.concatenate([best_ids, np.broadcast_to(ids, (len(queries), len(ids)))], axis=1)
        all_scores = np.concatenate([best_scores, new], axis=1)
        order = np.argsort(-all_scores, axis=1, kind="stable")[:, :k]
        best_ids, best_scores = np.take_along_axis(all_ids, order, 1), np.take_along_axis(all_scores, order, 1)
        page.clear()

    for row in collection.scan(wanted, fields):
        page.append(row)
        if len(page) == 4096:
            merge_page()
    if page:
        merge_page()
    rows = collection.rows([str(id) for id in np.unique(best_ids)], ["id", "metadata"])
    return [
        [Match(id, score, json.loads(rows[id]["metadata"])) for id, score in zip(ids, row, strict=True) if id in rows]
        for ids, row in zip(best_ids.tolist(), best_scores.tolist(), strict=True)
    ]
