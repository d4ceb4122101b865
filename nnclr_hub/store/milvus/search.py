"""Neighbors in Milvus: its index where that gives what was asked for, every vector where it does not.

Milvus has no exact search beside an approximate index, returns at most 16,384 neighbors, and an approximate index
under a filter may return fewer than there are, or farther ones: 2.3.5 found 0.63 of the ten nearest among the hundredth
that passed. There the items that pass are read page by page and compared here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnclr_hub.store.base import Match, Where
from nnclr_hub.store.checks import check_k
from nnclr_hub.store.milvus.held import Held
from nnclr_hub.store.milvus.rows import METRICS, to_vector
from nnclr_hub.store.milvus.where import Plan, passes, plan
from nnclr_hub.store.spec import CollectionSpec

# items that pass a filter: up to so many are read and compared here, 2 MB at 256 numbers each
FEW = 2000
# of Milvus
_LARGEST_K = 16_384
# matches a request whose rows come with them: 64 KiB each make 64 MiB
_WITH_ROWS = 1000
# how far a graph is searched when the caller does not say, and the farthest that Milvus takes
_EF, _LARGEST_EF = 128, 32_768
# lists of an inverted file, and those looked into when the caller does not say
NLIST = {True: 128, False: 1024}
_NPROBE = {True: 32, False: 64}


def search(
    collection: Held,
    queries: np.ndarray,
    k: int,
    where: Where | None,
    exact: bool,
    score_threshold: float | None,
    with_vector: bool,
    effort: int | None,
) -> list[list[Match]]:
    """See `store.base.Collection.search_batch`; queries: (n, D) float32, as `check_vectors` has them."""
    k = check_k(k)
    wanted = plan(where, lists=not collection.connection.is_lite)
    if (exact and not _is_exact(collection)) or _few_pass(collection, where, wanted):
        found = exhaustive(collection, queries, k, where, wanted)
    else:
        found = _indexed(collection, queries, k, where, wanted, exact, effort)
    if score_threshold is not None:
        found = [[match for match in matches if match.score >= score_threshold] for matches in found]
    return _with_vectors(collection, found) if with_vector else found


def _is_exact(collection: Held) -> bool:
    """Whether Milvus can answer exactly: a flat index, or, on Lite, an inverted file of which every list is read.

    A server searches what came lately through an index of its own making, whatever parameters it is given, unless the
    collection's index is flat.
    """
    return collection.spec.index in (("auto", "flat", "ivf") if collection.connection.is_lite else ("flat",))


def _few_pass(collection: Held, where: Where | None, wanted: Plan) -> bool:
    """Whether a filter leaves so few items that an approximate index would miss the nearest of them."""
    return bool(wanted.expression) and not _is_exact(collection) and collection.count(where) <= FEW


# ------------------------------------------------------------------------------ with the index


def _indexed(
    collection: Held,
    queries: np.ndarray,
    k: int,
    where: Where | None,
    wanted: Plan,
    exact: bool,
    effort: int | None,
) -> list[list[Match]]:
    found: dict[int, list[Match]] = {}
    # room for what the filter will take away, or true distances put in another order
    limit = k if wanted.exact and not _is_quantized(collection) else min(_LARGEST_K, 4 * k + 64)
    missing = list(range(len(queries)))
    while missing:
        answers = _ask(collection, queries[missing], limit, wanted, exact, effort)
        for row, matches in zip(missing, answers, strict=True):
            found[row] = [match for match in matches if where is None or passes(where, match.metadata)][:k]
        # those may have more beyond the limit
        missing = [
            row
            for row, matches in zip(missing, answers, strict=True)
            if len(found[row]) < k and len(matches) == limit and limit < _LARGEST_K
        ]
        limit = min(_LARGEST_K, 8 * limit)
    short = [row for row, matches in found.items() if len(matches) < k]
    if short:
        there = min(k, collection.count(where))
        short = [row for row in short if len(found[row]) < there]
    if short:
        found |= dict(zip(short, exhaustive(collection, queries[short], k, where, wanted), strict=True))
    return [found[row] for row in range(len(queries))]


def _ask(
    collection: Held, queries: np.ndarray, limit: int, wanted: Plan, exact: bool, effort: int | None
) -> list[list[Match]]:
    """Milvus's own answer, of all queries, in requests that its limits allow."""
    fields = ["metadata", "vector"] if _is_quantized(collection) else ["metadata"]
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
                "params": _params(collection, limit, exact, effort, filtered=bool(wanted.expression)),
            },
        )
        for query, hits in zip(some, found, strict=True):
            if limit <= _WITH_ROWS:
                rows = {hit["id"]: hit["entity"] for hit in hits}
            else:
                rows = collection.rows([hit["id"] for hit in hits], ["id", *fields])
            answers.append(_matches(collection, query, hits, rows))
    return answers


