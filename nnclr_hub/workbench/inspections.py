"""Inspections of collections, kept with their stores: a map, clusters and findings, each of one state of a collection.

keep_inspection(records, inspect_collection(collection))
kept = get_inspection(records, collection)
kept.coordinates                    # (N, 2) float32, in the order of kept.ids

`inspection_fields` writes the findings into the metadata of the items, so that filters can refer to them.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.errors import InspectionNotFound, InvalidRequest
from nnclr_hub.store.base import Collection
from nnclr_hub.store.records import Record, Records

if TYPE_CHECKING:
    from nnclr_hub.workbench.inspection.findings import Findings

INSPECTION = "inspection"  # kind of the records
LABEL_NEXT, MAX_LABEL_NEXT = 50, 1000  # items to label next
KEPT = 3  # of each collection
# steps of an inspection, with their shares of its time: a bar that only grows, and a rate that means something
STEPS = {"reading": 1, "comparing": 4, "checking labels": 2, "arranging": 3}
UNITS = 10_000  # of progress
LISTED = 1000  # outliers and suspect labels in the findings that are not flagged; all scores are kept as numbers


@dataclass(frozen=True)
class KeptInspection:
    """An inspection of a collection.

    collection: its name.
    number: 1, 2, ... for each collection.
    made: seconds since 1970.
    seq: number of the collection's last change that it saw.
    log: the log of changes that `seq` belongs to.
    ids: of the N items.
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
    number: int
    made: float
    seq: int
    log: str
    ids: tuple[str, ...]
    coordinates: np.ndarray
    clusters: np.ndarray
    outlier_scores: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    findings: Mapping[str, Any]
    fields_seq: int | None = None

    @property
    def about(self) -> dict[str, Any]:
        """Number, time, state of the collection, and number of items."""
        about = {"number": self.number, "made": self.made, "seq": self.seq, "fields_seq": self.fields_seq}
        return {**about, "items": len(self.ids)}


def inspect_collection(
    collection: Collection,
    field: str = "label",
    *,
    label_next: int = LABEL_NEXT,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> KeptInspection:
    """Inspect a collection as `nnclr inspect` does.

    Args:
        field: metadata key of the label.
        label_next: number of items to label next, at most; 1 to 1000.
        progress: called with (done, total) of all steps together, by their usual time.

    Raises:
        InvalidRequest: fewer than two items, or more vectors than fit into memory.
    """
    from nnclr_hub.workbench.inspection.findings import find
    from nnclr_hub.workbench.inspection.subject import collection_subject

    state = state_of(collection)

    def report(title: str) -> Callable[[int, int], None]:
        steps = list(STEPS)
        before, all_steps = sum(STEPS[one] for one in steps[: steps.index(title)]), sum(STEPS.values())
        return lambda done, total: progress(
            int(UNITS * (before + STEPS[title] * done / max(1, total)) / all_steps), UNITS
        )

    subject = collection_subject(collection, field=field, report=report)
    found = find(subject, label_next=label_next, report=report)
    return kept_findings(found, collection.name, state, field)


def kept_findings(found: Findings, name: str, state: tuple[str, int], field: str = "label") -> KeptInspection:
    """Return the findings in the form in which they are kept.

    Args:
        name: of the collection.
        state: see `state_of`; from before the items were read.
        field: metadata key of the label.
    """
    listed = {"field": field, **found.as_json()}
    for finding in ("outliers", "suspect_labels"):
        listed[finding] = [one for i, one in enumerate(listed[finding]) if i < LISTED or one["flagged"]]
    labels = np.full(len(found.subject.items), -1, np.int32)
    predicted = labels.copy()
    labels[found.labeled] = [found.classes.index(found.subject.labels[i] or "") for i in found.labeled]
    if found.held_out is not None:
        predicted[found.labeled] = found.held_out.predicted
    log, seq = state
    return KeptInspection(
        name,
        0,
        time.time(),
        seq,
        log,
        found.subject.items,
        found.map.coordinates,
        found.clusters.labels.astype(np.int32),
        found.outlier_scores.astype(np.float32),
        labels,
        predicted,
        listed,
    )


def keep_inspection(records: Records, kept: KeptInspection) -> None:
    """Store an inspection under the next number, and delete the oldest ones of its collection."""
    with records.transaction():
        before = _names(records, kept.collection)
        number = 1 + max((_number(name) for name in before), default=0)
        data = io.BytesIO()
        np.savez(
            data,
            ids=np.frombuffer("\n".join(kept.ids).encode(), np.uint8),
            coordinates=kept.coordinates,
            clusters=kept.clusters,
            outlier_scores=kept.outlier_scores,
            labels=kept.labels,
            predicted=kept.predicted,
        )
        content = {
            "made": kept.made,
            "seq": kept.seq,
            "log": kept.log,
            "findings": kept.findings,
            "fields_seq": kept.fields_seq,
        }
        records.put(Record(INSPECTION, f"{kept.collection}/{number:08}", content, data.getvalue()))
        if len(before) >= KEPT:
            records.delete(INSPECTION, *before[: len(before) - KEPT + 1])


def rename_inspections(records: Records, collection: str, to: str) -> None:
    """Keep the inspections of a collection that was renamed."""
    with records.transaction():
        names = _names(records, collection)
        for name in names:
            if (record := records.get(INSPECTION, name)) is not None:
                records.put(replace(record, name=f"{to}/{_number(name):08}"))
        records.delete(INSPECTION, *names)


def list_inspections(records: Records, collection: Collection) -> list[int]:
    """Return the numbers of a collection's inspections, the newest first."""
    log, _ = state_of(collection)
    return [
        _number(one.name)
        for one in reversed(records.list(INSPECTION, after=f"{collection.name}/"))
        if one.name.startswith(f"{collection.name}/") and one.content["log"] == log
    ]


def get_inspection(records: Records, collection: Collection, number: int | None = None) -> KeptInspection:
    """Return an inspection of a collection; without a number, the newest.

    Raises:
        InspectionNotFound: it does not exist, or is of a former collection of that name.
    """
    log, _ = state_of(collection)
    if number is None:
        number = max((_number(name) for name in _names(records, collection.name)), default=0)
    record = records.get(INSPECTION, f"{collection.name}/{number:08}")
    if record is None or record.content["log"] != log:
        raise InspectionNotFound(f"Collection {collection.name!r} has no such inspection; start one.")
    arrays = np.load(io.BytesIO(record.data or b""), allow_pickle=False)
    ids = tuple(arrays["ids"].tobytes().decode().split("\n"))
    content = record.content
    return KeptInspection(
        collection.name,
        number,
        content["made"],
        content["seq"],
        log,
        ids,
        arrays["coordinates"],
        arrays["clusters"],
        arrays["outlier_scores"],
        arrays["labels"],
        arrays["predicted"],
        content["findings"],
        content["fields_seq"],
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


def _names(records: Records, collection: str) -> list[str]:
    listed = records.list(INSPECTION, after=f"{collection}/")
    return [one.name for one in listed if one.name.startswith(f"{collection}/")]


def _number(name: str) -> int:
    return int(name.rpartition("/")[2])
