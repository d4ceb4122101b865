"""Linear probes: fitted on a collection, on examples or on a folder; scored, kept by name, and used to predict.

    fitted = fit_on_collection(collection, "label", options=FitOptions(threshold=0.5))
    keep_probe(bench.store.records, fitted.kept("pets"), replace=False)
    bench.predict("pets", collection="photos", ids=["a"])[0].label

A second probe gives the scores. It is fitted in the same manner on four fifths of the rows. The other rows, which
selected nothing, are scored. The probe itself is fitted on all rows. A kept probe is a record of the store: its
description is JSON, its weights are safetensors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.encoder.features import FeatureSource, ImageFile, extract_features
from nnclr_hub.encoder.preprocessing import unit_rows
from nnclr_hub.errors import ImageError, InvalidRequest, ItemNotFound, NNCLRHubError, ProbeExists, ProbeNotFound
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.images.labels import LabeledImages, first_names, read_labeled, read_splits
from nnclr_hub.images.source import file_key
from nnclr_hub.plural import counted
from nnclr_hub.probe.few_shot import SHOTS, Shots, few_shot_curve
from nnclr_hub.probe.linear_probe import ABOUT, WEIGHTS, Label, LinearProbe, Prediction
from nnclr_hub.probe.metrics import (
    Labeling,
    average_precision_11,
    mean_average_precision_11,
    mean_per_class,
    top_k_accuracy,
)
from nnclr_hub.probe.uncertainty import confidence_interval
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import Collection, Progress, Where
from nnclr_hub.store.checks import check_name
from nnclr_hub.store.records import Record, Records
from nnclr_hub.store.where import check_key, parse
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.workbench.bench import LocalBench
from nnclr_hub.workbench.labels import LabeledVectors, label_of, labeled_items, refuse_few
from nnclr_hub.workbench.metadata import path_of
from nnclr_hub.workbench.payload import decode_base64, decode_vector
from nnclr_hub.workbench.requests import Request, option
from nnclr_hub.workbench.tasks import TaskContext, portion, task

PROBE = "probe"
CARD = "card.json"
FITTED_ON = "fitted_on.bin"  # keys of 16 bytes of the images of a fit, in the folder of a probe
HELD_OUT = 0.2
LEAST = 3  # rows of a class of which one is held out: two remain, one of which may select the L2 penalty
MOST_CONFUSED = 50  # classes for which a table of confusions is readable
MOST_SHOT = 2000  # rows per fit of the few-shot curve, which needs many fits
BATCH = 32  # images that are embedded at a time
MAX_EXAMPLES = 100_000  # that a request may hold
MAX_NAMED = 100  # unreadable images in a result
Validation = tuple[np.ndarray, "np.ndarray | list[Label]"] | None
Broken = list[tuple[Any, str]]  # position or name of each image that could not be read, with the reason


@dataclass(frozen=True)
class FitOptions(Request):
    """How to fit; see `fit_linear_probe`."""

    l2: float | None = option("L2 penalty; null: chosen on held-out rows", None, ge=0)
    balanced: bool = option("weight classes equally", False)
    threshold: float | None = option("lowest probability; below it, no class is predicted", None, ge=0, le=1)
    reject_far: float | None = option(
        "predict none for vectors far from all labeled ones; the share of good ones to lose", None, gt=0, lt=1
    )
    device: str | None = option("cpu or cuda; null: the CPU", None, hidden=True)


@dataclass(frozen=True)
class ProbeEvaluation:
    """How accurate a probe is on labeled rows that it was not fitted on.

    scores: top1, top5 (of more than five classes) and mean_per_class in [0, 1]; for several labels a row, map11.
    per_class: accuracy of each class that occurs; for several labels, its average precision.
    none: share of the rows that fell below the threshold.
    images: how many rows were scored.
    unknown: how many of these have a class that the probe lacks, by class; they count as wrong.
    notes: one sentence for each reason why images were not scored.
    interval: 95% interval of top1; None for several labels a row.
    fitted_on: how many of the images were used to fit the probe.
    """

    scores: dict[str, float]
    per_class: dict[str, float]
    none: float
    images: int
    unknown: dict[str, int]
    notes: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None
    fitted_on: int = 0


@dataclass(frozen=True)
class FittedProbe:
    """A probe, what it was fitted on, and the accuracy of one fitted in the same way.

    rows: fitted on.
    held_out: None if every class had too few rows, or a validation set selected the penalty.
    classes: for each class its label, rows (fitted on), held_out (rows scored) and score, None if none was held out.
    confusion: for the held-out rows of each class (in the order of `classes`), how many were predicted as each class;
        None for several labels per row, above 50 classes, and where no row was held out.
    few_shot: how the accuracy on the held-out rows grows with the number of labels per class, from small fits.
    source: JSON: where the rows come from.
    left_out: how many rows were not used, by reason.
    without_images: classes of a folder without an image to fit on; the probe does not have them.
    images: keys of the files of a folder that the probe was fitted on or that selected its penalty; see `file_key`.
    """

    probe: LinearProbe
    rows: int
    held_out: ProbeEvaluation | None
    classes: tuple[dict[str, Any], ...]
    confusion: tuple[tuple[int, ...], ...] | None = None
    few_shot: tuple[Shots, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    broken: tuple[tuple[Any, str], ...] = ()
    without_images: tuple[str, ...] = ()
    images: frozenset[bytes] = frozenset()

    def save(self, folder: Path) -> None:
        """Write the probe to a folder, and the images that it was fitted on, so that an evaluation recognizes them."""
        self.probe.save(folder)
        replace_file(folder / FITTED_ON, b"".join(sorted(self.images)))

    def kept(self, name: str) -> KeptProbe:
        """Return the probe with a name and its description, ready to be stored."""
        about = {
            "created": time.time(),
            "source": dict(self.source),
            "dim": self.probe.weight.shape[1],
            "rows": self.rows,
            "left_out": dict(self.left_out),
            "held_out": self.held_out.images if self.held_out else 0,
            "scores": self.held_out.scores if self.held_out else {},
            "none": self.held_out.none if self.held_out else 0.0,
            "per_class": list(self.classes),
            "confusion": self.confusion and [list(row) for row in self.confusion],
            "few_shot": [{"labels": one.per_class, "top1": list(one.accuracy)} for one in self.few_shot],
        }
        return KeptProbe(name, self.probe, about)


@dataclass(frozen=True)
class KeptProbe:
    """A named probe, without weights in a listing, and its description as JSON; see `FittedProbe.kept`."""

    name: str
    probe: LinearProbe
    about: Mapping[str, Any]


# ---- fit


@dataclass(frozen=True, kw_only=True)
class ProbeFit(FitOptions):
    """A probe to fit on a metadata field of a collection, or on labeled items."""

    name: str = option("name of the probe")
    collection: str | None = option("name or alias of the collection", None)
    field: str | None = option("metadata key that holds the label of an item, or a list of labels", None)
    where: Where | None = option("fit only on items that match the filter", None)
    model: str | None = option("model of the items' vectors; for images, null means the default model", None)
    items: Sequence[Mapping[str, Any]] | None = option(
        "labels, each with a vector or an image", None, min_length=2, max_length=MAX_EXAMPLES
    )
    replace: bool = option("replace a probe of the same name", False)
    source: str | None = option("where a server has the model", None, hidden=True)

    def validate(self) -> None:
        """Raise InvalidRequest unless there is one source of rows."""
        parse(self.where)
        super().validate()
        check_name(self.name, "Probe name")
        if self.field is not None:
            check_key(self.field)
        if (self.collection is None) == (self.items is None) or (self.collection is None) != (self.field is None):
            raise InvalidRequest("Give either collection and field, or items.")
        if self.collection is None and self.where is not None:
            raise InvalidRequest("where needs a collection; set collection and field, or remove where.")
        if self.collection is not None and self.model is not None:
            raise InvalidRequest("A collection has its own model; remove model.")


@task("probe_fit", ProbeFit, path="/probes")
def fit_probe(bench: LocalBench, request: ProbeFit, context: TaskContext) -> dict[str, Any]:
    """Fit a probe, and keep it with the store; return the scores, and the first images that could not be read."""
    if request.items is None:
        assert request.collection is not None
        assert request.field is not None
        collection = bench.collection(request.collection)
        fitted = fit_on_collection(collection, request.field, request.where, request, progress=context.progress)
    else:
        images = any(one.get("image") is not None for one in request.items)
        source = request.source or request.model
        embedder = bench.models.get(source) if images or source else None
        fitted = fit_on_examples(request.items, embedder, request, progress=context.progress)
    context.raise_if_cancelled()
    kept, probe = fitted.kept(request.name), fitted.probe
    context.at_end(partial(keep_probe, kept=kept, replace=request.replace))
    numbers = {name: kept.about[name] for name in ("rows", "left_out", "held_out", "scores", "none", "per_class")}
    errors = [{"index": index, "detail": reason} for index, reason in fitted.broken[:MAX_NAMED]]
    return {"probe": request.name, "classes": len(probe.classes), "l2": probe.l2, **numbers, "errors": errors}


def fit_on_collection(
    collection: Collection,
    field: str,
    where: Where | None = None,
    options: FitOptions = FitOptions(),
    *,
    progress: Progress = lambda done, total: None,
) -> FittedProbe:
    """Fit a probe on a collection's vectors and the labels in a metadata field."""
    spec, fitting = collection.spec, portion(progress, 0.5, 1)
    read = labeled_items(collection, field, where, progress=portion(progress, 0, 0.5))
    fitted = fit_and_score(read, options, fingerprint=spec.fingerprint, model=spec.model, progress=fitting)
    source = {"collection": collection.name, "field": field, "where": where}
    return replace(fitted, source=source, few_shot=few_shot_scores(read))


