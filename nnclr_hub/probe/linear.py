"""Fitting a linear probe: logistic regression on frozen features, to its optimum.

    probe = fit_linear_probe(features, labels)          # L2 chosen on a held-out part, refit on all rows
    probe.predict(features).labels
    probe.save("probe"); LinearProbe.load("probe")

With one label per row it is the softmax over classes, scikit-learn's LogisticRegression with C = 1 / (l2 N). With
several labels per row, it is one sigmoid per class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.linear_probe import Label, LinearProbe, Region, feature_matrix, label_list
from nnclr_hub.probe.logistic import TOLERANCE, Rows, Solver, Stacked, calibrated_temperature, logits_of
from nnclr_hub.probe.metrics import mean_average_precision_11, mean_per_class, top_k_accuracy

Metric = Literal["top1", "mean_per_class", "map11"]
SWEEP = tuple(10.0**power for power in range(-7, 2))
SWEEP_ITERATIONS = 30  # enough to rank penalties; the final fit continues to the optimum
VALIDATION = 0.2  # share of the rows that is held out to choose the L2


@checked
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
    reject_far: float | None = None,
    fingerprint: str = "",
    device: str | None = None,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LinearProbe:
    """Fit a linear probe.

    Args:
        features: (N, D) float32 or float16, not copied.
        labels: N labels of at least two classes; or, for several per row, (N, C) of zeros and ones, NaN where a label
            is unknown. Probabilities instead of zeros and ones (soft labels) are refused.
        classes: names of the C columns.
        l2: strength of the penalty. None chooses it from `sweep` by the metric on held-out rows, fits the temperature
            there too, and then fits on all rows.
        sweep: penalties to choose from, for the mean loss per row.
        validation: held-out features and labels; None holds out a fifth of each class.
        metric: used for the choice; default "top1", for several labels per row "map11".
        class_weight: "balanced" gives every class the same weight, however rare.
        threshold: see `LinearProbe`; default 0, for several labels per row 0.5.
        reject_far: share of rows of these classes that may be taken for none of them, above 0 and below 1. Rows that
            are farther from the rows of the fit than that share are predicted as none. None: no row is.
        device: "cpu" or "cuda"; default the CPU.
        tolerance: gradient at which the final fit stops.
        progress: called with (done, total), counted in penalties and the final fit.

    Raises:
        InvalidRequest: lengths that differ, fewer than two classes, NaN or infinity, or held-out labels that the
            training rows lack.
    """
    labels = _labels(labels)
    x, several = torch.from_numpy(feature_matrix(features)), isinstance(labels, np.ndarray)
    if several and classes is None:
        raise InvalidRequest("Labels (N, C) need classes, the names of the C columns.")
    names = tuple(sorted(set(labels), key=_order) if classes is None else classes)
    if len(labels) != len(x) or len(names) < (1 if several else 2):
        raise InvalidRequest(
            f"A linear probe needs one label per row and at least two classes; got {len(x)} rows, {len(labels)} labels "
            f"and {len(names)} classes."
        )
    metric = metric or ("map11" if several else "top1")
    _check_options(metric, several, class_weight, l2, sweep)
    if reject_far is not None and not 0 < reject_far < 1:
        raise InvalidRequest(f"reject_far must be between 0 and 1, got {reject_far!r}.")
    region = None
    if reject_far is not None:
        groups = np.zeros(len(x), np.int64) if several else _targets(labels, names).numpy()
        region = Region.of(x.numpy(), groups, reject_far)
    where, y = _device(device), _targets(labels, names)
    rows, temperature, basis = Stacked((x, None)), 1.0, None
    if l2 is None:
        if validation is None:
            kept, held = _split(y, seed)
            part, part_y, held_rows, held_y = Stacked((x, kept)), y[kept], Stacked((x, held)), y[held]
        else:
            other, held_y = torch.from_numpy(feature_matrix(validation[0])), _targets(_labels(validation[1]), names)
            part, part_y, held_rows = rows, y, Stacked((other, None))
            rows, y = Stacked((x, None), (other, None)), torch.cat([y, held_y])
        solver = Solver(_weighted(part, part_y, len(names), class_weight), where)
        best = (-1.0, 0.0, 0.0, torch.empty(0))
        # From strong to weak, so the strongest of equals wins. With several labels per row the loss breaks ties:
        # precision depends on the ranking only, and for well separated classes nearly all penalties rank equally.
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
    parameters = (
        Solver(_weighted(rows, y, len(names), class_weight), where, basis).minimize(l2, tolerance=tolerance).cpu()
    )
    progress(fits, fits)
    probe = LinearProbe(parameters[:, :-1].numpy(), parameters[:, -1].numpy(), names, l2, several=several)
    threshold = (0.5 if several else 0.0) if threshold is None else threshold
    return replace(probe, temperature=temperature, threshold=threshold, fingerprint=fingerprint, region=region)


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
        expected = "map11" if several else "top1 or mean_per_class"
        raise InvalidRequest(f"metric must be {expected} for these labels, got {metric!r}.")
    if class_weight not in (None, "balanced") or (class_weight and several):
        raise InvalidRequest(f"class_weight must be 'balanced' (for one label per row) or None, got {class_weight!r}.")
    penalties = sweep if l2 is None else [l2]
    if not len(penalties) or not all(0 <= one < float("inf") for one in penalties):
        raise InvalidRequest(f"Penalties must be finite numbers of at least 0, got {list(penalties)}.")


def _device(wanted: str | None) -> torch.device:
    if wanted is not None and wanted.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidRequest(f"{wanted} is not available, because torch finds no GPU; use cpu.")
    return torch.device(wanted or "cpu")


def _labels(given: Iterable[Label] | np.ndarray) -> list[Label] | np.ndarray:
    """Return N labels as a list, and (N, C) of several per row as an array."""
    if not hasattr(given, "__array__") or (array := np.asarray(given)).ndim == 1:
        return label_list(given)
    if array.ndim != 2:
        raise InvalidRequest(f"Labels must have the shape (N,), or (N, C) for several per row, got {array.shape}.")
    return array


def _order(label: Label) -> tuple[bool, Label]:
    return isinstance(label, str), label  # numbers before names


def _targets(labels: list[Label] | np.ndarray, classes: Sequence[Label]) -> Tensor:
    """Return positions in `classes`, (N,) int64, or the (N, C) matrix as float32."""
    if isinstance(labels, np.ndarray):
        if labels.shape[1] != len(classes):
            raise InvalidRequest(f"Labels with {labels.shape[1]} columns need as many classes, got {len(classes)}.")
        try:
            matrix = np.ascontiguousarray(labels, np.float32)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"Labels (N, C) must be zeros and ones; give names as N labels ({error}).") from error
        if not np.isin(matrix[~np.isnan(matrix)], (0, 1)).all():
            raise InvalidRequest("Labels (N, C) must be zeros and ones, or NaN where a label is unknown.")
        return torch.from_numpy(matrix)
    place = {name: i for i, name in enumerate(classes)}
    unknown = sorted({str(name) for name in labels if name not in place})
    if unknown:
        raise InvalidRequest(
            f"The training rows lack these labels: {', '.join(unknown[:5])}{' ...' * (len(unknown) > 5)}. "
            "Remove them from the held-out rows, or add training images with them."
        )
    return torch.tensor([place[name] for name in labels], dtype=torch.int64)


def _loss(logits: Tensor, y: Tensor) -> float:
    known = ~y.isnan()
    return float(F.binary_cross_entropy_with_logits(logits[known], y[known]))


def _weighted(x: Stacked, y: Tensor, classes: int, class_weight: str | None) -> Rows:
    weight = None
    if class_weight == "balanced":
        count = torch.bincount(y, minlength=classes).float()
        weight = (len(y) / (count > 0).sum() / count)[y]
    return Rows(x, y, weight, classes)


def _split(y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out a fifth of each class with two rows or more; with several labels per row, a fifth of the rows."""
    generator = torch.Generator().manual_seed(seed)
    kept, held = [], []
    group = y if y.ndim == 1 else torch.zeros(len(y), dtype=torch.int64)
    for one in group.unique():
        rows = (group == one).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=generator)]
        cut = max(1, round(len(rows) * VALIDATION)) if len(rows) > 1 else 0
        held.append(rows[:cut])
        kept.append(rows[cut:])
    if not sum(map(len, held)):
        raise InvalidRequest(
            "Every class has a single image, so none can be held out to choose the L2; add images, or set l2."
        )
    return torch.cat(kept).sort().values, torch.cat(held).sort().values
