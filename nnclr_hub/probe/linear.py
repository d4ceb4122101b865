"""A linear probe: logistic regression on frozen features, at its optimum.

    probe = fit_linear_probe(features, labels)          # L2 chosen on a held-out part, refit on all
    probe.predict(features).labels
    probe.save("probe"); LinearProbe.load("probe")

With one label a row it is the softmax over classes, scikit-learn's LogisticRegression with C = 1 / (l2 N); with
several, a sigmoid each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nnclr_hub.errors import FingerprintMismatch, InvalidRequest
from nnclr_hub.probe.logistic import Rows, Solver, calibrated_temperature, logits_of
from nnclr_hub.probe.metrics import mean_average_precision_11, mean_per_class, top_k_accuracy

Label = str | int
Metric = Literal["top1", "mean_per_class", "map11"]
SWEEP = tuple(10.0**power for power in range(-7, 2))
SWEEP_ITERATIONS = 30  # enough to rank penalties; the last fit goes to the optimum
VALIDATION = 0.2  # share of the rows that chooses the L2
WEIGHTS, ABOUT = "probe.safetensors", "probe.json"
KEPT = ("l2", "temperature", "threshold", "fingerprint", "several", "model")


@dataclass(frozen=True)
class Prediction:
    """What a probe says of Q rows.

    labels: Q labels, as they were given to the fit; None where no class is as probable as the threshold. With
        several labels a row, tuples of all that are.
    probabilities: (Q, C) float32, in the order of the probe's classes.
    """

    labels: list[Label | None] | list[tuple[Label, ...]]
    probabilities: np.ndarray


@dataclass(frozen=True)
class LinearProbe:
    """A fitted probe.

    weight: (C, D) float32; bias: (C,) float32.
    classes: C labels, sorted.
    l2: what it was fitted with.
    temperature: what logits are divided by; fitted on held-out rows, so that probabilities are calibrated.
    threshold: least probability of a prediction; below it the answer is none of the classes.
    fingerprint: of the encoder whose features it takes; "" if unknown.
    several: whether a row may have more than one label.
    model: source of that encoder; "" if unknown.
    """

    weight: np.ndarray
    bias: np.ndarray
    classes: tuple[Label, ...]
    l2: float
    temperature: float = 1.0
    threshold: float = 0.0
    fingerprint: str = ""
    several: bool = False
    model: str = ""

    def scores(self, features: np.ndarray, *, fingerprint: str = "") -> np.ndarray:
        """(Q, C) float32 logits.

        Args:
            features: (Q, D) float.
            fingerprint: of the encoder that they come from; "" leaves it unchecked.

        Raises:
            InvalidRequest: rows of another length, or numbers that are not finite.
            FingerprintMismatch: features of another encoder.
        """
        if fingerprint and self.fingerprint and fingerprint != self.fingerprint:
            raise FingerprintMismatch(
                f"The probe was fitted on features of the encoder {self.fingerprint[:12]}, and these are of "
                f"{fingerprint[:12]}: embed with the former, or fit a new probe."
            )
        x = feature_matrix(features)
        if x.shape[1] != self.weight.shape[1]:
            raise InvalidRequest(
                f"The probe takes vectors of {self.weight.shape[1]} numbers, got {x.shape[1]}: embed with the "
                "encoder that it was fitted on."
            )
        parameters = torch.from_numpy(np.concatenate([self.weight, self.bias[:, None]], axis=1))
        return (logits_of(x, parameters) / self.temperature).numpy()

    def predict(self, features: np.ndarray, *, fingerprint: str = "") -> Prediction:
        """The most probable class of each row; with several labels a row, all that are probable enough.

        Args and errors are those of `scores`.
        """
        logits = torch.from_numpy(self.scores(features, fingerprint=fingerprint))
        if self.several:
            probabilities = logits.sigmoid().numpy()
            there = probabilities >= self.threshold
            return Prediction([tuple(self.classes[i] for i in np.flatnonzero(row)) for row in there], probabilities)
        probabilities = logits.softmax(dim=1).numpy()
        best, sure = probabilities.argmax(axis=1), probabilities.max(axis=1, initial=0) >= self.threshold
        return Prediction([self.classes[i] if ok else None for i, ok in zip(best, sure, strict=True)], probabilities)

    def save(self, folder: str | Path) -> Path:
        """Writes probe.safetensors and probe.json."""
        from safetensors.numpy import save

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {"weight": np.ascontiguousarray(self.weight), "bias": np.ascontiguousarray(self.bias)}
        about = {"classes": list(self.classes), **{name: getattr(self, name) for name in KEPT}}
        (folder / WEIGHTS).write_bytes(save(weights, metadata={"format": "np"}))
        (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> LinearProbe:
        """What `save` wrote.

        Raises:
            InvalidRequest: the folder holds no probe, or a damaged one.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        folder = Path(folder)
        try:
            about = json.loads((folder / ABOUT).read_text("utf-8"))
            weights = load_file(folder / WEIGHTS)
            return cls(weights["weight"], weights["bias"], tuple(about["classes"]), **{n: about[n] for n in KEPT})
        except FileNotFoundError as error:
            raise InvalidRequest(f"{folder} holds no probe: give a folder that `nnclr probe fit` wrote.") from error
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"The probe in {folder} is damaged ({error}): fit it again.") from error


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
    where, y = torch.device(device or "cpu"), _targets(labels, names)
    score = _SCORES[metric or ("map11" if several else "top1")]
    temperature, basis = 1.0, None
    if l2 is None:
        if validation is None:
            kept, held = _split(y, seed)
            part, held_x, held_y = (x[kept], y[kept]), x[held], y[held]
        else:
            held_x, held_y = feature_matrix(validation[0]), _targets(validation[1], names)
            part = (x, y)
        solver = Solver(_rows(*part, len(names), class_weight), where)
        best = (-1.0, 0.0, torch.empty(0))
        for one in sorted(sweep, reverse=True):  # from strong to weak; of equals, the strongest
            logits = logits_of(held_x, solver.minimise(one, iterations=SWEEP_ITERATIONS, tolerance=1e-4))
            reached = score(logits.numpy(), held_y.numpy())
            if reached > best[0]:
                best = (reached, one, logits)
        l2, basis = best[1], solver.basis
        temperature = calibrated_temperature(best[2], held_y)
        if validation is not None:
            x, y = torch.cat([x, held_x.to(x.dtype)]), torch.cat([y, held_y])
    parameters = Solver(_rows(x, y, len(names), class_weight), where, basis).minimise(l2).cpu()
    probe = LinearProbe(parameters[:, :-1].numpy(), parameters[:, -1].numpy(), names, l2, several=several)
    threshold = (0.5 if several else 0.0) if threshold is None else threshold
    return replace(probe, temperature=temperature, threshold=threshold, fingerprint=fingerprint)