def fit_on_examples(
    examples: Sequence[Mapping[str, Any]],
    embedder: Embedder | None,
    options: FitOptions = FitOptions(),
    *,
    progress: Progress = lambda done, total: None,
) -> FittedProbe:
    """Fit a probe on examples; images that cannot be read are left out, by their positions.

    Args:
        examples: JSON objects with `label` (one, a list of them, or "" for none), and either `vector` (of any length)
            or `image`; see `payload`.
        embedder: embeds the images; the vectors come from it. None: their encoder is unknown.
    """
    vectors, broken = _embed(examples, embedder, portion(progress, 0, 0.5))
    labels = {i: label_of(examples[i]["label"], f"The label of item {i}") for i in vectors}
    labeled = {i: label for i, label in labels.items() if label is not None}
    left_out = {"unreadable": len(broken), "no label": len(labels) - len(labeled)}
    read = LabeledVectors(
        unit_rows(np.stack([vectors[i] for i in labeled])) if labeled else np.zeros((0, 1), np.float32),
        list(labeled.values()),
        any(isinstance(one["label"], list | tuple) for one in examples),
        {reason: n for reason, n in left_out.items() if n},
    )
    refuse_few(read.labels, read.several, "The set of examples", "add examples of another label.")
    fingerprint, model = (embedder.fingerprint, embedder.name) if embedder else ("", "")
    fitting = portion(progress, 0.5, 1)
    fitted = fit_and_score(read, options, fingerprint=fingerprint, model=model, progress=fitting)
    return replace(fitted, source={"items": len(examples)}, few_shot=few_shot_scores(read), broken=tuple(broken))


