"""Findings: everything that an inspection reports about a folder or a collection, each described once in FINDINGS.

    kept = inspect_collection(collection)
    kept.findings["near_duplicates"]        # the content of findings.json
    write_findings(kept.findings, folder)   # findings.json, and a table of each finding to act on
    write_fields(collection, kept, partial(bench.update_each, collection.name))

The last call writes them into the metadata of the items, under the key `inspection`, so that filters, facets and
sorting refer to them:

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

import csv
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nnclr_hub import inspect
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.cross_validation import out_of_fold
from nnclr_hub.probe.uncertainty import confidence_interval
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import Collection, Progress
from nnclr_hub.store.where import check_key
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.workbench.bench import LocalBench, Report
from nnclr_hub.workbench.inspection.subject import Parts, Subject, collection_subject, one_label_each
from nnclr_hub.workbench.inspections import INSPECTION, LABEL_NEXT, MAX_LABEL_NEXT, KeptInspection, keep_inspection
from nnclr_hub.workbench.requests import Request, option
from nnclr_hub.workbench.tasks import TaskContext, portion, task

log = logging.getLogger(__name__)

LEAST_LABELED = 20  # images per inspection of labels
FENCE = 1.5  # interquartile ranges above the upper quartile: an outlier by Tukey's rule
JSON_FILE = "findings.json"
# steps of an inspection, with their shares of its time: a bar that only grows, and a rate that means something
STEPS = {"reading": (0, 0.1), "comparing": (0.1, 0.5), "checking labels": (0.5, 0.7), "arranging": (0.7, 1)}
STEPS |= {"writing": (1, 1.1)}  # if findings are written
# what clients of a server see of the steps
PHASES = {"reading": "Reading the images", "comparing": "Looking for copies"}
PHASES |= {"checking labels": "Checking the labels", "arranging": "Arranging the map"}
PHASES |= {"writing": "Writing the findings"}
FIELDS = ("seq", "cluster", "outlier", "odd", "duplicates", "leak", "suspect", "proposed", "predicted")
FIELDS += ("problems", "next")
AT_ONCE = 5000  # items of one change
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """A kind of finding.

    name: its key in findings.json; entries with `flagged` false are listed there only.
    title, note: of its section in the report, which findings may share. The note is formatted with all findings.
    file, columns: its table, "" for none, and the columns of the table after id and path.
    rows: the rows of the table for an entry.
    captions: captions of the images of an entry.
    fields: what the metadata of the items of an entry says.
    shown: one sheet with an image for each entry, one with all images for each entry, or a table.
    step: what to do about it, at the top of the report; "" for what needs nothing.
    """

    name: str
    title: str
    note: str
    file: str
    columns: tuple[str, ...]
    rows: Callable[[Entry], Sequence[Sequence[Any]]]
    captions: Callable[[Entry], Sequence[str]] = lambda entry: ()
    fields: Callable[[Entry], Mapping[str, Any]] = lambda entry: {}
    shown: Literal["sheet", "groups", "table"] = "sheet"
    step: str = ""


def _surplus(entry: Entry) -> list[tuple[Any, ...]]:
    first, *others = entry["items"]
    return [(item, first, entry["score"]) for item in others]


def _group_caption(entry: Entry, text: str) -> list[str]:
    return [f"{len(entry['items'])} images, {text}", *("" for _ in entry["items"][1:])]


COPIES_NOTE = "Every pair has a score of at least {near_duplicate_threshold:.3f}. duplicates.csv lists the copies."
COPIES_STEP = "delete the copies in duplicates.csv"
FINDINGS = (
    Finding(
        "exact_duplicates",
        "Duplicates",
        COPIES_NOTE,
        "duplicates.csv",
        ("same_as", "score"),
        _surplus,
        lambda one: _group_caption(one, "equal pixels"),
        shown="groups",
        step=COPIES_STEP,
    ),
    Finding(
        "near_duplicates",
        "Duplicates",
        COPIES_NOTE,
        "duplicates.csv",
        ("same_as", "score"),
        _surplus,
        lambda one: _group_caption(one, f"score {one['score']:.3f}"),
        shown="groups",
        step=COPIES_STEP,
    ),
    Finding(
        "leaks",
        "Leaks",
        "The same image in different splits. leaks.csv has all.",
        "leaks.csv",
        ("part", "same_as", "score"),
        lambda one: [(i, p, one["items"][0], one["score"]) for i, p in zip(one["items"], one["parts"], strict=True)],
        lambda one: one["parts"],
        lambda one: {"leak": True},
        shown="groups",
        step="keep each image in one split, or scores on the test images are not held out",
    ),
    Finding(
        "outliers",
        "Outliers",
        "Images unlike their nearest neighbors, the most unusual first, with their scores.",
        "outliers.csv",
        ("outlier_score",),
        lambda one: [(one["item"], one["score"])],
        lambda one: [f"{one['score']:.3f}"],
        lambda one: {"odd": True},
        step="check whether they are foreign, broken, or rare and valuable",
    ),
    Finding(
        "suspect_labels",
        "Suspect labels",
        "Given label → proposed label. suspect_labels.csv can be applied to a collection.",
        "suspect_labels.csv",
        ("label", "given_label", "score"),
        lambda one: [(one["item"], one["proposed"], one["label"], one["score"])],
        lambda one: [f"{one['label']} → {one['proposed']}"],
        lambda one: {"suspect": True, "proposed": one["proposed"]},
        step="correct them, or confirm them in the app",
    ),
    Finding(
        "class_overlap",
        "Class overlap",
        "Pairs of classes that a linear probe takes for each other on images that it has not seen.",
        "",
        ("class", "class", "share", "images"),
        lambda one: [(*one["classes"], f"{one['share']:.1%}", one["confused"])],
        shown="table",
    ),
    Finding(
        "clusters",
        "Clusters",
        "The most central image of each cluster, with its nearest. clusters.csv has every image.",
        "clusters.csv",
        ("cluster",),
        lambda one: [(item, one["cluster"]) for item in one["items"]],
        lambda one: [f"cluster {one['cluster']}, {one['share']:.0%}", *("" for _ in one["items"][1:])],
        shown="groups",
    ),
    Finding(
        "label_next",
        "Label next",
        "Images that represent those without a label, in this order. label_next.csv has them all.",
        "label_next.csv",
        ("label",),
        lambda one: [(one["item"], "")],
        lambda one: [str(one["rank"])],
        lambda one: {"next": one["rank"]},
        step="label these first: few labels cover the images",
    ),
    Finding(
        "image_problems",
        "Image problems",
        "Images that are empty, dark, bright, blurred, tiny or unusually long. image_problems.csv has them all.",
        "image_problems.csv",
        ("problems",),
        lambda one: [(one["item"], ";".join(one["problems"]))],
        lambda one: [", ".join(one["problems"])],
        lambda one: {"problems": one["problems"]},
        step="take them out of the training images",
    ),
    Finding(
        "broken",
        "Unreadable files",
        "",
        "broken.csv",
        ("reason",),
        lambda one: [(one["item"], one["reason"])],
        shown="table",
        step="repair or delete these files",
    ),
)


def flagged(found: Mapping[str, Any], name: str) -> list[Entry]:
    """Return the entries of a finding to act on."""
    return [one for one in found[name] if one.get("flagged", True)]


def write_findings(found: Mapping[str, Any], folder: Path, paths: Mapping[str, str] | None = None) -> list[Path]:
    """Write findings.json, and a table of each finding whose first columns are `id` and `path`; return the files.

    Args:
        paths: paths of the items; None: the items are paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / JSON_FILE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    tables: dict[str, list[Sequence[Any]]] = {}
    for finding in FINDINGS:
        rows = [row for one in flagged(found, finding.name) for row in finding.rows(one)]
        if finding.file:
            table = tables.setdefault(finding.file, [("id", "path", *finding.columns)])
            table += [(id, (paths or {}).get(id, id), *cells) for id, *cells in rows]
    for name, rows in tables.items():
        with (folder / name).open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            csv.writer(file).writerows(rows)
    return [folder / name for name in (JSON_FILE, *tables)]


