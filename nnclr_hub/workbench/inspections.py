"""Inspections of collections, kept with their stores: a map, clusters and findings, each of one state of a collection.

keep_inspection(records, inspect_collection(collection))
kept = get_inspection(records, collection)
kept.coordinates                    # (N, 2) float32, in the order of kept.ids
place_new(collection, kept)         # items that were added since, on the same map

`inspection.findings` makes them.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nnclr_hub.errors import InspectionNotFound, InvalidRequest
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.records import Record, Records

INSPECTION = "inspection"  # kind of the records, and metadata key of the findings
REVIEWED = "reviewed"  # set by people under that key: the label that they have confirmed
LABEL_NEXT, MAX_LABEL_NEXT = 50, 1000  # items to label next
KEPT = 3  # for each collection
LISTED = 1000  # outliers and suspect labels that are kept though they are not flagged; all scores are kept as numbers
ARRAYS = ("coordinates", "clusters", "outlier_scores", "labels", "predicted")
NEIGHBORS = 5  # whose median is the place of a new item, as on the map of `inspect.project`
ASKED = 50  # matches among which the inspected neighbors are searched
PAGE = 5000  # ids that are compared at once


@dataclass(frozen=True)
class KeptInspection:
    """An inspection of a collection, or of a folder.

    collection: its name.
    number: 1, 2, ... for each collection; 0 before it is kept.
    made: seconds since 1970.
    seq: number of the collection's last change that it saw.
    log: the log of changes that `seq` belongs to.
    ids: ids of the N items; paths in a folder.
    coordinates: (N, 2) float32, a map.
    clusters: (N,) int32.
    outlier_scores: (N,) float32, high is odd.
    labels: (N,) int32, the class of each item, as a place in findings["classes"]; -1 for items without a label.
    predicted: (N,) int32, the class that a probe which has not seen the item predicts; -1 for items without a label.
    findings: as in findings.json of `nnclr inspect`.
    fields_seq: number of the change that wrote the findings into the metadata; None: they were not written, or the
        collection was changed at the same time.
    """

    collection: str
    ids: tuple[str, ...]
    coordinates: np.ndarray
    clusters: np.ndarray
    outlier_scores: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    findings: Mapping[str, Any]
    seq: int
    log: str = ""
    number: int = 0
    made: float = field(default_factory=time.time)
    fields_seq: int | None = None

    @property
    def about(self) -> dict[str, Any]:
        """Number, time, state of the collection, and number of items."""
        about = {name: getattr(self, name) for name in ("number", "made", "seq", "fields_seq")}
        return {**about, "items": len(self.ids)}

    def as_json(self) -> dict[str, Any]:
        """Return the collection, and its state that was inspected."""
        about = self.about
        del about["number"]  # which it gets when it is kept, at the end of the job
        return {"collection": self.collection, **about}


def keep_inspection(records: Records, kept: KeptInspection) -> None:
    """Store an inspection under the next number, and delete the oldest ones of its collection."""
    findings = dict(kept.findings)
    for name in ("outliers", "suspect_labels"):
        findings[name] = [one for i, one in enumerate(findings[name]) if i < LISTED or one["flagged"]]
    content = {name: getattr(kept, name) for name in ("made", "seq", "log", "fields_seq")} | {"findings": findings}
    ids = np.frombuffer("\n".join(kept.ids).encode(), np.uint8)
    np.savez(data := io.BytesIO(), ids=ids, **{name: getattr(kept, name) for name in ARRAYS})
    with records.transaction():
        before = [one.name for one in _records(records, kept.collection)]
        number = 1 + max(map(_number, before), default=0)
        records.put(Record(INSPECTION, f"{kept.collection}/{number:08}", content, data.getvalue()))
        if len(before) >= KEPT:
            records.delete(INSPECTION, *before[: len(before) - KEPT + 1])


def rename_inspections(records: Records, collection: str, to: str) -> None:
    """Keep the inspections of a collection that was renamed."""
    with records.transaction():
        kept = _records(records, collection)
        for listed in kept:
            if (record := records.get(INSPECTION, listed.name)) is not None:
                records.put(replace(record, name=f"{to}/{_number(record.name):08}"))
        records.delete(INSPECTION, *(listed.name for listed in kept))


def list_inspections(records: Records, collection: Collection) -> list[int]:
    """Return the numbers of a collection's inspections, the newest first."""
    log, _ = state_of(collection)
    return [_number(one.name) for one in reversed(_records(records, collection.name)) if one.content["log"] == log]