def _matches(
    collection: Held, query: np.ndarray, hits: list[Any], rows: Mapping[str, Mapping[str, Any]]
) -> list[Match]:
    """Hits as matches, but for those that were deleted meanwhile."""
    there = [hit for hit in hits if hit["id"] in rows]
    if there and _is_quantized(collection):
        vectors = np.stack([to_vector(rows[hit["id"]]) for hit in there])
        true = scores(query[None], vectors, collection.spec)[0].tolist()
    else:
        true = [_score(hit["distance"], collection.spec) for hit in there]
    made = [
        Match(hit["id"], score, json.loads(rows[hit["id"]]["metadata"])) for hit, score in zip(there, true, strict=True)
    ]
    return sorted(made, key=lambda match: -match.score)


def _is_quantized(collection: Held) -> bool:
    """Whether Milvus's distances are those of codes, not of vectors."""
    return collection.spec.index == "ivf_pq"


def _params(collection: Held, limit: int, exact: bool, effort: int | None, *, filtered: bool) -> dict[str, int]:
    lite, index = collection.connection.is_lite, collection.spec.index
    if index in ("ivf", "ivf_pq"):
        lists = NLIST[lite]
        # what passes a filter lies in lists far apart
        default = lists if filtered else _NPROBE[lite]
        return {"nprobe": lists if exact else min(lists, max(1, effort or default))}
    if index == "hnsw" or (index == "auto" and not lite):
        return {"ef": min(_LARGEST_EF, max(limit, effort or max(_EF, 2 * limit)))}
    return {}


def _score(distance: float, spec: CollectionSpec) -> float:
    # Milvus's L2 is the square
    return -float(np.sqrt(max(0.0, distance))) if spec.metric == "l2" else float(distance)


def _metadata(collection: Held, ids: list[str]) -> dict[str, str]:
    return {id: row["metadata"] for id, row in collection.rows(ids, ["id", "metadata"]).items()}


def _with_vectors(collection: Held, found: list[list[Match]]) -> list[list[Match]]:
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
    """(n, m) float32: a higher score is nearer."""
    if spec.metric != "l2":
        return queries @ vectors.T
    # a row at a time: the difference itself, since the expanded square loses near neighbors to rounding
    return np.stack([-np.linalg.norm(vectors - query, axis=1) for query in queries])


def exhaustive(collection: Held, queries: np.ndarray, k: int, where: Where | None, wanted: Plan) -> list[list[Match]]:
    """The true k nearest, by reading every item that passes, a page at a time."""
    fields = ["id", "vector"] if where is None else ["id", "vector", "metadata"]
    best_ids = np.zeros((len(queries), 0), dtype="U128")
    best_scores = np.zeros((len(queries), 0), np.float32)
    page: list[dict[str, Any]] = []

    def fold() -> None:
        nonlocal best_ids, best_scores
        ids = np.array([row["id"] for row in page], dtype="U128")
        new = scores(queries, np.stack([to_vector(row) for row in page]), collection.spec)
        all_ids = np.concatenate([best_ids, np.broadcast_to(ids, (len(queries), len(ids)))], axis=1)
        all_scores = np.concatenate([best_scores, new], axis=1)
        order = np.argsort(-all_scores, axis=1, kind="stable")[:, :k]
        best_ids, best_scores = np.take_along_axis(all_ids, order, 1), np.take_along_axis(all_scores, order, 1)
        page.clear()

    for row in collection.scan(wanted, where, fields):
        page.append(row)
        if len(page) == 4096:
            fold()
    if page:
        fold()
    texts = _metadata(collection, [str(id) for id in np.unique(best_ids)])
    return [
        [Match(id, score, json.loads(texts[id])) for id, score in zip(ids, row, strict=True) if id in texts]
        for ids, row in zip(best_ids.tolist(), best_scores.tolist(), strict=True)
    ]
