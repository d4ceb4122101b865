"""Findings as metadata of the items, under the key `inspection`, so that filters, facets and sorting refer to them.

    inspection.seq          number of the collection's last change that the inspection saw
    inspection.cluster      number of its cluster, 0 is the largest
    inspection.outlier      outlier score
    inspection.odd          true for flagged outliers
    inspection.duplicates   first id of its group of exact or near duplicates
    inspection.leak         true for items whose duplicates are in another split
    inspection.suspect      true for suspect labels; inspection.proposed is the other label
    inspection.predicted    label by a probe that has not seen the item
    inspection.problems     list of blurred, dark, bright, empty, odd_aspect, tiny
    inspection.next         1, 2, ...: what to label next

An item has only the fields that apply to it. Those of an earlier inspection are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import Collection
from nnclr_hub.workbench.inspections import KeptInspection

KEY = "inspection"
REVIEWED = "reviewed"  # set by people: the label that they have confirmed
FIELDS = ("seq", "cluster", "outlier", "odd", "duplicates", "leak", "suspect", "proposed", "predicted")
FIELDS += ("problems", "next")
AT_ONCE = 5000  # items of one change
Write = Callable[[Mapping[str, Mapping[str, Any]]], int]


def write_fields(
    collection: Collection,
    kept: KeptInspection,
    write: Write,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> KeptInspection:
    """Write the findings into the metadata of the items; return the inspection with its `fields_seq`.

    Args:
        write: stores merge patches by id, as `Collection.update_each`, and returns the number of items.
        progress: called with (done, total), counted in items.

    Raises:
        InvalidRequest: the metadata of an item would be too large; `inspection` stays as it is there.
    """
    fields = item_fields(kept)
    expected, done = collection.info().durable_seq, 0
    undisturbed = expected == kept.seq
    for some in batches(list(fields), AT_ONCE):
        found = write({id: {KEY: fields[id]} for id in some})
        now = collection.info().durable_seq
        # a store with a log numbers each change; the others have one number for each request
        undisturbed = undisturbed and now in (expected + found, expected + 1)
        expected = now
        progress(done := done + len(some), len(fields))
    return replace(kept, fields_seq=expected if undisturbed else None)


def item_fields(kept: KeptInspection) -> dict[str, dict[str, Any]]:
    """Return the fields of each item, without the key `inspection`; null for fields that do not apply."""
    findings = kept.findings
    classes = findings["classes"]
    fields: dict[str, dict[str, Any]] = {}
    columns = zip(kept.ids, kept.clusters, kept.outlier_scores, kept.predicted, strict=True)
    for id, cluster, score, predicted in columns:
        fields[id] = dict.fromkeys(FIELDS) | {"seq": kept.seq, "cluster": int(cluster)}
        fields[id] |= {"outlier": round(float(score), 4), "predicted": classes[predicted] if predicted >= 0 else None}
    for one in findings["outliers"]:
        if one["flagged"]:
            fields[one["item"]]["odd"] = True
    for one in findings["suspect_labels"]:
        if one["flagged"]:
            fields[one["item"]] |= {"suspect": True, "proposed": one["proposed"]}
    copies = {group["items"][0]: group["items"] for group in findings["exact_duplicates"]}
    for group in (*findings["exact_duplicates"], *findings["near_duplicates"]):
        for item in group["items"]:
            for one in copies.get(item, [item]):  # the first of equal images represents them in the near duplicates
                fields[one]["duplicates"] = group["items"][0]
    for leak in findings["leaks"]:
        for item in leak["items"]:
            fields[item]["leak"] = True
    for one in findings["image_problems"]:
        fields[one["item"]]["problems"] = one["problems"]
    for one in findings["label_next"]:
        fields[one["item"]]["next"] = one["rank"]
    return fields