def _embed(
    examples: Sequence[Mapping[str, Any]], embedder: Embedder | None, progress: Progress
) -> tuple[dict[int, np.ndarray], Broken]:
    """Return the vectors of the examples by position, and the reasons of the images that have none."""
    found: dict[int, Any] = {
        i: decode_vector(one["vector"], f"vector of item {i}")
        for i, one in enumerate(examples)
        if one.get("vector") is not None
    }
    images, done = [i for i, one in enumerate(examples) if one.get("image") is not None], 0
    if images and embedder is None:
        raise InvalidRequest("Fitting on images needs a model to embed them; name one.")
    for some in batches(images, BATCH):
        assert embedder is not None
        data = [decode_base64(examples[i]["image"], f"image of item {i}") for i in some]
        found |= zip(some, embedder.embed_each(data), strict=True)
        progress(done := done + len(some), len(images))
    broken = [(i, str(one)) for i, one in sorted(found.items()) if isinstance(one, ImageError)]
    vectors = {i: one for i, one in sorted(found.items()) if not isinstance(one, ImageError)}
    lengths = {len(one) for one in vectors.values()}
    wanted = embedder.embed_dim if embedder else next(iter(lengths), 0)
    if lengths - {wanted}:
        raise InvalidRequest(
            f"The vectors have lengths {', '.join(map(str, sorted(lengths)))}; all must have length {wanted}"
            + (f", like those of {embedder.name}." if embedder else ".")
        )
    return vectors, broken


