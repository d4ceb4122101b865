"""Probes of folders of labeled images: fit, evaluate, predict. Behind `nnclr probe`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nnclr_hub.encoder.features import FeatureSource, ImageFile, extract_features, unit_rows
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.labels import LabeledImages, first_names, read_labeled, read_splits
from nnclr_hub.probe.linear_probe import LinearProbe, Prediction
from nnclr_hub.store.base import Collection, Progress
from nnclr_hub.store.pages import pages
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.workbench.probe_fitting import ProbeEvaluation, held_out_rows, score_probe
from nnclr_hub.workbench.table_items import path_of

PAGE = 1000  # items of a collection at a time


@dataclass(frozen=True)
class Fitted:
    """A probe and what it was fitted on.

    images: how many.
    broken: files that could not be read, with the reason.
    without_images: classes of which no image to fit on could be read, or of which only val/ has images; the probe does
        not have them.
    held_out: how accurate a second probe is, fitted on four fifths of the images and scored on the rest; None where no
        image can be held out, or val/ selected the penalty.
    """

    probe: LinearProbe
    images: int
    broken: tuple[tuple[str, str], ...]
    without_images: tuple[str, ...]
    held_out: ProbeEvaluation | None


def fit_probe(
    encoder: FeatureSource,
    data: str | Path,
    *,
    l2: float | None = None,
    balanced: bool = False,
    threshold: float | None = None,
    reject_far: float | None = None,
    device: str | None = None,
    labels: LabelTable | Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Fitted:
    """Fit a probe on the unit vectors of labeled images.

    Args:
        data: a folder or an archive with one folder per class, or a table. If a folder has train/, only that is fitted
            on, and val/ selects the L2 penalty.
        l2: strength of the penalty; None selects it.
        balanced: give every class the same weight, however rare it is.
        threshold: see `LinearProbe`.
        reject_far: see `fit_linear_probe`.
        labels: a table used instead of folder names; see `read_labeled`.
        progress: called with (done, total).

    Raises:
        NoImages, InvalidRequest: see `read_labeled` and `fit_linear_probe`.
    """
    from nnclr_hub.probe.linear import fit_linear_probe  # imports torch

    splits = read_splits(data, "train", "val") if labels is None else {}
    images = (splits["train"] if "train" in splits else read_labeled(data, labels)).labeled
    listed, parts = set(images.classes), Path(data, "train") if "train" in splits else data
    _refuse_one_class(parts, images)
    vectors, kept, broken = _vectors(encoder, images.paths, progress)
    images = images.keep(kept)
    classes = images.classes  # of the rows of the fit: scores are indexed by them
    _refuse_one_class(f"{parts}: {len(broken)} images cannot be read, and the rest", images)
    validation = None
    if {"train", "val"} <= splits.keys() and l2 is None:
        others = splits["val"].labeled
        listed |= set(others.classes)
        others = others.keep([i for i, labels in enumerate(others.labels) if set(labels) <= set(classes)])
        if others.paths:
            validation, more = _validation(encoder, others, classes, progress)
            broken += more

    def fit(rows: np.ndarray) -> LinearProbe:
        return fit_linear_probe(
            vectors[rows],
            _targets(images.keep(np.flatnonzero(rows)), classes),
            classes=classes if images.several else None,
            l2=l2,
            validation=validation,
            class_weight="balanced" if balanced else None,
            threshold=threshold,
            reject_far=reject_far,
            fingerprint=encoder.fingerprint,
            device=device,
        )

    numbers = images.numbers(classes)
    held = held_out_rows(numbers)
    rated = score_probe(fit(~held), vectors[held], numbers[held]) if held.any() and validation is None else None
    probe = fit(np.ones(len(vectors), bool))
    absent = tuple(sorted(listed - set(classes)))
    return Fitted(replace(probe, model=encoder.name), len(kept), tuple(broken), absent, rated)


def _validation(
    encoder: FeatureSource, images: LabeledImages, classes: Sequence[str], progress: Progress
) -> tuple[tuple[np.ndarray, np.ndarray | list[str]], list[tuple[str, str]]]:
    """Return the data that selects the L2 penalty, for `fit_linear_probe`; and the files that cannot be read."""
    vectors, kept, broken = _vectors(encoder, images.paths, progress)
    return (vectors, _targets(images.keep(kept), classes)), broken


def _refuse_one_class(parts: str | Path, images: LabeledImages) -> None:
    classes = images.classes
    if len(classes) < (1 if images.several else 2):
        raise InvalidRequest(
            f"{parts} has {'no labels' if not classes else f'only the label {classes[0]}'}; give images of at least "
            "two classes, in one folder per class or in a CSV file with the columns path and label."
        )


def evaluate_probe(
    probe: LinearProbe,
    encoder: FeatureSource,
    data: str | Path,
    *,
    labels: LabelTable | Path | None = None,
    progress: Progress = lambda done, total: None,
) -> ProbeEvaluation:
    """Score a probe on labeled images; images of classes that it does not have count as wrong.

    Raises:
        FingerprintMismatch: if the probe belongs to another encoder.
        InvalidRequest: if no image has one of its classes.
    """
    probe.require(encoder.fingerprint)
    splits = read_splits(data, "test", "val") if labels is None else {}
    part = next((part for part in ("test", "val") if part in splits), None)
    every = splits[part] if part else read_labeled(data, labels)
    parts = Path(data, part) if part else data
    if every.several != probe.several:
        kinds = ["one label", "several labels"]
        raise InvalidRequest(
            f"The probe predicts {kinds[probe.several]} per image, and {parts} has {kinds[every.several]}; evaluate it "
            "on images that are labeled like those it was fitted on."
        )
    images, names = every.labeled, tuple(map(str, probe.classes))
    left_out = []
    if len(images.paths) < len(every.paths):
        left_out.append(f"{len(every.paths) - len(images.paths)} images without a label")
    if not set(images.classes) & set(names):
        raise InvalidRequest(f"{parts} has no image of the probe's classes ({first_names(names)}); check the labels.")
    vectors, kept, broken = _vectors(encoder, images.paths, progress)
    left_out += [f"{path}: {reason}" for path, reason in broken]
    images = images.keep(kept)
    unknown = tuple(sorted(set(images.classes) - set(names)))
    return score_probe(probe, vectors, images.numbers((*names, *unknown)), tuple(left_out), unknown)


def predict_labels(
    probe: LinearProbe,
    encoder: FeatureSource,
    paths: Sequence[ImageFile],
    *,
    progress: Progress = lambda done, total: None,
) -> tuple[list[ImageFile], Prediction, list[tuple[str, str]]]:
    """Return the readable images, the probe's prediction for them, and the other files with the reason.

    Raises:
        FingerprintMismatch: if the probe belongs to another encoder.
    """
    probe.require(encoder.fingerprint)
    vectors, kept, broken = _vectors(encoder, paths, progress)
    return [paths[i] for i in kept], probe.predict(vectors, fingerprint=encoder.fingerprint), broken


def predict_collection(
    probe: LinearProbe, collection: Collection, *, progress: Progress = lambda done, total: None
) -> tuple[list[tuple[str, str]], Prediction]:
    """Return the id and path of all items, and the probe's prediction for their stored vectors.

    Raises:
        FingerprintMismatch: if the probe belongs to another encoder than the collection.
        InvalidRequest: the collection is empty.
    """
    probe.require(collection.spec.fingerprint)
    ids: list[tuple[str, str]] = []
    labels: list[Any] = []
    probabilities: list[np.ndarray] = []
    total = collection.count()
    for items in pages(collection, None, limit=PAGE):
        found = probe.predict(unit_rows(np.stack([item.vector for item in items]).astype(np.float32)))
        ids += [(item.id, path_of(item)) for item in items]
        labels += found.labels
        probabilities.append(found.probabilities)
        progress(len(ids), max(total, len(ids)))
    if not ids:
        raise InvalidRequest(f"{collection.name!r} has no items to label.")
    return ids, Prediction(labels, np.concatenate(probabilities))


def _vectors(
    encoder: FeatureSource, paths: Sequence[ImageFile], progress: Progress
) -> tuple[np.ndarray, list[int], list[tuple[str, str]]]:
    """Return unit rows of the readable images, their positions, and the other files with the reason."""
    found = extract_features(encoder, paths, progress=progress)
    kept = [i for i in range(len(paths)) if i not in found.broken]
    broken = [(str(paths[i]), reason) for i, reason in sorted(found.broken.items())]
    return unit_rows(found.raw[kept] if broken else found.raw), kept, broken


def _targets(images: LabeledImages, classes: Sequence[str]) -> np.ndarray | list[str]:
    return images.numbers(classes) if images.several else [labels[0] for labels in images.labels]
