"""Place items that were added after an inspection on its map and in its clusters, without another inspection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnclr_hub.store.base import Collection, Item
from nnclr_hub.workbench.inspections import KeptInspection

NEIGHBORS = 5  # whose median is the place of a new item, as on the map of `inspect.project`
ASKED = 50  # matches among which the inspected neighbors are looked for
PAGE = 5000  # ids that are compared at once


@dataclass(frozen=True)
class Placements:
    """Where M new items belong.

    ids: of the items.
    coordinates: (M, 2) float32, on the map of the inspection.
    clusters: (M,) int32, that of most neighbors.
    cursor: of the next items; None if these are all.
    """

    ids: tuple[str, ...]
    coordinates: np.ndarray
    clusters: np.ndarray
    cursor: str | None


def place_new(collection: Collection, kept: KeptInspection, cursor: str | None = None, limit: int = 1000) -> Placements:
    """Place items that the inspection has not seen, at the median of their 5 nearest inspected items.

    An item that has only new items near it is placed by those, after they are placed, or else at the medoid of the
    nearest cluster.

    Args:
        cursor: of the previous call, an id; None: from the first.
        limit: number of items to place at most.
    """
    known = {id: i for i, id in enumerate(kept.ids)}
    found: list[str] = []
    while True:
        page = collection.scroll(cursor, PAGE, with_vector=False)
        found += [item.id for item in page.items if item.id not in known]
        cursor = page.cursor
        if len(found) > limit:
            cursor = found[limit - 1]
        if cursor is None or len(found) >= limit:
            break
    return _place(collection, kept, known, collection.get(found[:limit]), cursor)


def _place(
    collection: Collection, kept: KeptInspection, known: dict[str, int], new: list[Item], cursor: str | None
) -> Placements:
    coordinates = np.zeros((len(new), 2), np.float32)
    clusters = np.full(len(new), -1, np.int32)
    if not new:
        return Placements((), coordinates, clusters, cursor)
    matches = collection.search_batch(np.stack([item.vector for item in new]), ASKED)
    near = [[match.id for match in found if match.id != item.id] for item, found in zip(new, matches, strict=True)]
    place = {item.id: i for i, item in enumerate(new)}
    waiting = list(range(len(new)))
    while waiting:
        placed = {}
        for i in waiting:
            points = [
                (kept.coordinates[known[id]], kept.clusters[known[id]])
                if id in known
                else (coordinates[place[id]], clusters[place[id]])
                for id in near[i]
                if id in known or (id in place and clusters[place[id]] >= 0)
            ][:NEIGHBORS]
            if points:
                numbers = [int(cluster) for _, cluster in points]
                placed[i] = np.median([point for point, _ in points], axis=0), max(numbers, key=numbers.count)
        if not placed:
            break
        for i, (point, cluster) in placed.items():
            coordinates[i], clusters[i] = point, cluster
        waiting = [i for i in waiting if i not in placed]
    if waiting:
        medoids = [one["medoid"] for one in kept.findings["clusters"]]
        existing = {item.id: item.vector for item in collection.get(medoids)}
        for i in waiting:
            nearest = max(existing, key=lambda id: float(existing[id] @ new[i].vector), default=kept.ids[0])
            coordinates[i], clusters[i] = kept.coordinates[known[nearest]], kept.clusters[known[nearest]]
    return Placements(tuple(item.id for item in new), coordinates, clusters, cursor)
