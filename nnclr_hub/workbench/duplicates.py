"""Duplicates in a collection: items with the same pixels, or with nearly the same vector.

exact_duplicates(collection)            # groups of ids whose images have the same pixels
near_duplicates(collection)             # groups of ids whose pairs all score more than different images do
near_duplicates(collection, 0.97)       # groups of ids whose pairs all score 0.97 and more
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.inspect.duplicates import chance_threshold, link_pairs
from nnclr_hub.plural import counted
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import Collection, Item, Progress, SearchOptions, Where
from nnclr_hub.store.checks import MAX_K, MAX_LIMIT
from nnclr_hub.store.vector_transform import unit_length
from nnclr_hub.store.where import parse
from nnclr_hub.workbench.bench import Bench
from nnclr_hub.workbench.metadata import PIXEL_HASH
from nnclr_hub.workbench.requests import Request, option
from nnclr_hub.workbench.tasks import TaskContext, task

PAGE = 256
FIRST_K = 32
MATCHES_AT_ONCE = 65_536
MOST_PAIRS = 5_000_000  # about 1 GB
MAX_IDS = 1000  # most ids of a group in a result
LEAST, SAMPLE = 50, 20_000  # items from which a threshold is calibrated

Groups = list[tuple[str, ...]]
Threshold = float | Literal["auto"] | None  # lowest score of a pair; auto: calibrated; None: equal pixels


@dataclass(frozen=True)
class DuplicatesRequest(Request):
    """What counts as a duplicate."""

    collection: str = option("name or alias of the collection")
    threshold: Threshold = option(
        "lowest score of a pair, as in a search; auto: above chance in this collection; null: only images with "
        "identical pixels",
        None,
    )
    where: Where | None = option("only items that match the filter; needs a threshold", None)
    exact: bool = option("compare every pair; takes quadratic time", False)
    limit: int = option("maximum number of groups, largest first", 1000, ge=1, le=MAX_LIMIT)

    def validate(self) -> None:
        """Raise InvalidRequest for an invalid filter, or one without a threshold."""
        parse(self.where)
        super().validate()
        if self.threshold is None and (self.where is not None or self.exact):
            raise InvalidRequest("where and exact need a threshold; set threshold, or remove them.")


@task("duplicates", DuplicatesRequest, path="/collections/{collection}/duplicates")
def find_duplicates(bench: Bench, request: DuplicatesRequest, context: TaskContext) -> dict[str, Any]:
    """Find images with equal pixels, or with similar vectors if there is a threshold.

    Returns:
        found: number of groups. surplus: number of items without which no duplicate is left.
        groups: the largest ones, with the first ids of each.
    """
    collection, progress = bench.collection(request.collection), context.progress
    if request.threshold is None:
        groups = exact_duplicates(collection, progress)
    else:
        score = None if request.threshold == "auto" else request.threshold
        groups = near_duplicates(collection, score, where=request.where, exact=request.exact, progress=progress)
    shown = [{"size": len(ids), "ids": list(ids[:MAX_IDS])} for ids in groups[: request.limit]]
    surplus = sum(len(ids) - 1 for ids in groups)
    return {"collection": collection.name, "found": len(groups), "surplus": surplus, "groups": shown}


@checked
def exact_duplicates(collection: Collection, progress: Progress = lambda done, total: None) -> Groups:
    """Return groups of at least two items whose images have the same pixels, whatever their files are."""
    groups: dict[str, list[str]] = {}
    hashed: Where = {"must": [{"key": PIXEL_HASH, "exists": True}]}
    for items in _counted(collection, hashed, MAX_LIMIT, progress, with_vector=False):
        for item in items:
            if (hash := item.metadata[PIXEL_HASH]) is not None:
                groups.setdefault(str(hash), []).append(item.id)
    return _largest_first(groups.values())


@checked
def near_duplicates(
    collection: Collection,
    threshold: float | None = None,
    *,
    where: Where | None = None,
    exact: bool = False,
    progress: Progress = lambda done, total: None,
) -> Groups:
    """Return groups of which every pair scores at least `threshold`, the largest first: complete linkage.

    The pairs are those that the index finds, at most 10,000 per item. An approximate index misses a pair only if it
    misses it from both sides. `exact` compares all with all, in quadratic time.

    Args:
        threshold: a score of the collection's metric, for cosine -1 to 1. None: for cosine, calibrated on random pairs,
            so that a tenth of a pair of different images reaches it by chance.
        where: only items that pass.
        progress: called with (done, total), counted in items.

    Raises:
        InvalidRequest: the threshold is not a possible score, None for another metric than cosine, or so low that more
            than 5,000,000 pairs reach it.
    """
    if threshold is None:
        threshold = calibrated_threshold(collection)
    check_pair_score(collection, threshold)
    known: dict[tuple[str, str], float] = {}  # the score of each pair
    for items in _counted(collection, where, PAGE, progress, with_vector=True):
        waiting, k = items, FIRST_K
        while waiting:
            full: list[Item] = []
            for some in batches(waiting, max(1, MATCHES_AT_ONCE // k)):
                vectors = np.stack([item.vector for item in some])
                found = collection.search_each(vectors, k, SearchOptions(where, exact, threshold))
                for item, matches in zip(some, found, strict=True):
                    for match in matches:
                        if match.id != item.id:
                            known[min(item.id, match.id), max(item.id, match.id)] = match.score
                    if len(known) > MOST_PAIRS:
                        raise InvalidRequest(
                            f"More than {MOST_PAIRS} pairs score {threshold:g} or more; give a higher threshold."
                        )
                    if len(matches) == k < MAX_K:  # there may be more
                        full.append(item)
            waiting, k = full, min(MAX_K, 4 * k)
    if not known:
        return []
    names = sorted({id for pair in known for id in pair})
    place = {id: i for i, id in enumerate(names)}
    pairs = np.array([(place[a], place[b]) for a, b in known])

    def score(more: np.ndarray) -> np.ndarray:
        # a pair that no search returned is below the threshold
        return np.array([known.get((names[min(pair)], names[max(pair)]), -math.inf) for pair in more.tolist()])

    found = link_pairs(pairs, np.array(list(known.values())), threshold, score)
    return _largest_first([names[i] for i in group] for group in found.groups)


def calibrated_threshold(collection: Collection) -> float:
    """Return the cosine that different images of a collection do not reach by chance."""
    total = collection.count()
    if collection.spec.metric != "cosine" or total < LEAST:
        raise InvalidRequest(
            f"A threshold can be calibrated for collections of at least {LEAST} items with the metric cosine; "
            f"{collection.name!r} has {counted(total, 'item')} and {collection.spec.metric}. Give a score."
        )
    rows: list[np.ndarray] = []
    for items in collection.pages(limit=PAGE):
        rows += [item.vector for item in items]
        if len(rows) >= SAMPLE:
            break
    vectors = unit_length(collection.compared(np.stack(rows).astype(np.float32)))
    return chance_threshold(vectors, total, "raw")[0]


def check_pair_score(collection: Collection, threshold: float) -> None:
    """Raise InvalidRequest unless two items of the collection can have that score."""
    if not math.isfinite(threshold) or (collection.spec.metric == "cosine" and not -1 <= threshold <= 1):
        raise InvalidRequest(f"threshold must be a score (for cosine, -1 to 1), got {threshold!r}.")


def _counted(
    collection: Collection, where: Where | None, limit: int, progress: Progress, *, with_vector: bool
) -> Iterator[list[Item]]:
    total, done = collection.count(where), 0
    for items in collection.pages(where, limit=limit, with_vector=with_vector):
        yield items
        done += len(items)
        progress(done, max(done, total))


def _largest_first(groups: Iterable[list[str]]) -> Groups:
    found = [tuple(sorted(ids)) for ids in groups if len(ids) > 1]
    return sorted(found, key=lambda ids: (-len(ids), ids))
