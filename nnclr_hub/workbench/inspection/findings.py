"""Findings: everything that an inspection says about a folder or a collection, as JSON and as tables to act on."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from nnclr_hub import inspect
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.cross_validation import OutOfFold, out_of_fold
from nnclr_hub.probe.uncertainty import confidence_interval
from nnclr_hub.workbench.inspection.subject import Report, Subject
from nnclr_hub.workbench.inspections import LABEL_NEXT, MAX_LABEL_NEXT

log = logging.getLogger(__name__)

LEAST_LABELED = 20  # images per inspection of labels
FENCE = 1.5  # interquartile ranges above the upper quartile: an outlier by Tukey's rule
JSON_FILE = "findings.json"


@dataclass(frozen=True)
class Findings:
    """What was found; positions refer to `subject.items`.

    map: of all items.
    clusters: of all items.
    outlier_scores: (N,) float32; flagged: those above Tukey's fence.
    exact: groups of equal pixels.
    near: groups of near duplicates, without copies of equal pixels.
    leaks: groups that cross splits.
    labeled: (L,) positions with a label; classes: their names.
    suspects, held_out, overlap: of the labeled items; None without enough labels.
    label_next: positions.
    """

    subject: Subject
    map: inspect.Map
    clusters: inspect.Clusters
    outlier_scores: np.ndarray
    flagged: np.ndarray
    exact: tuple[tuple[int, ...], ...]
    near: inspect.Duplicates
    leaks: tuple[inspect.Leak, ...]
    labeled: np.ndarray
    classes: tuple[str, ...]
    suspects: inspect.Suspects | None
    held_out: OutOfFold | None
    overlap: tuple[inspect.Overlap, ...]
    label_next: np.ndarray

    def as_json(self) -> dict[str, Any]:
        """Return the content of findings.json."""
        items, subject = self.subject.items, self.subject
        order = np.argsort(-self.outlier_scores, kind="stable")
        facts = [(item, one.facts) for item, one in zip(items, subject.scanned, strict=True) if one]
        return {
            "title": subject.title,
            "model": subject.model,
            "images": len(items),
            "left_out": dict(subject.left_out),
            "broken": [{"item": item, "reason": reason} for item, reason in subject.broken],
            "image_problems": [
                {"item": item, "problems": list(one.problems), **_rounded(one)} for item, one in facts if one.problems
            ],
            "exact_duplicates": [{"items": [items[i] for i in group], "score": 1.0} for group in self.exact],
            "near_duplicates": [
                {"items": [items[i] for i in group], "score": round(score, 4)}
                for group, score in zip(self.near.groups, self.near.scores, strict=True)
            ],
            "near_duplicate_threshold": round(self.near.threshold, 4),
            "outliers": [
                {"item": items[i], "score": round(float(self.outlier_scores[i]), 5), "flagged": bool(self.flagged[i])}
                for i in order
            ],
            "suspect_labels": self._suspects(),
            "clusters": [
                {
                    "cluster": number,
                    "share": round(float(share), 4),
                    "medoid": items[medoid],
                    "items": [items[i] for i in np.flatnonzero(self.clusters.labels == number)],
                }
                for number, (medoid, share) in enumerate(zip(self.clusters.medoids, self.clusters.share, strict=True))
            ],
            "leaks": [
                {"items": [items[i] for i in leak.items], "parts": list(leak.parts), "score": round(leak.score, 4)}
                for leak in self.leaks
            ],
            "classes": list(self.classes),
            "class_overlap": [
                {
                    "classes": [self.classes[one.first], self.classes[one.second]],
                    "share": round(one.share, 4),
                    "confused": one.confused,
                }
                for one in self.overlap
            ],
            "label_next": [{"item": items[i], "rank": rank} for rank, i in enumerate(self.label_next, 1)],
            "accuracy": self.accuracy(),
        }

    def accuracy(self) -> dict[str, Any] | None:
        """Return how well a linear probe predicts the labels of images that it has not seen, with its 95% interval."""
        if self.held_out is None:
            return None
        low, high = confidence_interval(self.held_out.right)
        rounded = {"low": round(low, 4), "high": round(high, 4)}
        return {"top1": round(float(self.held_out.right.mean()), 4), **rounded, "labels": len(self.labeled)}

    def _suspects(self) -> list[dict[str, Any]]:
        if self.suspects is None:
            return []
        return [
            {
                "item": self.subject.items[row],
                "score": round(float(self.suspects.score[i]), 5),
                "label": self.subject.labels[row],
                "proposed": self.classes[self.suspects.proposed[i]],
                "flagged": bool(self.suspects.issue[i]),
            }
            for i, row in ((i, self.labeled[i]) for i in self.suspects.order)
        ]


def write_findings(found: Mapping[str, Any], folder: Path, paths: Mapping[str, str] | None = None) -> list[Path]:
    """Write findings.json, and a table of each finding whose first columns are `id` and `path`; return the files.

    Args:
        paths: of the items; None: the items are paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JSON_FILE
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    surplus = [
        (item, group["items"][0], group["score"])
        for kind in ("exact_duplicates", "near_duplicates")
        for group in found[kind]
        for item in group["items"][1:]
    ]
    flagged = [(one["item"], one["score"]) for one in found["outliers"] if one["flagged"]]
    suspects = [
        (one["item"], one["proposed"], one["label"], one["score"]) for one in found["suspect_labels"] if one["flagged"]
    ]
    leaks = [
        (i, p, one["items"][0], one["score"])
        for one in found["leaks"]
        for i, p in zip(one["items"], one["parts"], strict=True)
    ]
    clusters = [(item, one["cluster"]) for one in found["clusters"] for item in one["items"]]
    problems = [(one["item"], ";".join(one["problems"])) for one in found["image_problems"]]
    broken = [(one["item"], one["reason"]) for one in found["broken"]]
    tables: dict[str, tuple[Sequence[str], Sequence[Sequence[Any]]]] = {
        "duplicates.csv": (("same_as", "score"), surplus),
        "outliers.csv": (("outlier_score",), flagged),
        "suspect_labels.csv": (("label", "given_label", "score"), suspects),
        "leaks.csv": (("part", "same_as", "score"), leaks),
        "clusters.csv": (("cluster",), clusters),
        "label_next.csv": (("label",), [(one["item"], "") for one in found["label_next"]]),
        "image_problems.csv": (("problems",), problems),
        "broken.csv": (("reason",), broken),
    }
    known = paths or {}
    return [
        path,
        *(
            _write_table(
                folder / name,
                ("id", "path", *columns),
                [(id, known.get(id, id), *others) for id, *others in rows],
            )
            for name, (columns, rows) in tables.items()
        ),
    ]


