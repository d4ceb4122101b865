"""The losses: InfoNCE between targets and predictions (eqs. 2 and 3), negative cosine, and mean shift.

All compute in float32 even under autocast. They accept the predictions of one view, or of several views stacked, and
return the mean over the views. They normalize their inputs, except the neighbors of `mean_shift`, which are unit rows.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.gather import ALONE, Gather


class Objective(Protocol):
    """A loss that replaces the one of a method; see the arguments of `info_nce`. It may run under autocast."""

    def __call__(self, targets: Tensor, predictions: Tensor, temperature: float, *, gather: Gather) -> Tensor: ...


OBJECTIVES: dict[str, Objective] = {}  # those of plug-ins, by name; the methods' own are choices of `Method`


def info_nce(
    targets: Tensor,
    predictions: Tensor,
    temperature: float = 0.1,
    *,
    transposed_term: bool = False,
    anchor: str = "target",
    gather: Gather = ALONE,
) -> Tensor:
    """Compute the n-way cross-entropy in which row i must identify prediction i (eq. 3; eq. 2 if targets are views).

    The negatives of a row are the other n - 1 predictions of the batch. Neither the other targets (as in the
    2N - 1 way NT-Xent) nor the rows of the support set are negatives; see `queue_info_nce` for those.

    Args:
        targets: (B, D) float, NN(z_i, Q) or z_i; not necessarily normalized.
        predictions: (B, D) float, p_i of another view, or (V, B, D) for V views; not necessarily normalized.
        temperature: tau > 0.
        transposed_term: add the term of "Implementation details" whose denominator runs over the targets, and halve
            the sum. The paper finds no effect on accuracy.
        anchor: "target" as in eq. 3; "prediction" takes the predictions as rows and the targets of the batch as
            columns, as MoCo v3 does.
        gather: collects the columns over the ranks of a distributed run.

    Returns:
        The mean over batch and views, a float32 scalar.

    Raises:
        InvalidRequest: tau is not above 0, or the shapes do not match.
    """
    if not temperature > 0:
        raise InvalidRequest(f"temperature must be above 0, for example 0.1; got {temperature}.")
    _require_pairs(targets, predictions)
    with torch.autocast(predictions.device.type, enabled=False):
        targets = F.normalize(targets.float())
        predictions = F.normalize(predictions.float(), dim=-1)
        rows, columns = (targets, predictions) if anchor == "target" else (predictions, targets)
        loss = _cross_entropy(rows, columns, temperature, gather)
        if transposed_term:
            loss = (loss + _cross_entropy(columns, rows, temperature, gather)) / 2
    return loss


def _cross_entropy(rows: Tensor, columns: Tensor, temperature: float, gather: Gather) -> Tensor:
    """Compute the cross-entropy of each row over the columns of all ranks: (..., B, D) x (..., B, D) -> scalar."""
    everyone = gather.with_gradient(columns.transpose(0, -2)).transpose(0, -2)  # (..., world B, D)
    logits = rows @ everyone.mT / temperature  # (..., B, world B)
    own = torch.arange(rows.shape[-2], device=rows.device) + gather.rank * rows.shape[-2]
    return F.cross_entropy(logits.flatten(0, -2), own.expand(logits.shape[:-1]).flatten())


def queue_info_nce(
    targets: Tensor,
    predictions: Tensor,
    queue: Tensor,
    temperature: float = 0.1,
    left_out: Tensor | None = None,
) -> Tensor:
    """Compute the cross-entropy in which a prediction must identify its target among the rows of Q (MoCo, eq. 1).

    Args:
        targets: (B, D) float; not necessarily normalized. They keep their gradient: detach them for a constant.
        predictions: (B, D) float of another view, or (V, B, D) for V views; not necessarily normalized.
        queue: (M, D) float unit rows, the negatives.
        temperature: tau > 0.
        left_out: (B, M) bool, true where a row is not a negative: an older embedding of the image, or its target.

    Returns:
        The mean over batch and views, a float32 scalar.

    Raises:
        InvalidRequest: tau is not above 0, or the shapes do not match.
    """
    if not temperature > 0:
        raise InvalidRequest(f"temperature must be above 0, for example 0.1; got {temperature}.")
    _require_pairs(targets, predictions)
    with torch.autocast(predictions.device.type, enabled=False):
        predictions = F.normalize(predictions.float(), dim=-1)
        positive = (predictions * F.normalize(targets.float())).sum(dim=-1, keepdim=True)  # (..., B, 1)
        negatives = predictions @ queue.detach().float().T  # (..., B, M)
        if left_out is not None:
            negatives = negatives.masked_fill(left_out, -torch.inf)
        logits = torch.cat([positive, negatives], dim=-1) / temperature
    return -logits.log_softmax(dim=-1)[..., 0].mean()


def negative_cosine(targets: Tensor, predictions: Tensor) -> Tensor:
    """Compute minus the mean cosine of paired rows: the objective of SimSiam, NNSiam and, up to its scale, BYOL.

    Args:
        targets: (B, D) float.
        predictions: (B, D) float, or (V, B, D) for V views.

    Returns:
        A float32 scalar in [-1, 1].

    Raises:
        InvalidRequest: the shapes do not match.
    """
    _require_pairs(targets, predictions)
    return -F.cosine_similarity(targets.float(), predictions.float(), dim=-1).mean()


def mean_shift(neighbors: Tensor, predictions: Tensor) -> Tensor:
    """Compute minus the mean cosine of a prediction with each of k rows (Koohpayegani et al., ICCV 2021, eq. 1).

    Args:
        neighbors: (B, k, D) float unit rows: the target of the other view and its nearest rows of Q.
        predictions: (B, D) float, or (V, B, D) for V views.

    Returns:
        A float32 scalar in [-1, 1].

    Raises:
        InvalidRequest: the shapes do not match.
    """
    _require_pairs(neighbors[:, 0], predictions)
    return -(F.normalize(predictions.float(), dim=-1) * neighbors.float().mean(dim=1)).sum(dim=-1).mean()


def _require_pairs(targets: Tensor, predictions: Tensor) -> None:
    """Raise InvalidRequest for shapes that broadcasting would accept silently."""
    if targets.shape != predictions.shape[-2:]:
        raise InvalidRequest(
            f"Targets of shape {tuple(targets.shape)} do not match predictions of shape {tuple(predictions.shape)}; "
            "expected (B, D) for both, or (V, B, D) predictions of V views."
        )
