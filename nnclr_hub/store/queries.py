"""Searches that are composed of searches, for every store.

search_like(collection, ["a", "b"], negative=["c"])     # near a and b, away from c
search_like(collection, ["a"])                          # near a, without a itself
best_per_group(collection, vector, "album", k=5)        # the best image of each of the five best albums
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest, ItemNotFound
from nnclr_hub.store.base import Collection
from nnclr_hub.store.checks import MAX_K, check_vectors, check_whole
from nnclr_hub.store.items import DEFAULTS, Match, SearchOptions, Where
from nnclr_hub.store.where import MAX_CONDITIONS, MAX_IN, value_of

FIRST_K = 64
AT_ONCE = MAX_K  # matches of one search of a group
MAX_INTEGER = 2**63  # filters take smaller integers only


@checked
def search_like(
    collection: Collection,
    positive: Sequence[str | np.ndarray],
    negative: Sequence[str | np.ndarray] = (),
    k: int = 10,
    options: SearchOptions = DEFAULTS,
) -> list[Match]:
    """Return the k items nearest to positive examples and away from negative ones, best first.

    Examples are ids of items, which are never among the results, or vectors (D,) float32; at least one is positive. The
    query is p + (p - n), where p and n are the means of the positive and the negative vectors; p if there are no
    negative ones. For the metric cosine every example is normalized first, so that each counts the same.
    """
    for examples in (positive, negative):
        if isinstance(examples, str):  # would be taken for a list of letters
            raise InvalidRequest(f"Examples must be a list of ids or vectors, got the string {examples!r:.150}.")
    if len(positive) == 0:
        raise InvalidRequest("A search by examples needs at least one positive example; give an id or a vector.")
    ids = list(dict.fromkeys(example for example in (*positive, *negative) if isinstance(example, str)))
    if check_whole("k", k, MAX_K) + len(ids) > MAX_K:
        raise InvalidRequest(f"k plus the number of examples by id must be at most {MAX_K}, got {k} + {len(ids)}.")
    known = {item.id: item.vector for item in collection.get(ids)} if ids else {}
    if missing := [id for id in ids if id not in known]:
        names = ", ".join(map(repr, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ItemNotFound(f"Collection {collection.name!r} has no item {names:.400}; use ids of search results.")

    def mean(examples: Sequence[str | np.ndarray], which: str) -> np.ndarray:
        vectors = [known[example] if isinstance(example, str) else example for example in examples]
        return check_vectors(vectors, collection.spec, lambda i: f"{which} example {i + 1}").mean(axis=0)

    query = mean(positive, "positive")
    if len(negative):
        query = query + (query - mean(negative, "negative"))
    if collection.spec.metric == "cosine" and np.linalg.norm(query) < 1e-6:
        raise InvalidRequest("The examples cancel out, which leaves no direction to search in; give other examples.")
    [matches] = collection.search_each([query], k + len(ids), options)
    return [match for match in matches if match.id not in known][:k]


@checked
def best_per_group(
    collection: Collection, vector: np.ndarray, key: str, k: int = 10, options: SearchOptions = DEFAULTS
) -> list[Match]:
    """Return the nearest item of each of the k nearest groups, best first.

    Items with an equal value of the metadata key form a group. More and more items are searched until k groups are
    found or all items were seen, so no nearer group is missed. Items without the key, or with null, are in no group.
    """
    check_whole("k", k, MAX_K)
    grouped = _also(options.where, must=[{"key": key, "exists": True}], must_not=[{"key": key, "match": None}])

    def search(wanted: int, excluded: list[Any]) -> list[Match]:
        parts = [{"key": key, "in": excluded[i : i + MAX_IN]} for i in range(0, len(excluded), MAX_IN)]
        assert len(parts) < MAX_CONDITIONS  # at most MAX_K values make 20 conditions
        # vectors and percentiles only of the matches that are returned: the search goes through many more
        where = _also(grouped, must_not=parts)
        remaining = replace(options, where=where, with_vector=False, with_percentile=False)
        return collection.search_each([vector], wanted, remaining)[0]

    def best() -> list[list[Match]]:
        return [_first_of_groups(search, key, k)]

    [matches] = collection.random_scores.with_percentiles(best) if options.with_percentile else best()
    if not options.with_vector:
        return matches
    vectors = {item.id: item.vector for item in collection.get([match.id for match in matches])}
    return [replace(match, vector=vectors[match.id]) for match in matches if match.id in vectors]


def group_key(value: Any) -> str:
    """Return a text that is equal for equal JSON values: 1 equals 1.0, but not true."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _first_of_groups(search: Callable[[int, list[Any]], list[Match]], key: str, k: int) -> list[Match]:
    """Return the best match of each of the k best groups.

    `search` takes the number of matches, and the values of the key to leave out.
    """
    best: dict[str, Match] = {}
    excluded: dict[str, Any] = {}
    wanted = min(AT_ONCE, max(2 * k, FIRST_K))
    while True:
        matches = search(wanted, list(excluded.values()))
        for match in matches:
            best.setdefault(group_key(value_of(match.metadata, key, None)), match)
        if len(best) >= k or len(matches) < wanted:
            return list(best.values())[:k]
        if wanted < AT_ONCE:
            wanted = min(AT_ONCE, 2 * wanted)
            continue
        # one search cannot return more: leave out the known groups and continue behind them
        before = len(excluded)
        values = {name: value_of(match.metadata, key) for name, match in best.items()}
        excluded |= {name: value for name, value in values.items() if _can_filter(value)}
        if len(excluded) == before:
            raise InvalidRequest(
                f"The {AT_ONCE} nearest items share values of {key!r} that a filter cannot express (lists, objects); "
                "group by a key with strings or numbers."
            )


def _also(where: Where | None, **conditions: list[dict[str, Any]]) -> Where:
    """Return a filter with further conditions; one that is not valid stays as it is, and is refused by the search."""
    if where is not None and not isinstance(where, Mapping):
        return where
    joined = dict(where or {})
    for part, added in conditions.items():
        before = joined.get(part, ())
        if added and isinstance(before, list | tuple):
            joined[part] = [*before, *added]
    return joined


def _can_filter(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int | float) and abs(value) < MAX_INTEGER)
