"""Labeled vectors to a probe, and an honest figure of how it does.

The figure is that of a second probe, fitted in the same way on four fifths of the rows and scored on the rest, which
chose nothing. The probe itself is fitted on all rows, as `nnclr probe fit` does it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nnclr_hub.probe.few_shot import SHOTS, Shots, few_shot_curve
from nnclr_hub.probe.linear import fit_linear_probe
from nnclr_hub.probe.linear_probe import Label, LinearProbe
from nnclr_hub.probe.metrics import average_precision_11
from nnclr_hub.store.base import Progress
from nnclr_hub.workbench.labels import LabeledVectors
from nnclr_hub.workbench.probing import verdict_of

HELD_OUT = 0.2
LEAST = 3  # rows of a class of which one is held out: two are left, of which one may choose the L2
SEED = 0
MOST_CONFUSED = 50  # classes of which a table of confusions can be read
MOST_SHOT = 2000  # rows of a fit of the few-shot curve, of which there are many
SHOT_SEEDS = 3
Confusion = tuple[tuple[int, ...], ...] | None


@dataclass(frozen=True)
class FitOptions:
    """How to fit.

    l2: strength of the penalty; None chooses.
    balanced: every class counts as much, however rare.
    threshold: see `LinearProbe`.
    """

    l2: float | None = None
    balanced: bool = False
    threshold: float | None = None


NO_OPTIONS = FitOptions()


@dataclass(frozen=True)
class ClassScore:
    """How one class does on held-out rows.

    rows: fitted on; held_out: scored.
    score: accuracy, or for several labels a row the average precision; None if none was held out.
    """

    label: Label
    rows: int
    held_out: int
    score: float | None


@dataclass(frozen=True)
class FittedProbe:
    """A probe, and how one like it does.

    rows: fitted on.
    held_out: rows that were scored; 0 if there were too few of every class.
    scores: top1, mean_per_class and, of more than five classes, top5; for several labels a row map11. In [0, 1].
    none: share of the held-out rows that fell below the threshold.
    confusion: of the held-out rows of each class (in the order of `per_class`), how many were taken for each; None for
        several labels a row, above 50 classes, and where nothing was held out.
    few_shot: how the accuracy on the held-out rows grows with the labels a class; of fits that all are small.
    """

    probe: LinearProbe
    rows: int
    held_out: int
    scores: dict[str, float]
    none: float
    per_class: tuple[ClassScore, ...]
    confusion: Confusion = None
    few_shot: tuple[Shots, ...] = ()


def fit_and_score(
    read: LabeledVectors,
    options: FitOptions,
    *,
    fingerprint: str,
    model: str,
    progress: Progress = lambda done, total: None,
) -> FittedProbe:
    """Fits on all rows, and scores a second fit on a part.

    Args:
        read: at least two classes; of several labels a row, one.
        fingerprint, model: of the encoder.
        progress: called with (done, total), counted in steps of fitting.

    Raises:
        InvalidRequest: see `fit_linear_probe`.
    """
    classes, targets = read.classes, read.targets(read.classes)
    held = _held_out(targets)
    fits = 2 if held.any() else 1
    each: list[tuple[int, float | None]] = [(0, None)] * len(classes)
    scores, none = {}, 0.0
    more: tuple[Confusion, tuple[Shots, ...]] = None, ()
    if fits == 2:
        # of the smallest classes a row each is left, so that the classes of both probes are the same
        judged = _fit(read, ~held, options, fingerprint, lambda step, steps: progress(step, 2 * steps))
        verdict = verdict_of(judged, read.vectors[held], targets[held])
        scores, none, each = verdict.scores, verdict.none, _per_class(judged, read.vectors[held], targets[held])
        more = more if read.several else _looked_at(judged, read.vectors, targets, held)
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
    """A probe on those rows, (N,) bool."""
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
        fingerprint=fingerprint,
        progress=progress,
    )


def _held_out(targets: np.ndarray) -> np.ndarray:
    """(N,) bool: a fifth of each class, of a class with less than three rows none; of several labels, of the rows."""
    draws = np.random.default_rng(SEED)
    held = np.zeros(len(targets), bool)
    single = targets.ndim == 1
    for rows in [np.flatnonzero(targets == c) for c in np.unique(targets)] if single else [np.arange(len(targets))]:
        number = max(1, round(len(rows) * HELD_OUT)) if len(rows) >= LEAST else 0
        held[draws.permutation(rows)[:number]] = True
    return held


def _per_class(probe: LinearProbe, vectors: np.ndarray, targets: np.ndarray) -> list[tuple[int, float | None]]:
    """Of each class, how many rows it has and how it does on them."""
    scores = probe.scores(vectors)
    found: list[tuple[int, float | None]] = []
    for i in range(len(probe.classes)):
        there = targets[:, i] == 1 if probe.several else targets == i
        if not there.any():
            found.append((0, None))
        elif probe.several:
            found.append((int(there.sum()), average_precision_11(scores[:, i], there)))
        else:
            found.append((int(there.sum()), float((scores[there].argmax(axis=1) == i).mean())))
    return found


def _looked_at(
    judged: LinearProbe, vectors: np.ndarray, targets: np.ndarray, held: np.ndarray
) -> tuple[Confusion, tuple[Shots, ...]]:
    """What a report shows beside the scores: the confusions and the few-shot curve."""
    return _confusion(judged, vectors[held], targets[held]), _curve(vectors, targets, held)


def _confusion(probe: LinearProbe, vectors: np.ndarray, targets: np.ndarray) -> Confusion:
    """(C, C): rows of each class by what they were taken for."""
    number = len(probe.classes)
    if number > MOST_CONFUSED:
        return None
    counts = np.zeros((number, number), np.int64)
    np.add.at(counts, (targets, probe.scores(vectors).argmax(axis=1)), 1)
    return tuple(tuple(map(int, row)) for row in counts)


def _curve(vectors: np.ndarray, targets: np.ndarray, held: np.ndarray) -> tuple[Shots, ...]:
    """Fits on few of the rows that are not held out, scored on those that are."""
    fitted = targets[~held]
    most = min(MOST_SHOT // len(np.unique(fitted)), int(np.bincount(fitted).max()))
    shots = [n for n in SHOTS if n <= most]
    if not shots:
        return ()
    return tuple(few_shot_curve(vectors[~held], fitted, vectors[held], targets[held], shots=shots, seeds=SHOT_SEEDS))