def feature_matrix(features: np.ndarray) -> Tensor:
    """(N, D) as a tensor on the same memory.

    Raises:
        InvalidRequest: another shape, or numbers that are not finite, with the first such row.
    """
    x = np.asarray(features)
    if x.ndim != 2:
        raise InvalidRequest(f"Features are an (N, D) array; got shape {x.shape}.")
    x = x if x.dtype in (np.float32, np.float16) else x.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(x.sum(axis=1, dtype=np.float64)))
    if len(bad):
        raise InvalidRequest(f"Features must be finite numbers: row {bad[0]} is not, nor are {len(bad) - 1} others.")
    x = np.ascontiguousarray(x)
    return torch.from_numpy(x if x.flags.writeable else x.view())


# ------------------------------------------------------------------------------ inside

_SCORES = {
    "top1": lambda logits, y: top_k_accuracy(logits, y),
    "mean_per_class": lambda logits, y: mean_per_class(logits.argmax(axis=1), y),
    "map11": lambda logits, y: mean_average_precision_11(logits, y == 1, ~np.isnan(y)),
}


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
            "Leave them out, or add pictures of them."
        )
    return torch.tensor([place[name] for name in names], dtype=torch.int64)


def _rows(x: Tensor, y: Tensor, classes: int, class_weight: str | None) -> Rows:
    weight = None
    if class_weight == "balanced" and y.ndim == 1:
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
        raise InvalidRequest("Every class has a single row, so none can be held out to choose the L2: give l2.")
    return torch.cat(kept).sort().values, torch.cat(held).sort().values