def fit_on_folder(
    encoder: FeatureSource,
    data: str | Path,
    options: FitOptions = FitOptions(),
    *,
    labels: LabelTable | Path | None = None,
    progress: Progress = lambda done, total: None,
    fitting: Progress = lambda done, total: None,
) -> FittedProbe:
    """Fit a probe on the unit vectors of labeled images.

    Args:
        data: a folder or an archive with one folder per class, or a table. If a folder has train/, only that is fitted
            on, and val/ selects the L2 penalty.
        labels: a table used instead of folder names; see `read_labeled`.
        progress: called with (done, total) images that are embedded.
        fitting: called with (done, total) steps of the fit.

    Raises:
        NoImages, InvalidRequest: see `read_labeled` and `fit_linear_probe`.
    """
    splits = read_splits(data, "train", "val") if labels is None else {}
    images = (splits["train"] if "train" in splits else read_labeled(data, labels)).labeled
    listed, part = set(images.classes), Path(data, "train") if "train" in splits else data
    hint = "give images of each class, in one folder per class or in a CSV file with the columns path and label."
    refuse_few(images.labels, images.several, str(part), hint)
    read, broken = _vectors(encoder, images, progress)
    refuse_few(read.labels, read.several, f"{part}, without {counted(len(broken), 'image')} that cannot be read,", hint)
    validation: Validation = None
    used = [*images.paths]
    if {"train", "val"} <= splits.keys() and options.l2 is None:
        others = splits["val"].labeled
        listed |= set(others.classes)
        others = others.keep([i for i, labels in enumerate(others.labels) if set(labels) <= set(read.classes)])
        if others.paths:
            used += others.paths
            selecting, more = _vectors(encoder, others, progress)
            validation, broken = (selecting.vectors, _answers(selecting, read.classes)), broken + more
    about: Any = {"fingerprint": encoder.fingerprint, "model": encoder.name}
    fitted = fit_and_score(read, options, **about, validation=validation, progress=fitting)
    absent = tuple(sorted(listed - set(map(str, read.classes))))
    return replace(fitted, broken=tuple(broken), without_images=absent, images=frozenset(map(file_key, used)))


def _vectors(encoder: FeatureSource, images: LabeledImages, progress: Progress) -> tuple[LabeledVectors, Broken]:
    vectors, read, broken = _read_vectors(encoder, images.paths, progress)
    kept = images.keep(read)
    return LabeledVectors(vectors, list(kept.labels), images.several, {}, kept.uncertain), broken


def _read_vectors(
    encoder: FeatureSource, paths: Sequence[ImageFile], progress: Progress
) -> tuple[np.ndarray, list[int], Broken]:
    found = extract_features(encoder, paths, progress=progress)
    read = [i for i in range(len(paths)) if i not in found.broken]
    broken = [(str(paths[i]), reason) for i, reason in sorted(found.broken.items())]
    return unit_rows(found.raw[read] if broken else found.raw), read, broken


def fit_and_score(
    read: LabeledVectors,
    options: FitOptions,
    *,
    fingerprint: str = "",
    model: str = "",
    validation: Validation = None,
    progress: Progress = lambda done, total: None,
) -> FittedProbe:
    """Fit on all rows, and score a second fit on a part.

    Args:
        validation: rows and labels that select the L2 penalty. Then no rows are held out.
        progress: called with (done, total), counted in steps of fitting.
    """
    from nnclr_hub.probe.linear import fit_linear_probe  # imports torch

    classes = read.classes
    targets = read.targets(classes)
    held = held_out_rows(targets) if validation is None else np.zeros(len(targets), bool)
    fits = 2 if held.any() else 1

    def fit(rows: np.ndarray, before: int) -> LinearProbe:
        return fit_linear_probe(
            read.vectors[rows],
            _answers(read, classes, rows),
            classes=classes if read.several else None,
            l2=options.l2,
            validation=validation,
            class_weight="balanced" if options.balanced else None,
            threshold=options.threshold,
            reject_far=options.reject_far,
            fingerprint=fingerprint,
            device=options.device,
            progress=lambda step, steps: progress(before * steps + step, fits * steps),
        )

    each: list[tuple[int, float | None]] = [(0, None)] * len(classes)
    rated, confusion = None, None
    if fits == 2:
        # at least one row of the smallest classes is kept, so both probes have the same classes
        second = fit(~held, 0)
        rated = score_probe(second, read.vectors[held], targets[held])
        scores = second.scores(read.vectors[held])
        each = _class_scores(scores, targets[held])
        if not read.several and len(classes) <= MOST_CONFUSED:
            counts = np.zeros((len(classes), len(classes)), np.int64)
            np.add.at(counts, (targets[held], scores.argmax(axis=1)), 1)
            confusion = tuple(tuple(map(int, row)) for row in counts)
    probe = replace(fit(np.ones(len(targets), bool), fits - 1), model=model)
    rows = [int((targets[:, i] == 1 if read.several else targets == i).sum()) for i in range(len(classes))]
    per_class = tuple(
        {"label": label, "rows": n, "held_out": scored, "score": score}
        for label, n, (scored, score) in zip(classes, rows, each, strict=True)
    )
    return FittedProbe(probe, len(targets), rated, per_class, confusion, left_out=read.left_out)


