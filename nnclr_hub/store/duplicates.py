"""Duplicates: items with the same metadata value, or with nearly the same vector.

exact_duplicates(collection)            # groups of ids whose images have the same pixels
near_duplicates(collection, 0.97)       # groups joined by pairs that score 0.97 and more
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import Collection, Item, Progress, Where
from nnclr_hub.store.checks import MAX_K, MAX_LIMIT
from nnclr_hub.store.pages import pages
from nnclr_hub.store.queries import group_key

# metadata key of every indexed image: SHA-256 of its size and upright RGB pixels
PIXEL_HASH = "pixel_sha256"
PAGE = 256
FIRST_K = 32
MATCHES_AT_ONCE = 65_536

Groups = list[tuple[str, ...]]


def same_value(collection: Collection, key: str, *, progress: Progress = lambda done, total: None) -> Groups:
    """Return groups of at least two items with equal values of a metadata key, the largest first.

    Args:
        collection: to read.
        key: of the metadata; items without it, or with null, are in no group.
        progress: called with (done, total), counted in items that have the key.
    """
    groups: dict[str, list[str]] = {}
    for items in _counted(collection, {"must": [{"key": key, "exists": True}]}, MAX_LIMIT, progress, with_vector=False):
        for item in items:
            if item.metadata[key] is not None:
                groups.setdefault(group_key(item.metadata[key]), []).append(item.id)
    return _largest_first(groups.values())


def exact_duplicates(collection: Collection, *, progress: Progress = lambda done, total: None) -> Groups:
    """Return groups of at least two items whose images have the same pixels, whatever their files are."""
    return same_value(collection, PIXEL_HASH, progress=progress)


def near_duplicates(
    collection: Collection,
    threshold: float,
    *,
    where: Where | None = None,
    exact: bool = False,
    progress: Progress = lambda done, total: None,
) -> Groups:
    """Return groups joined by pairs that score at least `threshold`, the largest first: the connected components.

    Each item is joined to all that the index finds for it, at most its 10,000 nearest. An approximate index misses a
    pair only if it misses it from both sides. `exact` compares all with all, in quadratic time.

    Args:
        collection: to search.
        threshold: a score of the collection's metric, for cosine -1 to 1.
        where: only items that pass.
        exact: compare all with all.
        progress: called with (done, total), counted in items.

    Raises:
        InvalidRequest: the threshold is not a possible score.
    """
    check_pair_score(collection, threshold)
    sets = _DisjointSets()
    for items in _counted(collection, where, PAGE, progress, with_vector=True):
        ids, vectors, k = [item.id for item in items], np.stack([item.vector for item in items]), FIRST_K
        while ids:
            full: list[int] = []
            step = max(1, MATCHES_AT_ONCE // k)
            for start in range(0, len(ids), step):
                rows = collection.search_batch(
                    vectors[start : start + step], k, where, exact=exact, score_threshold=threshold
                )
                for i, matches in enumerate(rows, start):
                    sets.join(ids[i], (match.id for match in matches))
                    if len(matches) == k < MAX_K:  # there may be more
                        full.append(i)
            ids, vectors, k = [ids[i] for i in full], vectors[full], min(MAX_K, 4 * k)
    return _largest_first(sets.groups())


def check_pair_score(collection: Collection, threshold: float) -> None:
    """Raise InvalidRequest unless two items of the collection can have that score."""
    if not math.isfinite(threshold) or (collection.spec.metric == "cosine" and not -1 <= threshold <= 1):
        raise InvalidRequest(f"threshold must be a score (for cosine, -1 to 1), got {threshold!r}.")


class _DisjointSets:
    """Disjoint sets of ids, joined with path halving."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def join(self, id: str, others: Iterable[str]) -> None:
        root = self._root(id)
        for other in others:
            self._parent[self._root(other)] = root

    def groups(self) -> Iterable[list[str]]:
        groups: dict[str, list[str]] = {}
        for id in list(self._parent):
            groups.setdefault(self._root(id), []).append(id)
        return groups.values()

    def _root(self, id: str) -> str:
        parent = self._parent
        parent.setdefault(id, id)
        while parent[id] != id:
            parent[id] = parent[parent[id]]
            id = parent[id]
        return id


def _counted(
    collection: Collection, where: Where | None, limit: int, progress: Progress, *, with_vector: bool
) -> Iterator[list[Item]]:
    total, done = collection.count(where), 0
    for items in pages(collection, where, limit=limit, with_vector=with_vector):
        yield items
        done += len(items)
        progress(done, max(done, total))


def _largest_first(groups: Iterable[list[str]]) -> Groups:
    found = [tuple(sorted(ids)) for ids in groups if len(ids) > 1]
    return sorted(found, key=lambda ids: (-len(ids), ids))