def find(
    subject: Subject, *, label_next: int = LABEL_NEXT, report: Report = lambda title: lambda done, total: None
) -> Findings:
    """Inspect everything.

    Args:
        label_next: number of images to label next, at most.
        report: called with the title of each long step; returns its progress function.

    Raises:
        InvalidRequest: fewer than two images, or `label_next` is not between 1 and 1000.
    """
    if not 1 <= label_next <= MAX_LABEL_NEXT:
        raise InvalidRequest(f"label_next must be between 1 and {MAX_LABEL_NEXT}, got {label_next}.")
    vectors = subject.vectors
    if len(vectors) < 2:
        raise InvalidRequest(f"An inspection compares images; {subject.title} has only one that can be read.")
    hashes = [one.pixel_hash if one else None for one in subject.scanned]
    place = {item: i for i, item in enumerate(subject.items)}
    exact = tuple(tuple(place[item] for item in group) for group in inspect.equal_values(subject.items, hashes))
    near = _near_duplicates(subject, exact, report("comparing"))
    copies = {group[0]: group for group in exact}  # of which the first represents the others
    whole = [tuple(sorted(copy for one in group for copy in copies.pop(one, (one,)))) for group in near.groups]
    leaks = inspect.find_leaks(
        [*((group, 1.0) for group in exact), *zip(whole, near.scores, strict=True)], subject.parts
    )
    groups = [*whole, *copies.values()]
    scores = inspect.outliers(vectors, groups=groups)
    different = np.ones(len(vectors), bool)
    different[[i for group in groups for i in group[1:]]] = False
    low, high = np.quantile(scores[different], [0.25, 0.75])
    labeled = np.array([i for i, label in enumerate(subject.labels) if label], np.int64)
    names = [subject.labels[i] or "" for i in labeled]
    classes = tuple(sorted(set(names)))
    held_out, suspects, overlap = None, None, []
    if len(classes) >= 2 and len(labeled) >= LEAST_LABELED and find_spec("torch") is None:
        log.warning("Labels are not checked, because that needs torch; pip install 'nnclr_hub[torch]'.")
    elif len(classes) >= 2 and len(labeled) >= LEAST_LABELED:
        numbers = np.array([classes.index(name) for name in names], np.int64)
        held_out = out_of_fold(vectors[labeled], numbers, progress=report("checking labels"))
        suspects = inspect.suspect_labels(held_out.probabilities, numbers)
        confirmed = np.array([subject.items[i] in subject.confirmed for i in labeled])
        suspects = replace(suspects, issue=suspects.issue & ~confirmed)
        overlap = inspect.class_overlap(held_out.predicted, numbers)
    return Findings(
        subject,
        inspect.project(vectors, progress=report("arranging")),
        inspect.clusters(vectors),
        scores,
        scores > high + FENCE * (high - low),
        exact,
        near,
        tuple(leaks),
        labeled,
        classes,
        suspects,
        held_out,
        tuple(overlap),
        _label_next(subject, labeled, label_next),
    )


def _near_duplicates(
    subject: Subject, exact: Sequence[Sequence[int]], progress: Callable[[int, int], None]
) -> inspect.Duplicates:
    """Search without the copies of equal pixels, of which the first represents the others."""
    copies = {i for group in exact for i in group[1:]}
    rows = np.array([i for i in range(len(subject.items)) if i not in copies])
    if len(rows) < 2:
        return inspect.Duplicates((), (), 1.0)
    found = inspect.near_duplicates(subject.vectors[rows], *(subject.pixels(rows) or ()), progress=progress)
    groups = tuple(tuple(int(rows[i]) for i in group) for group in found.groups)
    return inspect.Duplicates(groups, found.scores, found.threshold)


def _label_next(subject: Subject, labeled: np.ndarray, count: int) -> np.ndarray:
    taken = np.zeros(len(subject.items), bool)
    taken[labeled] = True
    free = int((~taken).sum())
    if not free:  # everything has a label
        return np.zeros(0, np.int64)
    return inspect.what_to_label_next(subject.vectors, min(count, free), labeled=taken)


def _rounded(facts: inspect.ImageFacts) -> dict[str, float]:
    return {name: round(value, 2) for name, value in vars(facts).items()}


def _write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(rows)
    return path
