"""A linear probe: multinomial logistic regression on frozen features, by L-BFGS.

    probe = fit_linear_probe(features, labels)          # L2 chosen on a validation split, refit on all
    probe.predict(features).labels

The loss is the mean cross-entropy plus l2 / 2 times the squared weights, biases free: scikit-learn's
LogisticRegression with C = 1 / (l2 N).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nnclr_hub.errors import InvalidRequest

SWEEP = tuple(10.0**power for power in range(-7, 2))
VALIDATION = 0.2  # share of the rows that chooses the L2
ITERATIONS = 200


@dataclass(frozen=True)
class Prediction:
    """What a probe says of Q rows.

    labels: Q labels, as they were given to the fit.
    probabilities: (Q, C) float32, in the order of the probe's classes.
    """

    labels: list[str | int]
    probabilities: np.ndarray


@dataclass(frozen=True)
class LinearProbe:
    """Softmax of a linear map.

    weight: (C, D) float32; bias: (C,) float32.
    classes: C labels, sorted.
    l2: what it was fitted with.
    """

    weight: np.ndarray
    bias: np.ndarray
    classes: tuple[str | int, ...]
    l2: float

    def predict(self, features: np.ndarray) -> Prediction:
        """The most probable class of each row of features, (Q, D) float."""
        features = _features(features)
        if features.shape[1] != self.weight.shape[1]:
            raise InvalidRequest(
                f"The probe takes vectors of {self.weight.shape[1]} numbers, got {features.shape[1]}: embed with the "
                "encoder that it was fitted on."
            )
        logits = torch.from_numpy(features @ self.weight.T + self.bias)
        probabilities = logits.softmax(dim=1).numpy()
        return Prediction([self.classes[i] for i in probabilities.argmax(axis=1)], probabilities)


def fit_linear_probe(
    features: np.ndarray, labels: Sequence[str | int] | np.ndarray, *, l2: float | None = None, seed: int = 0
) -> LinearProbe:
    """Fits a probe.

    Args:
        features: (N, D) float.
        labels: N labels of at least two classes.
        l2: strength of the penalty; None chooses it from SWEEP by the accuracy on a held-out fifth, then
            fits on all rows.
        seed: of that split.

    Raises:
        InvalidRequest: lengths that do not match, fewer than two classes, or numbers that are not finite.
    """
    x = _features(features)
    names = list(labels.tolist() if isinstance(labels, np.ndarray) else labels)
    classes = tuple(sorted(set(names), key=lambda name: (isinstance(name, str), name)))
    if len(names) != len(x) or len(classes) < 2:
        raise InvalidRequest(
            f"A linear probe needs one label a row and at least two classes; it was given {len(x)} rows, "
            f"{len(names)} labels and {len(classes)} classes."
        )
    number = {name: i for i, name in enumerate(classes)}
    rows, y = torch.from_numpy(x), torch.tensor([number[name] for name in names])
    chosen = _choose(rows, y, len(classes), seed) if l2 is None else l2
    weight, bias = _fit(rows, y, len(classes), chosen)
    return LinearProbe(weight.numpy(), bias.numpy(), classes, chosen)


def _features(features: np.ndarray) -> np.ndarray:
    x = np.ascontiguousarray(features, np.float32)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise InvalidRequest(f"Features are an (N, D) array of finite numbers; got shape {x.shape}.")
    return x


def _choose(rows: Tensor, y: Tensor, classes: int, seed: int) -> float:
    """The L2 of the best accuracy on a held-out part; of equals, the strongest."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    cut = max(1, round(len(rows) * VALIDATION))
    held, kept = order[:cut], order[cut:]
    if len(kept) < 1:
        return SWEEP[len(SWEEP) // 2]
    best, start = (-1.0, SWEEP[0]), None
    for l2 in sorted(SWEEP, reverse=True):  # from strong to weak, each from the last one's solution
        start = _fit(rows[kept], y[kept], classes, l2, start)
        accuracy = float(((rows[held] @ start[0].T + start[1]).argmax(1) == y[held]).float().mean())
        best = max(best, (accuracy, l2))
    return best[1]


def _fit(
    rows: Tensor, y: Tensor, classes: int, l2: float, start: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Weight (C, D) and bias (C,) at the minimum."""
    zeros = torch.zeros(classes, rows.shape[1]), torch.zeros(classes)
    weight, bias = (part.clone().requires_grad_() for part in start or zeros)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=ITERATIONS, tolerance_grad=1e-6, tolerance_change=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(rows @ weight.T + bias, y) + l2 / 2 * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return weight.detach(), bias.detach()
