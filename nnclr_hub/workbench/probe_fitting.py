"""Fit a probe on labeled vectors, and estimate its accuracy on rows that it has not seen.

The estimate comes from a second probe, fitted the same way, on four fifths of the rows and scored on the rest, which
selected nothing. The probe itself is fitted on all rows, like `nnclr probe fit`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nnclr_hub.probe.few_shot import SHOTS, Shots, few_shot_curve
from nnclr_hub.probe.linear_probe import Label, LinearProbe
from nnclr_hub.probe.metrics import average_precision_11, mean_average_precision_11, mean_per_class, top_k_accuracy
from nnclr_hub.probe.uncertainty import confidence_interval
from nnclr_hub.store.base import Progress
from nnclr_hub.workbench.labels import LabeledVectors

HELD_OUT = 0.2
LEAST = 3  # rows of a class of which one is held out: two remain, one of which may select the L2 penalty
SEED = 0
MOST_CONFUSED = 50  # classes for which a table of confusions is readable
MOST_SHOT = 2000  # rows per fit of the few-shot curve, which needs many fits
SHOT_SEEDS = 3
Confusion = tuple[tuple[int, ...], ...] | None


@dataclass(frozen=True)
class FitOptions:
    """How to fit.

    l2: strength of the penalty; None selects it.
    balanced: give every class the same weight, however rare it is.
    threshold: see `LinearProbe`.
    reject_far: see `fit_linear_probe`.
    """

    l2: float | None = None
    balanced: bool = False
    threshold: float | None = None
    reject_far: float | None = None


@dataclass(frozen=True)
class ClassScore:
    """How accurate a probe is for one class on held-out rows.

    rows: fitted on; held_out: scored.
    score: accuracy, or for several labels per row the average precision; None if no row was held out.
    """

    label: Label
    rows: int
    held_out: int
    score: float | None


@dataclass(frozen=True)
class FittedProbe:
    """A probe, and the accuracy of one fitted in the same way.

    rows: fitted on.
    held_out: rows that were scored; 0 if every class had too few.
    scores: top1, mean_per_class and, with more than five classes, top5; for several labels per row map11. In [0, 1].
    none: share of the held-out rows that fell below the threshold.
    confusion: for the held-out rows of each class (in the order of `per_class`), how many were predicted as each class;
        None for several labels per row, above 50 classes, and where no row was held out.
    few_shot: how the accuracy on the held-out rows grows with the number of labels per class, from small fits.
    """

    probe: LinearProbe
    rows: int
    held_out: int
    scores: dict[str, float]
    none: float
    per_class: tuple[ClassScore, ...]
    confusion: Confusion = None
    few_shot: tuple[Shots, ...] = ()


@dataclass(frozen=True)
class ProbeEvaluation:
    """How accurate a probe is on labeled images.

    scores: top1, top5 (of more than five classes) and mean_per_class in [0, 1]; for several labels an image, map11.
    per_class: accuracy of each class that occurs; for several labels, empty.
    none: share of the images that fell below the threshold.
    images: how many were scored.
    unknown: how many of these have a class that the probe lacks, by class; they count as wrong.
    left_out: one sentence for each reason why images were not scored.
    interval: 95% interval of top1; None for several labels an image.
    """

    scores: dict[str, float]
    per_class: dict[str, float]
    none: float
    images: int
    unknown: dict[str, int]
    left_out: tuple[str, ...]
    interval: tuple[float, float] | None = None


def score_probe(
    probe: LinearProbe,
    vectors: np.ndarray,
    labels: np.ndarray,
    left_out: tuple[str, ...] = (),
    unknown: tuple[str, ...] = (),
) -> ProbeEvaluation:
    """Score a probe on unit vectors of its encoder.

    Args:
        vectors: (N, D) float32.
        labels: (N,) int, positions in the probe's classes followed by `unknown`; for several labels (N, C) of zeros
            and ones, NaN where uncertain.
        unknown: classes that the probe lacks. Their images count as wrong; for several labels, their average precision
            is 0.
    """
    names, scores = (*map(str, probe.classes), *unknown), probe.scores(vectors)
    first = len(probe.classes)
    if probe.several:
        known, absent = labels[:, :first], (labels[:, first:] == 1).sum(axis=0)
        value = mean_average_precision_11(scores, known == 1, ~np.isnan(known), absent="left out")
        scored = int((known == 1).any(axis=0).sum())
        value *= scored / max(1, scored + len(unknown))
        counts = dict(zip(unknown, absent.tolist(), strict=True))
        return ProbeEvaluation({"map11": value}, {}, 0.0, len(vectors), counts, left_out)
    counts = {name: int((labels == first + i).sum()) for i, name in enumerate(unknown)}
    best = scores.argmax(axis=1)
    found = {"top1": top_k_accuracy(scores, labels), "mean_per_class": mean_per_class(best, labels)}
    if first > 5:
        found["top5"] = top_k_accuracy(scores, labels, 5)
    per_class = {str(names[i]): float((best[labels == i] == i).mean()) for i in np.unique(labels)}
    none = float(np.mean([label is None for label in probe.predict(vectors).labels]))
    interval = confidence_interval((best == labels).astype(np.float64))
    return ProbeEvaluation(found, per_class, none, len(vectors), counts, left_out, interval)


def fit_and_score(
    read: LabeledVectors,
    options: FitOptions,
    *,
    fingerprint: str,
    model: str,
    progress: Progress = lambda done, total: None,
) -> FittedProbe:
    """Fit on all rows, and score a second fit on a part.

    Args:
        read: at least two classes; with several labels per row, one.
        progress: called with (done, total), counted in steps of fitting.

    Raises:
        InvalidRequest: see `fit_linear_probe`.
    """
    classes, targets = read.classes, read.targets(read.classes)
    held = held_out_rows(targets)
    fits = 2 if held.any() else 1
    each: list[tuple[int, float | None]] = [(0, None)] * len(classes)
    scores, none = {}, 0.0
    more: tuple[Confusion, tuple[Shots, ...]] = None, ()
    if fits == 2:
        # at least one row of the smallest classes is kept, so both probes have the same classes
        second = _fit(read, ~held, options, fingerprint, lambda step, steps: progress(step, 2 * steps))
        rated = score_probe(second, read.vectors[held], targets[held])
        scores, none, each = rated.scores, rated.none, _per_class(second, read.vectors[held], targets[held])
        if not read.several:
            confusion = _confusion(second, read.vectors[held], targets[held])
            more = confusion, _few_shot(read.vectors, targets, held)
    every = np.ones(len(targets), bool)
    probe = _fit(
        read, every, options, fingerprint, lambda step, steps: progress((fits - 1) * steps + step, fits * steps)
    )
    rows = [int((targets[:, i] if read.several else targets == i).sum()) for i in range(len(classes))]
    per_class = tuple(ClassScore(label, n, *one) for label, n, one in zip(classes, rows, each, strict=True))
    return FittedProbe(replace(probe, model=model), len(targets), int(held.sum()), scores, none, per_class, *more)


def _fit(
    read: LabeledVectors, rows: np.ndarray, options: FitOptions, fingerprint: str, progress: Progress
) -> LinearProbe:
    """Fit a probe on the rows of a mask (N,) bool."""
    from nnclr_hub.probe.linear import fit_linear_probe  # imports torch

    classes = read.classes
    targets = read.targets(classes)[rows]
    labels: Any = targets if read.several else [classes[i] for i in targets]
    return fit_linear_probe(
        read.vectors[rows],
        labels,
        classes=classes if read.several else None,
        l2=options.l2,
        class_weight="balanced" if options.balanced else None,
        threshold=options.threshold,
        reject_far=options.reject_far,
        fingerprint=fingerprint,
        progress=progress,
    )


def held_out_rows(targets: np.ndarray) -> np.ndarray:
    """Return (N,) bool: a fifth of each class with at least three rows; with several labels, a fifth of all rows."""
    rng = np.random.default_rng(SEED)
    held = np.zeros(len(targets), bool)
    single = targets.ndim == 1
    for rows in [np.flatnonzero(targets == c) for c in np.unique(targets)] if single else [np.arange(len(targets))]:
        number = max(1, round(len(rows) * HELD_OUT)) if len(rows) >= LEAST else 0
        held[rng.permutation(rows)[:number]] = True
    return held


def _per_class(probe: LinearProbe, vectors: np.ndarray, targets: np.ndarray) -> list[tuple[int, float | None]]:
    """Return the number of rows of each class, and the score on them."""
    scores = probe.scores(vectors)
    found: list[tuple[int, float | None]] = []
    for i in range(len(probe.classes)):
        rows = targets[:, i] == 1 if probe.several else targets == i
        if not rows.any():
            found.append((0, None))
        elif probe.several:
            found.append((int(rows.sum()), average_precision_11(scores[:, i], rows)))
        else:
            found.append((int(rows.sum()), float((scores[rows].argmax(axis=1) == i).mean())))
    return found


def _confusion(probe: LinearProbe, vectors: np.ndarray, targets: np.ndarray) -> Confusion:
    """Return (C, C): the rows of each class by predicted class."""
    number = len(probe.classes)
    if number > MOST_CONFUSED:
        return None
    counts = np.zeros((number, number), np.int64)
    np.add.at(counts, (targets, probe.scores(vectors).argmax(axis=1)), 1)
    return tuple(tuple(map(int, row)) for row in counts)


def _few_shot(vectors: np.ndarray, targets: np.ndarray, held: np.ndarray) -> tuple[Shots, ...]:
    """Fit on few of the rows that are not held out, and score on the held-out rows."""
    fitted = targets[~held]
    most = min(MOST_SHOT // len(np.unique(fitted)), int(np.bincount(fitted).max()))
    shots = [n for n in SHOTS if n <= most]
    if not shots:
        return ()
    return tuple(few_shot_curve(vectors[~held], fitted, vectors[held], targets[held], shots=shots, seeds=SHOT_SEEDS))