# ---- find


@dataclass(frozen=True)
class InspectionRequest(Request):
    """What to inspect."""

    collection: str = option("name or alias of the collection")
    field: str = option("metadata key of the label of an item", "label")
    write_fields: bool = option(
        "write the findings into the metadata of the items, as `inspection.cluster`, `inspection.outlier`, "
        "`inspection.duplicates`, `inspection.suspect` and so on, so that filters and facets can refer to them",
        False,
    )
    label_next: int = option("number of items to label next, at most", LABEL_NEXT, ge=1, le=MAX_LABEL_NEXT)
    labels: LabelTable | None = option("table of labels, used instead of the field", None, hidden=True)
    parts: Parts = option("what leaks are searched between", "splits", hidden=True)

    def validate(self) -> None:
        """Raise InvalidFilter for an invalid key, or InvalidRequest."""
        super().validate()
        check_key(self.field)


@task("inspection", InspectionRequest, path="/collections/{collection}/inspections")
def inspect_and_keep(bench: LocalBench, request: InspectionRequest, context: TaskContext) -> dict[str, Any]:
    """Inspect a collection, and keep the inspection with the store at the end of the task."""
    whole = STEPS["writing" if request.write_fields else "arranging"][1]

    def report(title: str) -> Progress:
        context.begin(PHASES[title])
        start, end = STEPS[title]
        return portion(context.progress, start / whole, end / whole)

    kept, _ = inspect_request(bench, request, report)
    context.at_end(partial(keep_inspection, kept=kept))
    return kept.as_json()


