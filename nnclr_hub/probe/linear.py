"""Fitting a linear probe: logistic regression on frozen features, at its optimum.

    probe = fit_linear_probe(features, labels)          # L2 chosen on a held-out part, refit on all
    probe.predict(features).labels
    probe.save("probe"); LinearProbe.load("probe")

With one label a row it is the softmax over classes, scikit-learn's LogisticRegression with C = 1 / (l2 N); with
several, a sigmoid each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.linear_probe import Label, LinearProbe, feature_matrix
from nnclr_hub.probe.logistic import Rows, Solver, Stacked, calibrated_temperature, logits_of
from nnclr_hub.probe.metrics import mean_average_precision_11, mean_per_class, top_k_accuracy

Metric = Literal["top1", "mean_per_class", "map11"]
SWEEP = tuple(10.0**power for power in range(-7, 2))
SWEEP_ITERATIONS = 30  # enough to rank penalties; the last fit goes to the optimum
VALIDATION = 0.2  # share of the rows that chooses the L2


def fit_linear_probe(
    features: np.ndarray,
    labels: Sequence[Label] | np.ndarray,
    *,
    classes: Sequence[Label] | None = None,
    l2: float | None = None,
    sweep: Sequence[float] = SWEEP,
    validation: tuple[np.ndarray, Sequence[Label] | np.ndarray] | None = None,
    metric: Metric | None = None,
    class_weight: Literal["balanced"] | None = None,
    threshold: float | None = None,
    fingerprint: str = "",
    device: str | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LinearProbe:
    """Fits a probe.

    Args:
        features: (N, D) float32 or float16; no copy is made of them.
        labels: N labels of at least two classes; or, several a row, (N, C) of zeros and ones, NaN where a label
            counts neither way.
        classes: names of those C columns.
        l2: strength of the penalty; None chooses it from `sweep` by the metric on held-out rows, fits the
            temperature there too, and then fits on all rows.
        sweep: penalties to choose from, for the mean loss a row.
        validation: the held-out features and labels; None takes a fifth of each class.
        metric: what chooses; default "top1", for several labels "map11".
        class_weight: "balanced" lets every class count as much, however rare.
        threshold: see `LinearProbe`; default 0, for several labels 0.5.
        fingerprint: of the encoder.
        device: "cpu", "cuda"; default the CPU.
        seed: of the split.
        progress: called with (done, total), counted in penalties to try and the last fit.

    Raises:
        InvalidRequest: lengths that do not match, fewer than two classes, numbers that are not finite, or held-out
            labels that the rows lack.
    """
    x, several = feature_matrix(features), isinstance(labels, np.ndarray) and labels.ndim == 2
    names = tuple(classes) if classes is not None else _classes(labels)
    if len(labels) != len(x) or len(names) < (1 if several else 2):
        raise InvalidRequest(
            f"A linear probe needs one label a row and at least two classes; it was given {len(x)} rows, "
            f"{len(labels)} labels and {len(names)} classes."
        )
    metric = metric or ("map11" if several else "top1")
    _check_options(metric, several, class_weight, l2, sweep)
    where, y = _device(device), _targets(labels, names)
    rows, temperature, basis = Stacked((x, None)), 1.0, None
    if l2 is None:
        if validation is None:
            kept, held = _split(y, seed)
            part, part_y, held_rows, held_y = Stacked((x, kept)), y[kept], Stacked((x, held)), y[held]
        else:
            other, held_y = feature_matrix(validation[0]), _targets(validation[1], names)
            part, part_y, held_rows = rows, y, Stacked((other, None))
            rows, y = Stacked((x, None), (other, None)), torch.cat([y, held_y])
        solver = Solver(_weighted(part, part_y, len(names), class_weight), where)
        best = (-1.0, 0.0, 0.0, torch.empty(0))
        # from strong to weak; of equals, the strongest. Of several labels a row the surest: mean precision says nothing
        # of whether a label is there, and where classes lie far apart, nearly all penalties are equals
        for tried, one in enumerate(sorted(sweep, reverse=True)):
            progress(tried, len(sweep) + 1)
            logits = logits_of(held_rows, solver.minimize(one, iterations=SWEEP_ITERATIONS, tolerance=1e-4))
            reached = _SCORES[metric](logits.numpy(), held_y.numpy())
            loss = _loss(logits, held_y) if several else 0.0
            if (reached, -loss) > best[:2]:
                best = (reached, -loss, one, logits)
        l2, basis = best[2], solver.basis
        temperature = calibrated_temperature(best[3], held_y)
    fits = 1 if basis is None else len(sweep) + 1
    progress(fits - 1, fits)
    parameters = Solver(_weighted(rows, y, len(names), class_weight), where, basis).minimize(l2).cpu()
    progress(fits, fits)
    probe = LinearProbe(parameters[:, :-1].numpy(), parameters[:, -1].numpy(), names, l2, several=several)
    threshold = (0.5 if several else 0.0) if threshold is None else threshold
    return replace(probe, temperature=temperature, threshold=threshold, fingerprint=fingerprint)


# ------------------------------------------------------------------------------ inside

_SCORES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "top1": top_k_accuracy,
    "mean_per_class": lambda logits, y: mean_per_class(logits.argmax(axis=1), y),
    "map11": lambda logits, y: mean_average_precision_11(logits, y == 1, ~np.isnan(y), absent="left out"),
}


def _check_options(
    metric: str, several: bool, class_weight: str | None, l2: float | None, sweep: Sequence[float]
) -> None:
    if metric not in _SCORES or (metric == "map11") != several:
        raise InvalidRequest(f"metric={metric!r}: one label a row takes top1 or mean_per_class, several take map11.")
    if class_weight not in (None, "balanced") or (class_weight and several):
        raise InvalidRequest(f"class_weight={class_weight!r}: give 'balanced', for one label a row, or nothing.")
    penalties = sweep if l2 is None else [l2]
    if not len(penalties) or not all(0 <= one < float("inf") for one in penalties):
        raise InvalidRequest("A penalty is 0 or more, and the sweep has at least one.")


def _device(wanted: str | None) -> torch.device:
    if wanted is not None and wanted.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidRequest(f"{wanted} is not there, torch sees no GPUs: leave the device out, or name cpu.")
    return torch.device(wanted or "cpu")


def _classes(labels: Sequence[Label] | np.ndarray) -> tuple[Label, ...]:
    names = labels.tolist() if isinstance(labels, np.ndarray) else labels
    return tuple(sorted(set(names), key=lambda name: (isinstance(name, str), name)))


def _targets(labels: Sequence[Label] | np.ndarray, classes: Sequence[Label]) -> Tensor:
    """(N,) int64 places in `classes`, or the (N, C) matrix as float32."""
    if isinstance(labels, np.ndarray) and labels.ndim == 2:
        if labels.shape[1] != len(classes):
            raise InvalidRequest(f"Labels of {labels.shape[1]} columns need as many classes; got {len(classes)}.")
        return torch.from_numpy(np.ascontiguousarray(labels, np.float32))
    names = labels.tolist() if isinstance(labels, np.ndarray) else labels
    place = {name: i for i, name in enumerate(classes)}
    unknown = sorted({str(name) for name in names if name not in place})
    if unknown:
        raise InvalidRequest(
            f"These labels do not occur in the rows to fit on: {', '.join(unknown[:5])}{' ...' * (len(unknown) > 5)}. "
            "Leave them out, or add images of them."
        )
    return torch.tensor([place[name] for name in names], dtype=torch.int64)


def _loss(logits: Tensor, y: Tensor) -> float:
    """The mean cross-entropy of several labels a row."""
    known = ~y.isnan()
    return float(F.binary_cross_entropy_with_logits(logits[known], y[known]))


def _weighted(x: Stacked, y: Tensor, classes: int, class_weight: str | None) -> Rows:
    weight = None
    if class_weight == "balanced":
        count = torch.bincount(y, minlength=classes).float()
        weight = (len(y) / (count > 0).sum() / count)[y]
    return Rows(x, y, weight, classes)


def _split(y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """A fifth of each class held out, of a class with a single row none; of several labels, a fifth of the rows."""
    draws = torch.Generator().manual_seed(seed)
    kept, held = [], []
    group = y if y.ndim == 1 else torch.zeros(len(y), dtype=torch.int64)
    for one in group.unique():
        rows = (group == one).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=draws)]
        cut = max(1, round(len(rows) * VALIDATION)) if len(rows) > 1 else 0
        held.append(rows[:cut])
        kept.append(rows[cut:])
    if not sum(map(len, held)):
        raise InvalidRequest(
            "Every class has a single image, so none can choose the L2: add images or a val/, or give l2."
        )
    return torch.cat(kept).sort().values, torch.cat(held).sort().values