def _answers(read: LabeledVectors, classes: Sequence[Label], rows: Any = slice(None)) -> np.ndarray | list[Label]:
    targets = read.targets(classes)[rows]
    return targets if read.several else [classes[i] for i in targets]


def held_out_rows(targets: np.ndarray) -> np.ndarray:
    """Return (N,) bool: a fifth of each class with at least three rows; with several labels, a fifth of all rows."""
    rng = np.random.default_rng(0)
    held = np.zeros(len(targets), bool)
    single = targets.ndim == 1
    for rows in [np.flatnonzero(targets == c) for c in np.unique(targets)] if single else [np.arange(len(targets))]:
        number = max(1, round(len(rows) * HELD_OUT)) if len(rows) >= LEAST else 0
        held[rng.permutation(rows)[:number]] = True
    return held


def few_shot_scores(read: LabeledVectors) -> tuple[Shots, ...]:
    """Fit on few of the rows that are not held out, and score on the held-out rows."""
    if read.several:
        return ()
    targets = read.targets(read.classes)
    held = held_out_rows(targets)
    fitted = targets[~held]
    most = min(MOST_SHOT // len(np.unique(fitted)), int(np.bincount(fitted).max()))
    shots = [n for n in SHOTS if n <= most]
    if not shots or not held.any():
        return ()
    parts = read.vectors[~held], fitted, read.vectors[held], targets[held]
    return tuple(few_shot_curve(*parts, shots=shots, seeds=3))


# ---- score


def evaluate_probe(
    probe: LinearProbe,
    encoder: FeatureSource,
    data: str | Path,
    *,
    labels: LabelTable | Path | None = None,
    fitted_on: Set[bytes] = frozenset(),
    progress: Progress = lambda done, total: None,
) -> ProbeEvaluation:
    """Score a probe on labeled images; images of classes that it does not have count as wrong.

    Args:
        fitted_on: see `images_of_fit`.
    """
    probe.require(encoder.fingerprint)
    splits = read_splits(data, "test", "val") if labels is None else {}
    part = next((part for part in ("test", "val") if part in splits), None)
    every, place = (splits[part], Path(data, part)) if part else (read_labeled(data, labels), data)
    if every.several != probe.several:
        kinds = ["one label", "several labels"]
        raise InvalidRequest(
            f"The probe predicts {kinds[probe.several]} per image, and {place} has {kinds[every.several]}; evaluate it "
            "on images that are labeled like those it was fitted on."
        )
    images, names = every.labeled, tuple(map(str, probe.classes))
    if not set(images.classes) & set(names):
        raise InvalidRequest(f"{place} has no image of the probe's classes ({first_names(names)}); check the labels.")
    bare = len(every.paths) - len(images.paths)
    read, broken = _vectors(encoder, images, progress)
    unknown = tuple(sorted(set(map(str, read.classes)) - set(names)))
    rated = score_probe(probe, read.vectors, read.targets((*names, *unknown)), unknown)
    sentences = [f"{counted(bare, 'image')} without a label"] * bool(bare) + [
        f"{path}: {reason}" for path, reason in broken
    ]
    seen = sum(file_key(path) in fitted_on for path in images.paths) if fitted_on else 0
    return replace(rated, notes=tuple(sentences), fitted_on=seen)


def images_of_fit(folder: Path) -> Set[bytes]:
    """Return the keys of the images that the probe in a folder was fitted on; none if they are unknown."""
    try:
        keys = (folder / FITTED_ON).read_bytes()
    except OSError:
        return frozenset()
    return {keys[start : start + 16] for start in range(0, len(keys), 16)}


def score_probe(
    probe: LinearProbe, vectors: np.ndarray, targets: np.ndarray, unknown: tuple[str, ...] = ()
) -> ProbeEvaluation:
    """Score a probe on unit vectors of its encoder.

    Args:
        targets: (N,) int, positions in the probe's classes followed by `unknown`; for several labels (N, C) of zeros
            and ones, NaN where uncertain.
        unknown: classes that the probe lacks. Their images count as wrong; for several labels, their average precision
            is 0.
    """
    names, scores = (*map(str, probe.classes), *unknown), probe.scores(vectors)
    first = len(probe.classes)
    each = zip(names, _class_scores(scores, targets), strict=False)
    per_class = {name: score for name, (_, score) in each if score is not None}
    if probe.several:
        known, absent = targets[:, :first], (targets[:, first:] == 1).sum(axis=0)
        value = mean_average_precision_11(scores, known == 1, ~np.isnan(known), absent="left out")
        scored = int((known == 1).any(axis=0).sum())
        value *= scored / max(1, scored + len(unknown))
        counts = dict(zip(unknown, absent.tolist(), strict=True))
        return ProbeEvaluation({"map11": value}, per_class, 0.0, len(vectors), counts)
    counts = {name: int((targets == first + i).sum()) for i, name in enumerate(unknown)}
    best = scores.argmax(axis=1)
    found = {"top1": top_k_accuracy(scores, targets), "mean_per_class": mean_per_class(best, targets)}
    if first > 5:
        found["top5"] = top_k_accuracy(scores, targets, 5)
    none = float(np.mean([label is None for label in probe.predict(vectors).labels]))
    interval = confidence_interval((best == targets).astype(np.float64))
    per_class |= dict.fromkeys(unknown, 0.0)
    return ProbeEvaluation(found, per_class, none, len(vectors), counts, interval=interval)


def _class_scores(scores: np.ndarray, targets: np.ndarray) -> list[tuple[int, float | None]]:
    """Return the number of rows of each class of a probe, and its accuracy or average precision on them."""
    found: list[tuple[int, float | None]] = []
    for i in range(scores.shape[1]):
        rows = targets[:, i] == 1 if targets.ndim == 2 else targets == i
        if not rows.any():
            score = None
        elif targets.ndim == 2:
            known = ~np.isnan(targets[:, i])
            score = average_precision_11(scores[known, i], rows[known])
        else:
            score = float((scores[rows].argmax(axis=1) == i).mean())
        found.append((int(rows.sum()), score))
    return found


# ---- predict


def predict_files(
    probe: LinearProbe,
    encoder: FeatureSource,
    paths: Sequence[ImageFile],
    *,
    progress: Progress = lambda done, total: None,
) -> tuple[list[tuple[str, str]], Prediction, Broken]:
    """Return id and path (which are equal) of the readable images, their prediction, and the others with the reason."""
    probe.require(encoder.fingerprint)
    vectors, read, broken = _read_vectors(encoder, paths, progress)
    names = [str(paths[i]) for i in read]
    return list(zip(names, names, strict=True)), probe.predict(vectors, fingerprint=encoder.fingerprint), broken


def predict_collection(
    probe: LinearProbe, collection: Collection, *, progress: Progress = lambda done, total: None
) -> tuple[list[tuple[str, str]], Prediction]:
    """Return the id and path of all items, and the probe's prediction for their stored vectors."""
    probe.require(collection.spec.fingerprint)
    ids: list[tuple[str, str]] = []
    labels: list[Any] = []
    probabilities: list[np.ndarray] = []
    total = collection.count()
    for items in collection.pages():
        found = probe.predict(unit_rows(np.stack([item.vector for item in items]).astype(np.float32)))
        ids += [(item.id, path_of(item)) for item in items]
        labels += found.labels
        probabilities.append(found.probabilities)
        progress(len(ids), max(total, len(ids)))
    if not ids:
        raise InvalidRequest(f"{collection.name!r} has no items to label.")
    return ids, Prediction(labels, np.concatenate(probabilities))


def label_rows(probe: LinearProbe, vectors: np.ndarray, k: int, *, fingerprint: str = "") -> list[Labeling]:
    """Return a probe's labeling of vectors (N, D), which need not have length 1.

    Args:
        k: number of classes to report with their probability.
        fingerprint: fingerprint of the encoder that made the vectors; "" skips the check.
    """
    prediction = probe.predict(unit_rows(np.asarray(vectors, np.float32)), fingerprint=fingerprint)
    best = np.argsort(-prediction.probabilities, axis=1, kind="stable")[:, :k]
    rows: Sequence[Any] = prediction.labels
    return [
        Labeling(label, tuple((probe.classes[i], float(row[i])) for i in places))
        for label, row, places in zip(rows, prediction.probabilities, best, strict=True)
    ]


def label_items(
    probe: LinearProbe, collection: Collection, ids: Sequence[str], k: int
) -> list[Labeling | NNCLRHubError]:
    """Return the labeling of each item of a collection, or an ItemNotFound."""
    probe.require(collection.spec.fingerprint)
    vectors = {item.id: item.vector for item in collection.get(list(dict.fromkeys(ids)))}
    found = [vectors[id] for id in ids if id in vectors]
    labelings = iter(label_rows(probe, np.stack(found), k) if found else [])
    return [
        next(labelings) if id in vectors else ItemNotFound(f"Collection {collection.name!r} has no item {id!r}.")
        for id in ids
    ]


# ---- keep


def refuse_taken_probe(records: Records, name: str) -> None:
    """Raise ProbeExists if a probe of that name exists."""
    if records.get(PROBE, name) is not None:
        raise ProbeExists(f"A probe named {name!r} exists already; use another name, or ask to replace it.")


def keep_probe(records: Records, kept: KeptProbe, *, replace: bool) -> None:
    """Store a probe; raise ProbeExists if one of that name exists and may not be replaced."""
    files = kept.probe.files()
    content = {"about": dict(kept.about), "probe": files[ABOUT].decode()}
    with records.transaction():
        if not replace:
            refuse_taken_probe(records, kept.name)
        records.put(Record(PROBE, check_name(kept.name, "Probe name"), content, files[WEIGHTS]))


def list_probes(records: Records) -> list[KeptProbe]:
    """Return all probes by name, without their weights."""
    found = []
    for record in records.list(PROBE):
        about = json.loads(record.content["probe"])
        about.pop("region_limit", None)
        empty = np.zeros((0, record.content["about"]["dim"]), np.float32)
        probe = LinearProbe(empty, empty[:, 0], tuple(about.pop("classes")), **about)
        found.append(KeptProbe(record.name, probe, record.content["about"]))
    return found


def get_probe(records: Records, name: str) -> KeptProbe:
    """Return a probe; raise ProbeNotFound, which names the existing ones, or InvalidRequest if it is damaged."""
    record = records.get(PROBE, name)
    if record is None:
        raise _not_found(records, name)
    probe = LinearProbe.from_files(record.data or b"", record.content["probe"], repr(name))
    return KeptProbe(name, probe, record.content["about"])


def delete_probe(records: Records, name: str) -> None:
    """Delete a probe, or raise ProbeNotFound."""
    if not records.delete(PROBE, name):
        raise _not_found(records, name)


def _not_found(records: Records, name: str) -> ProbeNotFound:
    names = ", ".join(record.name for record in records.list(PROBE))
    hint = f"existing probes: {names}." if names else "fit one first."
    return ProbeNotFound(f"No probe is named {name!r:.150}; {hint}")


def probe_files(kept: KeptProbe) -> dict[str, bytes]:
    """Return a probe as files by name: probe.safetensors and probe.json for `LinearProbe.load`, and card.json."""
    card = json.dumps({"name": kept.name, **kept.about}, indent=2)
    return {**kept.probe.files(), CARD: (card + "\n").encode()}


def probe_in_one_file(kept: KeptProbe) -> bytes:
    """Return a probe as one safetensors file, whose metadata `probe` holds the JSON of `probe_files`."""
    about = {"name": kept.name, **kept.about, **json.loads(kept.probe.files()[ABOUT])}
    return kept.probe.files(("probe", json.dumps(about)))[WEIGHTS]