def inspect_request(bench: LocalBench, request: InspectionRequest, report: Report) -> tuple[KeptInspection, Subject]:
    """Inspect a collection, and write the findings into its metadata if `write_fields` is set."""
    collection = bench.collection(request.collection)
    options: Any = {"field": request.field, "parts": request.parts, "write_fields": request.write_fields}
    options |= {"labels": None if request.labels is None else one_label_each(request.labels)}
    subject = collection_subject(collection, **options, report=report)
    kept = inspect_subject(subject, request.label_next, report=report)
    if request.write_fields:
        update = partial(bench.update_each, collection.name)
        kept = write_fields(collection, kept, update, progress=report("writing"))
    return kept, subject


def inspect_collection(collection: Collection) -> KeptInspection:
    """Inspect a collection as `nnclr inspect` does by default; see `inspect_subject`."""
    return inspect_subject(collection_subject(collection))


def inspect_subject(
    subject: Subject, label_next: int = LABEL_NEXT, *, report: Report = lambda title: lambda done, total: None
) -> KeptInspection:
    """Inspect everything.

    Args:
        label_next: number of images to label next, at most.
        report: called with the title of each long step; returns its progress function.

    Raises:
        InvalidRequest: fewer than two images, or `label_next` is not between 1 and 1000.
    """
    if not 1 <= label_next <= MAX_LABEL_NEXT:
        raise InvalidRequest(f"label_next must be between 1 and {MAX_LABEL_NEXT}, got {label_next}.")
    items, vectors = subject.items, subject.vectors
    if len(vectors) < 2:
        raise InvalidRequest(f"An inspection compares images; {subject.title} has only one that can be read.")
    exact, near, whole, leaks = _duplicates(subject, report("comparing"))
    scores = inspect.outliers(vectors, groups=whole)
    different = np.ones(len(vectors), bool)
    different[[i for group in whole for i in group[1:]]] = False
    low, high = np.quantile(scores[different], [0.25, 0.75])
    clusters = inspect.clusters(vectors)
    labels = np.array([-1 if label is None else subject.classes.index(label) for label in subject.labels], np.int32)
    about_labels, predicted = _label_findings(subject, labels, report)
    facts = [(item, one.facts) for item, one in zip(items, subject.scanned, strict=True) if one]
    found = {
        **({"field": subject.field} if subject.field else {}),
        "title": subject.title,
        "model": subject.model,
        "images": len(items),
        "left_out": dict(subject.left_out),
        "broken": [{"item": item, "reason": reason} for item, reason in subject.broken],
        "image_problems": [
            {"item": item, "problems": list(one.problems)} | {name: round(n, 2) for name, n in vars(one).items()}
            for item, one in facts
            if one.problems
        ],
        "exact_duplicates": [{"items": [items[i] for i in group], "score": 1.0} for group in exact],
        "near_duplicates": [
            {"items": [items[i] for i in group], "score": round(score, 4)}
            for group, score in zip(near.groups, near.scores, strict=True)
        ],
        "near_duplicate_threshold": round(near.threshold, 4),
        "outliers": [
            {
                "item": items[i],
                "score": round(float(scores[i]), 5),
                "flagged": bool(scores[i] > high + FENCE * (high - low)),
            }
            for i in np.argsort(-scores, kind="stable")
        ],
        "clusters": [
            {
                "cluster": number,
                "share": round(float(share), 4),
                "medoid": items[medoid],
                "items": [items[i] for i in _nearest_first(vectors, medoid, clusters.labels == number)],
            }
            for number, (medoid, share) in enumerate(zip(clusters.medoids, clusters.share, strict=True))
        ],
        "leaks": [
            {"items": [items[i] for i in leak.items], "parts": list(leak.parts), "score": round(leak.score, 4)}
            for leak in leaks
        ],
        "classes": list(subject.classes),
        **about_labels,
        "label_next": [
            {"item": items[i], "rank": rank} for rank, i in enumerate(_label_next(vectors, labels, label_next), 1)
        ],
    }
    return KeptInspection(
        subject.title,
        items,
        inspect.project(vectors, progress=report("arranging")).coordinates,
        clusters.labels.astype(np.int32),
        scores.astype(np.float32),
        labels,
        predicted,
        found,
        *subject.state,
    )


