"""Rows of a collection with the values of some metadata keys.

A segment never changes, except that rows die: an edit of an item's metadata is a death here and a row of a new segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nnclr_hub.store.columns.column import Column
from nnclr_hub.store.where import EARTH, Condition, Group, Node, geo_keys

ROWS = 60 << 10  # of a segment at most, so that codes take two bytes


class Segment:
    """Rows with ascending ids.

    Args:
        rids: (n,) int64 ascending.
        columns: by key. A key without a column is one that no row has.
    """

    def __init__(self, rids: np.ndarray, columns: dict[str, Column]) -> None:
        self.rids = rids
        self.columns = columns
        self.live = np.ones(len(rids), bool)
        self.dead = 0
        self.named = False  # whether the names of all keys of its rows were read
        self.placed: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.rids)

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes."""
        return 9 * len(self) + sum(column.nbytes for column in list(self.columns.values()))

    def kill(self, rids: np.ndarray) -> int:
        """Mark rows (m,) int64 ascending as dead; return how many of them it has. Unknown ones are ignored."""
        if not len(self) or not len(rids) or rids[0] > self.rids[-1] or rids[-1] < self.rids[0]:
            return 0
        place = np.minimum(np.searchsorted(self.rids, rids), len(self) - 1)
        place = place[(self.rids[place] == rids) & self.live[place]]
        self.live[place] = False
        self.dead += len(place)
        return len(place)

    def places(self, known: np.ndarray) -> np.ndarray:
        """Return the position of each row (n,) int64 among `known` (m,) int64 ascending; m where it is not there."""
        if self.placed is None or self.placed[0] is not known:
            place = np.searchsorted(known, self.rids)
            inside = place < len(known)
            inside[inside] = known[place[inside]] == self.rids[inside]
            self.placed = known, np.where(inside, place, len(known))
        return self.placed[1]

    def matching(self, group: Group, ids: Mapping[tuple[str, ...], np.ndarray]) -> np.ndarray:
        """Return which rows (n,) bool pass a filter, dead ones included.

        Args:
            group: the filter.
            ids: the row ids of the items of each condition on ids.
        """
        made = np.ones(len(self), bool)

        def holds(node: Node) -> np.ndarray:
            if isinstance(node, Group):
                return self.matching(node, ids)
            if node.kind == "ids":
                return np.isin(self.rids, ids[node.value])
            if not keys_of_condition(node) <= self.columns.keys():
                return np.full(len(self), node.kind == "exists" and not node.value)
            return self._near(node) if node.kind == "geo" else self.columns[node.key].holds(node)

        for node in group.must:
            made &= holds(node)
        if group.should is not None:
            made &= np.logical_or.reduce([np.zeros(len(self), bool), *map(holds, group.should)])
        for node in group.must_not:
            made &= ~holds(node)
        return made

    def _near(self, condition: Condition) -> np.ndarray:
        """Return which rows are inside of a circle; see `store.where.distance`."""
        lat, lon = (np.radians(self.columns[key].floats) for key in geo_keys(condition.key))
        other_lat, other_lon = np.radians(condition.value[:2])
        shrink = np.cos(lat) * np.cos(other_lat)
        with np.errstate(invalid="ignore"):
            half = np.sin((other_lat - lat) / 2) ** 2 + shrink * np.sin((other_lon - lon) / 2) ** 2
            return 2 * EARTH * np.arcsin(np.sqrt(np.clip(half, 0, 1))) <= condition.value[2]


def merged(segments: Sequence[Segment]) -> Segment:
    """Return one segment with the live rows of several; it has the columns that all of them have."""
    rids = np.concatenate([segment.rids[segment.live] for segment in segments])
    order = np.argsort(rids, kind="stable")
    keys = set.intersection(*(set(segment.columns) for segment in segments))
    columns = {}
    for key in keys:
        values = [value for segment in segments for value in _live(segment.columns[key].values(), segment.live)]
        columns[key] = Column([values[i] for i in order.tolist()])
    made = Segment(rids[order], columns)
    made.named = all(segment.named for segment in segments)
    return made


def _live(values: Iterable[object], live: np.ndarray) -> list[object]:
    return [value for value, alive in zip(values, live.tolist(), strict=True) if alive]


def keys_of(group: Group) -> set[str]:
    """Return the keys whose columns a filter needs."""
    return {key for condition in group.conditions() for key in keys_of_condition(condition)}


def keys_of_condition(condition: Condition) -> set[str]:
    """Return the keys whose columns a condition needs."""
    if condition.kind == "geo":
        return set(geo_keys(condition.key))
    return set() if condition.kind == "ids" else {condition.key}
