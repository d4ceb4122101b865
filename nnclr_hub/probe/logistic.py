"""Logistic regression to its optimum, by L-BFGS over all rows in pieces, without a second copy of them.

The loss is the mean over rows of the cross-entropy, optionally weighted by class: a softmax over classes or, for
several labels per row, one sigmoid per class. The penalty is l2 / 2 times the squared weights, without the biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

ITERATIONS = 300
TOLERANCE = 1e-7
PIECE = 1 << 24  # numbers in memory at a time
MAX_ROTATED_DIM = 4096  # above it, decomposing the covariance would take longer than the fit
MAX_ROTATED = 1 << 26  # numbers (256 MiB): up to this size a rotated copy of the rows is made


class Stacked:
    """Rows of one or several matrices as one matrix, of which only pieces are ever copied.

    Args:
        parts: (matrix, (N,) int64 row numbers or None for all), each (M, D) float32 or float16.
    """

    def __init__(self, *parts: tuple[Tensor, Tensor | None]) -> None:
        self.parts = parts
        self.dim = parts[0][0].shape[1]

    def __len__(self) -> int:
        return sum(len(x) if index is None else len(index) for x, index in self.parts)

    def pieces(self, columns: int, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
        """Yield (positions, rows in float32 on the device), PIECE numbers at a time for this number of columns."""
        most, first = max(1, PIECE // max(columns, self.dim)), 0
        for x, index in self.parts:
            count = len(x) if index is None else len(index)
            for start in range(0, count, most):
                some = slice(start, min(start + most, count))
                piece = x[some] if index is None else x[index[some]]
                yield slice(first + some.start, first + some.stop), piece.to(device, torch.float32)
            first += count


@dataclass(frozen=True)
class Rows:
    """Training rows.

    x: (N, D) rows; pieces of them are copied to the device.
    y: (N,) int64 classes, or (N, C) float32 of zeros and ones, NaN where a label is unknown.
    weight: (N,) float32 of mean 1, or None.
    classes: C.
    """

    x: Stacked
    y: Tensor
    weight: Tensor | None
    classes: int

    def loss_and_gradient(self, parameters: Tensor, l2: float) -> tuple[Tensor, Tensor]:
        """Return the loss, a scalar, and its gradient at parameters (C, D + 1), whose last column are the biases."""
        device = parameters.device
        matrix, bias = parameters[:, :-1], parameters[:, -1]
        loss = l2 / 2 * matrix.square().sum()
        gradient = torch.zeros_like(parameters)
        gradient[:, :-1] = l2 * matrix
        for piece, x in self.x.pieces(self.classes, device):
            y = self.y[piece].to(device)
            share = torch.full((len(x),), 1 / len(self.x), device=device)
            if self.weight is not None:
                share *= self.weight[piece].to(device)
            logits = torch.addmm(bias, x, matrix.T)
            if y.ndim == 1:
                log_p = logits.log_softmax(dim=1)
                loss = loss - (log_p.gather(1, y[:, None])[:, 0] * share).sum()
                error = log_p.exp_()
                error[torch.arange(len(x), device=device), y] -= 1
            else:
                known = ~y.isnan()
                y = y.nan_to_num()
                each = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
                loss = loss + ((each * known).sum(dim=1) * share).sum()
                error = logits.sigmoid_().sub_(y).mul_(known)
            error *= share[:, None]
            gradient[:, :-1].addmm_(error.T, x)
            gradient[:, -1] += error.sum(dim=0)
        return loss, gradient


@dataclass(frozen=True)
class Basis:
    """Coordinates in which the loss is nearly round: the principal axes of the rows, centered.

    Centering makes biases independent of weights.

    mean: (D,)
    axes: (D, A), one per column. A is D or, for N rows in many dimensions, N.
    variance: (A,) along the axes.
    """

    mean: Tensor
    axes: Tensor
    variance: Tensor

    @classmethod
    def of(cls, x: Stacked, device: torch.device) -> Basis:
        """Compute the basis of (N, D) rows, piece by piece."""
        if 2 * len(x) <= x.dim <= MAX_ROTATED_DIM and len(x) * x.dim <= MAX_ROTATED:
            return cls._of_few(torch.cat([part for _, part in x.pieces(1, device)]))
        total = torch.zeros(x.dim, device=device)
        square = torch.zeros(x.dim, x.dim, device=device)
        for _, part in x.pieces(x.dim, device):
            total += part.sum(dim=0)
            square.addmm_(part.T, part)
        mean = total / len(x)
        covariance = square / len(x) - mean[:, None] * mean
        if len(covariance) > MAX_ROTATED_DIM:
            return cls(mean, torch.eye(len(mean), device=device), covariance.diagonal().clamp(min=0))
        variance, axes = _decomposed(torch.linalg.eigh, covariance)
        return cls(mean, axes, variance.clamp(min=0))

    @classmethod
    def _of_few(cls, x: Tensor) -> Basis:
        """Compute only the axes along which the rows differ. The optimal weights are zero along all other axes.

        Decomposing (N, D) takes less time than decomposing the covariance (D, D), and the fit has fewer parameters.
        """
        mean = x.mean(dim=0)
        _, singular, axes = _decomposed(partial(torch.linalg.svd, full_matrices=False), x - mean)
        return cls(mean, axes.T, singular.square() / len(x))

    @property
    def complete(self) -> bool:
        """Whether the axes span all rows, and not only those of which they were computed."""
        return self.axes.shape[0] == self.axes.shape[1]


def _decomposed(decompose: Callable[[Tensor], tuple[Tensor, ...]], matrix: Tensor) -> tuple[Tensor, ...]:
    """Decompose a matrix in float32, or else in float64.

    In float32 MKL does not converge, or returns NaN, if many columns are 0.
    """
    try:
        found = tuple(decompose(matrix))
        if all(bool(one.isfinite().all()) for one in found):
            return found
    except torch.linalg.LinAlgError:
        pass
    return tuple(one.float() for one in decompose(matrix.double()))


class Solver:
    """Minimizes the loss for one penalty after another, each time from the previous solution.

    The coordinates are those of its basis, each scaled by the curvature that loss and penalty have there at the start.
    L-BFGS then takes tens of steps instead of hundreds on raw features. The optimum is the same.

    Args:
        rows: to fit.
        basis: of these rows or of most of them; computed here if it is None or does not span them.
    """

    def __init__(self, rows: Rows, device: torch.device, basis: Basis | None = None) -> None:
        self.basis = basis if basis is not None and basis.complete else Basis.of(rows.x, device)
        self._curvature = self.basis.variance / (rows.classes if rows.y.ndim == 1 else 4)
        # few rows are rotated once; many are not copied, so their gradients are rotated instead
        self._rotated = len(rows.x) * rows.x.dim <= MAX_ROTATED
        if self._rotated:
            parts = [(part - self.basis.mean) @ self.basis.axes for _, part in rows.x.pieces(1, device)]
            rows = replace(rows, x=Stacked((torch.cat(parts), None)))
        self._rows = rows
        self._theta = torch.zeros(rows.classes, rows.x.dim + 1, device=device)  # along the axes, not scaled

    def minimize(self, l2: float, *, iterations: int = ITERATIONS, tolerance: float = TOLERANCE) -> Tensor:
        """Return parameters (C, D + 1) for raw rows, the last column the biases.

        Args:
            tolerance: largest gradient in the scaled coordinates, and change of the loss, at which it stops.
        """
        least = torch.finfo().eps * float(self._curvature.max())  # without a penalty, axes of no variance have none
        curvature = (self._curvature + max(l2, least)).clamp(min=torch.finfo().tiny)
        scale = torch.cat([curvature.rsqrt(), torch.ones_like(curvature[:1])])
        theta = self._theta / scale
        optimizer = torch.optim.LBFGS(
            [theta],
            max_iter=iterations,
            tolerance_grad=tolerance,
            tolerance_change=tolerance / 10,
            history_size=10,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            loss, gradient = self._loss_and_gradient(theta * scale, l2)
            theta.grad = gradient * scale
            return float(loss)

        optimizer.step(closure)  # type: ignore[arg-type]
        self._theta = theta.detach() * scale
        return self._on_raw_rows(self._theta)

    def _loss_and_gradient(self, theta: Tensor, l2: float) -> tuple[Tensor, Tensor]:
        if self._rotated:
            return self._rows.loss_and_gradient(theta, l2)
        loss, gradient = self._rows.loss_and_gradient(self._on_raw_rows(theta), l2)
        weight, bias = gradient[:, :-1], gradient[:, -1:]
        return loss, torch.cat([(weight - bias * self.basis.mean) @ self.basis.axes, bias], dim=1)

    def _on_raw_rows(self, theta: Tensor) -> Tensor:
        weight = theta[:, :-1] @ self.basis.axes.T
        return torch.cat([weight, (theta[:, -1] - weight @ self.basis.mean)[:, None]], dim=1)


def logits_of(x: Stacked, parameters: Tensor) -> Tensor:
    """Return logits (N, C) on the CPU, piece by piece, for parameters of `Solver.minimize`."""
    matrix, bias = parameters[:, :-1], parameters[:, -1]
    found = [torch.addmm(bias, part, matrix.T).cpu() for _, part in x.pieces(len(parameters), parameters.device)]
    return torch.cat(found) if found else torch.zeros(0, len(parameters))


def calibrated_temperature(logits: Tensor, y: Tensor) -> float:
    """Return T > 0 with the least cross-entropy of logits / T on held-out rows; y as in `Rows`."""

    def loss(t: Tensor) -> Tensor:
        if y.ndim == 1:
            return F.cross_entropy(logits / t, y)
        return F.binary_cross_entropy_with_logits(logits[~y.isnan()] / t, y[~y.isnan()])

    # the range is wide, because a strong penalty makes logits tiny even for well separated classes
    candidates = torch.logspace(-4.5, 1.5, 121)
    return float(candidates[torch.stack([loss(t) for t in candidates]).argmin()])