def _nearest_first(vectors: np.ndarray, row: int, mask: np.ndarray) -> np.ndarray:
    rows = np.flatnonzero(mask)
    return rows[np.argsort(-(vectors[rows] @ vectors[row]), kind="stable")]


def _duplicates(
    subject: Subject, progress: Progress
) -> tuple[list[tuple[int, ...]], inspect.Duplicates, list[tuple[int, ...]], list[inspect.Leak]]:
    """Return groups of equal pixels, near duplicates without copies of equal pixels, both together, and leaks."""
    place = {item: i for i, item in enumerate(subject.items)}
    hashes = [one.pixel_hash if one else None for one in subject.scanned]
    exact = [tuple(place[item] for item in group) for group in inspect.equal_values(subject.items, hashes)]
    copies = {group[0]: group for group in exact}  # the first represents the others
    surplus = {i for group in exact for i in group[1:]}
    rows = np.array([i for i in range(len(subject.items)) if i not in surplus])
    near = inspect.Duplicates((), (), 1.0)
    if len(rows) > 1:
        found = inspect.near_duplicates(subject.vectors[rows], *(subject.pixels(rows) or ()), progress=progress)
        near = replace(found, groups=tuple(tuple(int(rows[i]) for i in group) for group in found.groups))
    whole = [tuple(sorted(copy for one in group for copy in copies.pop(one, (one,)))) for group in near.groups]
    groups = [*((group, 1.0) for group in exact), *zip(whole, near.scores, strict=True)]
    return exact, near, [*whole, *copies.values()], inspect.find_leaks(groups, subject.parts)


