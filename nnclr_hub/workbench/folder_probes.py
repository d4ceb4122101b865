"""Probes of folders of labeled images: fit, evaluate, predict. Behind `nnclr probe`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nnclr_hub.encoder.features import FeatureSource, extract_features, unit_rows
from nnclr_hub.encoder.labeled import LabeledImages, first_names, read_labeled
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.linear import fit_linear_probe
from nnclr_hub.probe.linear_probe import LinearProbe, Prediction
from nnclr_hub.probe.metrics import mean_average_precision_11, mean_per_class, top_k_accuracy
from nnclr_hub.store.base import Progress


@dataclass(frozen=True)
class Fitted:
    """A probe and what it was fitted on.

    images: how many.
    broken: files that could not be read, with the reason.
    """

    probe: LinearProbe
    images: int
    broken: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Evaluation:
    """How accurate a probe is on labeled images.

    scores: top1, top5 (of more than five classes) and mean_per_class in [0, 1]; for several labels an image, map11.
    per_class: accuracy of each class that occurs; for several labels, empty.
    none: share of the images that fell below the threshold.
    images: how many were scored.
    left_out: one sentence for each reason why images were not scored.
    """

    scores: dict[str, float]
    per_class: dict[str, float]
    none: float
    images: int
    left_out: tuple[str, ...]


def fit_probe(
    encoder: FeatureSource,
    data: Path,
    *,
    l2: float | None = None,
    balanced: bool = False,
    threshold: float | None = None,
    device: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Fitted:
    """Fit a probe on the unit vectors of labeled images.

    Args:
        data: a folder with one folder per class, or a table. If it has train/, only that is fitted on, and val/ selects
            the L2 penalty.
        l2: strength of the penalty; None selects it.
        balanced: give every class the same weight, however rare it is.
        threshold: see `LinearProbe`.
        progress: called with (done, total).

    Raises:
        NoImages, InvalidRequest: see `read_labeled` and `fit_linear_probe`.
    """
    parts = data / "train" if (data / "train").is_dir() else data
    images = read_labeled(parts).labeled
    classes = images.classes
    _refuse_one_class(parts, images)
    vectors, kept, broken = _vectors(encoder, images.paths, progress)
    images = images.keep(kept)
    validation = None
    if parts != data and (data / "val").is_dir() and l2 is None:
        validation, more = _validation(encoder, data / "val", classes, progress)
        broken += more
    probe = fit_linear_probe(
        vectors,
        _targets(images, classes),
        classes=classes if images.several else None,
        l2=l2,
        validation=validation,
        class_weight="balanced" if balanced else None,
        threshold=threshold,
        fingerprint=encoder.fingerprint,
        device=device,
    )
    return Fitted(replace(probe, model=encoder.name), len(kept), tuple(broken))


def _validation(
    encoder: FeatureSource, folder: Path, classes: Sequence[str], progress: Progress
) -> tuple[tuple[np.ndarray, np.ndarray | list[str]], list[tuple[str, str]]]:
    """Return the data that selects the L2 penalty, for `fit_linear_probe`; and the files that cannot be read."""
    images = read_labeled(folder).labeled
    vectors, kept, broken = _vectors(encoder, images.paths, progress)
    return (vectors, _targets(images.keep(kept), classes)), broken


def _refuse_one_class(parts: Path, images: LabeledImages) -> None:
    classes = images.classes
    if len(classes) < (1 if images.several else 2):
        raise InvalidRequest(
            f"{parts} has {'no labels' if not classes else f'only the label {classes[0]}'}; give images of at least "
            "two classes, in one folder per class or in a CSV file with the columns path and label."
        )


def evaluate_probe(
    probe: LinearProbe, encoder: FeatureSource, data: Path, *, progress: Progress = lambda done, total: None
) -> Evaluation:
    """Score a probe on labeled images; images of unknown classes are left out and reported.

    Raises:
        FingerprintMismatch: if the probe belongs to another encoder.
        InvalidRequest: if no image has one of its classes.
    """
    probe.require(encoder.fingerprint)
    parts = next((data / part for part in ("test", "val") if (data / part).is_dir()), data)
    every = read_labeled(parts)
    if every.several != probe.several:
        kinds = ["one label", "several labels"]
        raise InvalidRequest(
            f"The probe predicts {kinds[probe.several]} per image, and {parts} has {kinds[every.several]}; evaluate it "
            "on images that are labeled like those it was fitted on."
        )
    images, names = every.labeled, tuple(map(str, probe.classes))
    unknown = sorted(set(images.classes) - set(names))
    known = [i for i, labels in enumerate(images.labels) if not set(labels) & set(unknown)]
    left_out = []
    if len(images.paths) < len(every.paths):
        left_out.append(f"{len(every.paths) - len(images.paths)} images without a label")
    if unknown:
        number = len(images.paths) - len(known)
        left_out.append(f"{number} images of classes unknown to the probe ({first_names(unknown)})")
    images = images.keep(known)
    if not images.paths:
        raise InvalidRequest(f"{parts} has no image of the probe's classes ({first_names(names)}); check the labels.")
    vectors, kept, broken = _vectors(encoder, images.paths, progress)
    left_out += [f"{path}: {reason}" for path, reason in broken]
    return score_probe(probe, vectors, images.keep(kept).numbers(names), tuple(left_out))


def score_probe(
    probe: LinearProbe, vectors: np.ndarray, labels: np.ndarray, left_out: tuple[str, ...] = ()
) -> Evaluation:
    """Score a probe on unit vectors of its encoder.

    Args:
        vectors: (N, D) float32.
        labels: (N,) int, positions in the probe's classes; for several labels (N, C) of zeros and ones, NaN where
            uncertain.
    """
    names, scores = tuple(map(str, probe.classes)), probe.scores(vectors)
    if probe.several:
        value = mean_average_precision_11(scores, labels == 1, ~np.isnan(labels), absent="left out")
        return Evaluation({"map11": value}, {}, 0.0, len(vectors), left_out)
    best = scores.argmax(axis=1)
    found = {"top1": top_k_accuracy(scores, labels), "mean_per_class": mean_per_class(best, labels)}
    if len(names) > 5:
        found["top5"] = top_k_accuracy(scores, labels, 5)
    per_class = {str(names[i]): float((best[labels == i] == i).mean()) for i in np.unique(labels)}
    none = float(np.mean([label is None for label in probe.predict(vectors).labels]))
    return Evaluation(found, per_class, none, len(vectors), left_out)


def predict_labels(
    probe: LinearProbe,
    encoder: FeatureSource,
    paths: Sequence[Path],
    *,
    progress: Progress = lambda done, total: None,
) -> tuple[list[Path], Prediction, list[tuple[str, str]]]:
    """Return the readable images, the probe's prediction for them, and the other files with the reason.

    Raises:
        FingerprintMismatch: if the probe belongs to another encoder.
    """
    probe.require(encoder.fingerprint)
    vectors, kept, broken = _vectors(encoder, paths, progress)
    return [paths[i] for i in kept], probe.predict(vectors, fingerprint=encoder.fingerprint), broken


def _vectors(
    encoder: FeatureSource, paths: Sequence[Path], progress: Progress
) -> tuple[np.ndarray, list[int], list[tuple[str, str]]]:
    """Return unit rows of the readable images, their positions, and the other files with the reason."""
    found = extract_features(encoder, paths, progress=progress)
    kept = [i for i in range(len(paths)) if i not in found.broken]
    broken = [(str(paths[i]), reason) for i, reason in sorted(found.broken.items())]
    return unit_rows(found.raw[kept] if broken else found.raw), kept, broken


def _targets(images: LabeledImages, classes: Sequence[str]) -> np.ndarray | list[str]:
    return images.numbers(classes) if images.several else [labels[0] for labels in images.labels]
