"""How often the values of metadata keys occur."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.checks import check_whole
from nnclr_hub.store.where import ABSENT, check_key, is_number, rounded

MAX_KEYS = 16
MAX_VALUES = 1000
MAX_BINS = 100
# values by (whether it is a boolean, the value): 1 and true are equal in Python
Counts = dict[tuple[bool, Any], int]


@dataclass(frozen=True)
class Histogram:
    """Counts of numbers between ascending edges; one count less than edges. The last bin includes its upper edge."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class Facet:
    """What items have under one key."""

    key: str
    items: int  # that have the key
    # the most frequent scalars, with the number of items that have each; equally frequent ones in the order null,
    # false, true, numbers, strings. An item with a list counts once for each of its distinct elements
    values: list[tuple[Any, int]]
    distinct: int  # scalars
    histogram: Histogram | None = None  # over all numbers


def check_facets(keys: Sequence[str], limit: int, bins: int) -> list[str]:
    """Return the keys without repetitions."""
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not 1 <= len(keys) <= MAX_KEYS:
        raise InvalidRequest(f"keys must be a list of 1 to {MAX_KEYS} metadata keys, got {keys!r:.150}.")
    check_whole("limit", limit, MAX_VALUES)
    check_whole("bins", bins, MAX_BINS)
    return list(dict.fromkeys(map(check_key, keys)))


def count_values(counts: Counts, values: Sequence[Any]) -> int:
    """Count values of a key, ABSENT for items that lack it; return how many have it."""
    try:
        found = Counter(zip(map(type, values), values, strict=True))
    except TypeError:  # there are lists or objects
        for value in values:
            for name in {_name(one) for one in (value if isinstance(value, list) else [value]) if _is_scalar(one)}:
                counts[name] = counts.get(name, 0) + 1
        return sum(value is not ABSENT for value in values)
    items = 0
    for (_, value), number in found.items():
        if value is not ABSENT:
            counts[_name(value)] = counts.get(_name(value), 0) + number
            items += number
    return items


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def facet(key: str, items: int, counts: Counts, limit: int, bins: int) -> Facet:
    """Return the facet of counted values."""
    ranked = heapq.nsmallest(limit, counts.items(), key=lambda pair: (-pair[1], *_rank(pair[0][1])))
    values = [(value, number) for (_, value), number in ranked]
    return Facet(key, items, values, len(counts), _histogram(counts, bins))


def _name(value: Any) -> tuple[bool, Any]:
    return isinstance(value, bool), rounded(value)


def _rank(value: Any) -> tuple[int, Any]:
    if value is None or isinstance(value, bool):
        return (0, 0) if value is None else (1, value)
    return (2, value) if is_number(value) else (3, value)


def _histogram(counts: Mapping[tuple[bool, Any], int], bins: int) -> Histogram | None:
    numbers = {float(value): number for (_, value), number in counts.items() if is_number(value)}
    if not numbers:
        return None
    values, weights = np.array(list(numbers)), np.array(list(numbers.values()))
    low, high = values.min(), values.max()
    with np.errstate(over="ignore", invalid="ignore"):
        edges = np.linspace(low, high, bins + 1 if low < high else 2)
    if not (np.isfinite(edges).all() and (np.diff(edges) >= 0).all()):
        return None  # beyond what differences of floats can express
    place = np.clip(np.searchsorted(edges, values, "right") - 1, 0, len(edges) - 2)
    return Histogram(edges.tolist(), np.bincount(place, weights, len(edges) - 1).astype(int).tolist())