def _label_findings(subject: Subject, labels: np.ndarray, report: Report) -> tuple[dict[str, Any], np.ndarray]:
    """Return the findings about labels, and the predicted class of each item.

    The accuracy is that of a linear probe on images that it has not seen; None without enough labels.
    """
    found: dict[str, Any] = {"suspect_labels": [], "class_overlap": [], "accuracy": None}
    predicted, labeled = np.full(len(labels), -1, np.int32), np.flatnonzero(labels >= 0)
    if len(subject.classes) < 2 or len(labeled) < LEAST_LABELED:
        return found, predicted
    if find_spec("torch") is None:
        log.warning("Labels are not checked, because that needs torch; pip install 'nnclr_hub[torch]'.")
        return found, predicted
    numbers, classes = labels[labeled].astype(np.int64), subject.classes
    held_out = out_of_fold(subject.vectors[labeled], numbers, progress=report("checking labels"))
    suspects = inspect.suspect_labels(held_out.probabilities, numbers)
    predicted[labeled] = held_out.predicted
    found["suspect_labels"] = [
        {
            "item": (item := subject.items[labeled[i]]),
            "score": round(float(suspects.score[i]), 5),
            "label": subject.labels[labeled[i]],
            "proposed": classes[suspects.proposed[i]],
            "flagged": bool(suspects.issue[i]) and item not in subject.confirmed,
        }
        for i in suspects.order
    ]
    found["class_overlap"] = [
        {"classes": [classes[one.first], classes[one.second]], "share": round(one.share, 4), "confused": one.confused}
        for one in inspect.class_overlap(held_out.predicted, numbers)
    ]
    low, high = (round(bound, 4) for bound in confidence_interval(held_out.right))
    top1 = round(float(held_out.right.mean()), 4)
    found["accuracy"] = {"top1": top1, "low": low, "high": high, "labels": len(labeled)}
    return found, predicted


def _label_next(vectors: np.ndarray, labels: np.ndarray, count: int) -> Sequence[int] | np.ndarray:
    free = int((labels < 0).sum())
    return inspect.what_to_label_next(vectors, min(count, free), labeled=labels >= 0) if free else ()


# ---- metadata


def write_fields(
    collection: Collection,
    kept: KeptInspection,
    write: Callable[[Mapping[str, Mapping[str, Any]]], int],
    *,
    progress: Progress = lambda done, total: None,
) -> KeptInspection:
    """Write the findings into the metadata of the items; return the inspection with its `fields_seq`.

    Args:
        write: stores merge patches by id, as `Collection.update_each`, and returns the number of items.
        progress: called with (done, total), counted in items.
    """
    fields = item_fields(kept)
    expected, done = collection.info().durable_seq, 0
    undisturbed = expected == kept.seq
    for some in batches(list(fields), AT_ONCE):
        found = write({id: {INSPECTION: fields[id]} for id in some})
        now = collection.info().durable_seq
        # a store with a log numbers each change; the others have one number for each request
        undisturbed = undisturbed and now in (expected + found, expected + 1)
        expected = now
        progress(done := done + len(some), len(fields))
    return replace(kept, fields_seq=expected if undisturbed else None)


def item_fields(kept: KeptInspection) -> dict[str, dict[str, Any]]:
    """Return the fields of each item, without the key `inspection`; null for fields that do not apply."""
    found = kept.findings
    fields: dict[str, dict[str, Any]] = {}
    for id, cluster, score, predicted in zip(
        kept.ids, kept.clusters.tolist(), kept.outlier_scores.tolist(), kept.predicted, strict=True
    ):
        fields[id] = dict.fromkeys(FIELDS) | {"seq": kept.seq, "cluster": cluster, "outlier": round(score, 4)}
        fields[id]["predicted"] = found["classes"][predicted] if predicted >= 0 else None
    for finding in FINDINGS:
        for one in flagged(found, finding.name):
            for item in items_of(one):
                fields[item].update(finding.fields(one))
    copies = {group["items"][0]: group["items"] for group in found["exact_duplicates"]}
    for group in (*found["exact_duplicates"], *found["near_duplicates"]):
        for item in group["items"]:
            for one in copies.get(item, [item]):  # the first of equal images represents them in the near duplicates
                fields[one]["duplicates"] = group["items"][0]
    return fields


def items_of(entry: Entry) -> Iterator[str]:
    """Yield the items that an entry of a finding is about."""
    yield from entry["items"] if "items" in entry else [entry["item"]] if "item" in entry else ()
