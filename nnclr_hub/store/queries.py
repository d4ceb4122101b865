"""Searches that are made of searches, on every store.

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

from nnclr_hub.errors import InvalidRequest, ItemNotFound
from nnclr_hub.store.base import Collection, Match, Where
from nnclr_hub.store.checks import MAX_K, check_k, check_vectors
from nnclr_hub.store.where import MAX_CONDITIONS, MAX_IN

FIRST_LOOK = 64
LARGEST_INTEGER = 2**63  # from here on a filter takes no integer


def search_like(
    collection: Collection,
    positive: Sequence[str | np.ndarray],
    negative: Sequence[str | np.ndarray] = (),
    k: int = 10,
    where: Where | None = None,
    *,
    exact: bool = False,
    score_threshold: float | None = None,
    with_vector: bool = False,
    effort: int | None = None,
) -> list[Match]:
    """The k items nearest to positive examples and away from negative ones, best first; fewer only if fewer exist.

    The query is p + (p - n), p and n being the means of the positive and the negative vectors; p where there are no
    negative ones. With the metric cosine every example is normalized first, so that each counts as much.

    Args:
        positive: ids of items, or vectors (D,) float32; at least one.
        negative: likewise; may be empty.
        k: with the number of examples given by id, 1 to 10,000; those are never among the answers.
        where, exact, score_threshold, with_vector, effort: see `Collection.search`.

    Raises:
        ItemNotFound: names the ids that the collection does not have.
        InvalidRequest: no positive example, or the examples cancel each other out.
    """
    ids = _ids_among(positive, negative)
    if check_k(k) + len(ids) > MAX_K:
        raise InvalidRequest(
            f"k={k} with {len(ids)} examples by id is not possible: both together are at most {MAX_K}."
        )
    known = _vectors_of(collection, ids)
    matches = collection.search(
        _away_from(collection, positive, negative, known),
        k + len(ids),
        where,
        exact=exact,
        score_threshold=score_threshold,
        with_vector=with_vector,
        effort=effort,
    )
    return [match for match in matches if match.id not in known][:k]


def best_per_group(
    collection: Collection,
    vector: np.ndarray,
    key: str,
    k: int = 10,
    where: Where | None = None,
    *,
    exact: bool = False,
    score_threshold: float | None = None,
    with_vector: bool = False,
    effort: int | None = None,
) -> list[Match]:
    """The nearest item of each of the k nearest groups, best first; a group is the items of equal metadata value.

    More and more items are searched until k groups are found or all items were seen, so that no nearer group is
    missed. Items without the key, or with null there, are in no group.

    Args:
        vector: (D,) float32.
        key: of the metadata.
        k: groups, 1 to 10,000.
        where, exact, score_threshold, with_vector, effort: see `Collection.search`.

    Raises:
        InvalidRequest: values that no filter can name (lists, objects) stand before the k-th group in such numbers
            that it cannot be reached.
    """
    check_k(k)
    grouped = _also(where, must=[{"key": key, "exists": True}], must_not=[{"key": key, "match": None}])

    def search(wanted: int, excluded: list[Any]) -> list[Match]:
        beyond = _also(grouped, must_not=_none_of(key, excluded))
        return collection.search(vector, wanted, beyond, exact=exact, score_threshold=score_threshold, effort=effort)

    found = _first_of_groups(search, key, k)
    return _with_vectors(collection, found) if with_vector else found


def group_key(value: Any) -> str:
    """Text that is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


# ---- inside


def _ids_among(positive: Sequence[str | np.ndarray], negative: Sequence[str | np.ndarray]) -> list[str]:
    """The examples that are given by id."""
    for given in (positive, negative):
        if isinstance(given, str):  # would be taken for a list of letters
            raise InvalidRequest(f"Examples are a list of ids or vectors: write [{given!r:.150}].")
    if len(positive) == 0:
        raise InvalidRequest("A search by examples needs at least one positive example: give an id or a vector.")
    return list(dict.fromkeys(one for one in (*positive, *negative) if isinstance(one, str)))


def _away_from(
    collection: Collection,
    positive: Sequence[str | np.ndarray],
    negative: Sequence[str | np.ndarray],
    known: Mapping[str, np.ndarray],
) -> np.ndarray:
    """(D,) p + (p - n)."""
    query = _mean(collection, positive, known, "positive")
    if len(negative):
        query = query + (query - _mean(collection, negative, known, "negative"))
    if collection.spec.metric == "cosine" and np.linalg.norm(query) < 1e-6:
        raise InvalidRequest("The examples cancel each other out and leave no direction to search in: give others.")
    return query


def _first_of_groups(search: Callable[[int, list[Any]], list[Match]], key: str, k: int) -> list[Match]:
    """The best match of each of the k best groups.

    Args:
        search: called with how many matches, and the values of the key that they may not have.
    """
    best: dict[str, Match] = {}
    excluded: dict[str, Any] = {}
    wanted = min(MAX_K, max(2 * k, FIRST_LOOK))
    while True:
        matches = search(wanted, list(excluded.values()))
        for match in matches:
            best.setdefault(group_key(match.metadata[key]), match)
        if len(best) >= k or len(matches) < wanted:
            return list(best.values())[:k]
        if wanted < MAX_K:
            wanted = min(MAX_K, 2 * wanted)
            continue
        # as far as one search goes: leave out the groups that are known, and look on behind them
        before = len(excluded)
        excluded |= {name: match.metadata[key] for name, match in best.items() if _can_filter(match.metadata[key])}
        if len(excluded) == before:
            raise InvalidRequest(
                f"The {MAX_K} nearest items share values of {key!r} that no filter can name (lists, objects): group "
                "by a key with strings or numbers."
            )


def _vectors_of(collection: Collection, ids: Sequence[str]) -> dict[str, np.ndarray]:
    found = {item.id: item.vector for item in collection.get(ids)} if ids else {}
    missing = [id for id in ids if id not in found]
    if missing:
        names = ", ".join(map(repr, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ItemNotFound(f"Collection {collection.name!r} has no item {names:.400}: list its items to see their ids.")
    return found


def _mean(
    collection: Collection, examples: Sequence[str | np.ndarray], known: Mapping[str, np.ndarray], which: str
) -> np.ndarray:
    vectors: list[np.ndarray] = [known[one] if isinstance(one, str) else one for one in examples]
    return check_vectors(vectors, collection.spec, lambda i: f"{which} example {i + 1}").mean(axis=0)


def _also(where: Where | None, **conditions: list[dict[str, Any]]) -> Where:
    """The filter with further conditions; one that is no filter stays as it is, for the store to refuse."""
    if where is not None and not isinstance(where, Mapping):
        return where
    joined = dict(where or {})
    for part, added in conditions.items():
        there = joined.get(part, ())
        if added and isinstance(there, list | tuple):
            joined[part] = [*there, *added]
    return joined


def _can_filter(value: Any) -> bool:
    if isinstance(value, int | float):
        return abs(value) < LARGEST_INTEGER
    return isinstance(value, str)


def _none_of(key: str, values: list[Any]) -> list[dict[str, Any]]:
    parts = [values[i : i + MAX_IN] for i in range(0, len(values), MAX_IN)]
    # at most MAX_K values, which is 20 conditions
    assert len(parts) < MAX_CONDITIONS
    return [{"key": key, "in": part} for part in parts]


def _with_vectors(collection: Collection, matches: list[Match]) -> list[Match]:
    """Only of those that are handed out: the search went through many more."""
    vectors = {item.id: item.vector for item in collection.get([match.id for match in matches])}
    return [replace(match, vector=vectors[match.id]) for match in matches if match.id in vectors]