def get_inspection(records: Records, collection: Collection, number: int | None = None) -> KeptInspection:
    """Return an inspection of a collection; without a number, the newest.

    Raises:
        InspectionNotFound: it does not exist, or is of a former collection of that name.
    """
    log, _ = state_of(collection)
    if number is None:
        number = max((_number(one.name) for one in _records(records, collection.name)), default=0)
    record = records.get(INSPECTION, f"{collection.name}/{number:08}")
    if record is None or record.content["log"] != log:
        raise InspectionNotFound(f"Collection {collection.name!r} has no such inspection; start one.")
    with np.load(io.BytesIO(record.data or b""), allow_pickle=False) as arrays:
        ids = tuple(arrays["ids"].tobytes().decode().split("\n"))
        return KeptInspection(
            collection.name, ids, number=number, **{name: arrays[name] for name in ARRAYS}, **record.content
        )


def is_current(kept: KeptInspection, collection: Collection) -> bool:
    """Return whether no item was stored or deleted since. Edits of metadata, such as labels, do not matter."""
    info = collection.info()
    return info.vectors_seq <= kept.seq <= info.durable_seq  # Milvus counts the changes of one connection


def state_of(collection: Collection) -> tuple[str, int]:
    """Return the log of changes of a collection, "" without one, and the number of its last change."""
    seq = collection.info().durable_seq
    try:
        return collection.changes(seq, 1).log, seq
    except InvalidRequest:
        return "", seq


def _records(records: Records, collection: str) -> list[Record]:
    listed = records.list(INSPECTION, after=f"{collection}/")
    return [one for one in listed if one.name.startswith(f"{collection}/")]


def _number(name: str) -> int:
    return int(name.rpartition("/")[2])


# ---- items that were added since


@dataclass(frozen=True)
class Placements:
    """Where M new items belong.

    ids: ids of the items.
    coordinates: (M, 2) float32, on the map of the inspection.
    clusters: (M,) int32, that of most neighbors.
    cursor: where the next items begin; None if these are all.
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
        cursor: the last id of the previous call; None: from the first.
        limit: number of items to place at most.
    """
    known = dict(zip(kept.ids, zip(kept.coordinates, kept.clusters.tolist(), strict=True), strict=True))
    found: list[str] = []
    while True:
        page = collection.scroll(cursor, PAGE, with_vector=False)
        found += [item.id for item in page.items if item.id not in known]
        cursor = page.cursor
        if len(found) > limit:
            cursor = found[limit - 1]
        if cursor is None or len(found) >= limit:
            break
    new = collection.get(found[:limit])
    placed = _place(collection, kept, known, new)
    coordinates = np.array([placed[item.id][0] for item in new], np.float32).reshape(-1, 2)
    clusters = np.array([placed[item.id][1] for item in new], np.int32)
    return Placements(tuple(item.id for item in new), coordinates, clusters, cursor)


def _place(
    collection: Collection, kept: KeptInspection, known: Mapping[str, Any], new: list[Item]
) -> dict[str, tuple[Any, int]]:
    """Return the point and the cluster of each inspected or new item."""
    placed = dict(known)
    matches = collection.search_each(np.stack([item.vector for item in new]), ASKED) if new else []
    waiting = {
        item.id: [one.id for one in found if one.id != item.id] for item, found in zip(new, matches, strict=True)
    }
    while waiting:
        more = {}
        for id, near in waiting.items():
            if neighbors := [placed[one] for one in near if one in placed][:NEIGHBORS]:
                numbers = [cluster for _, cluster in neighbors]
                more[id] = np.median([point for point, _ in neighbors], axis=0), max(numbers, key=numbers.count)
        if not more:
            break
        placed |= more
        waiting = {id: near for id, near in waiting.items() if id not in more}
    if waiting:
        medoids = {
            item.id: item.vector for item in collection.get([one["medoid"] for one in kept.findings["clusters"]])
        }
        vectors = {item.id: item.vector for item in new}
        for id in waiting:
            placed[id] = known[max(medoids, key=lambda one: float(medoids[one] @ vectors[id]), default=kept.ids[0])]
    return placed
