"""The losses: InfoNCE between targets and predictions (eqs. 2 and 3), and negative cosine.

Both normalize their inputs and compute in float32, whatever autocast is active around them. Both
take the predictions of one view, or of several stacked: then they are the mean over the views.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.gather import ALONE, Gather


def info_nce(
    targets: Tensor,
    predictions: Tensor,
    temperature: float = 0.1,
    *,
    transposed_term: bool = False,
    gather: Gather = ALONE,
) -> Tensor:
    """n-way cross-entropy in which row i must pick out prediction i (eq. 3; eq. 2 when targets are views).

    The negatives of a row are the other n - 1 predictions of the batch, and nothing else: neither
    the other targets (as in the 2N - 1 way NT-Xent) nor the support set.

    Args:
        targets: (B, D) float, NN(z_i, Q) or z_i; need not be normalized.
        predictions: (B, D) float, p_i of another view, or (V, B, D) of V of them; need not be normalized.
        temperature: tau > 0.
        transposed_term: adds the term of "Implementation details" whose denominator runs over the
            targets, and halves the sum. The paper finds no effect on accuracy.
        gather: collects the columns over the ranks of a distributed run.

    Returns:
        The mean over batch and views, a float32 scalar.

    Raises:
        InvalidRequest: tau is not above 0, or the two are not of the same images.
    """
    if not temperature > 0:
        raise InvalidRequest(f"temperature={temperature} makes no softmax: give a number above 0, as 0.1.")
    _require_pairs(targets, predictions)
    with torch.autocast(predictions.device.type, enabled=False):
        targets = F.normalize(targets.float(), dim=-1)
        predictions = F.normalize(predictions.float(), dim=-1)
        loss = _pick_out(targets, predictions, temperature, gather)
        if transposed_term:
            loss = (loss + _pick_out(predictions, targets, temperature, gather)) / 2
    return loss


def _pick_out(rows: Tensor, columns: Tensor, temperature: float, gather: Gather) -> Tensor:
    """Cross-entropy of each row's similarities to the columns of all ranks: (..., B, D) x (..., B, D) -> scalar."""
    everyone = gather.with_gradient(columns.transpose(0, -2)).transpose(0, -2)  # (..., world B, D)
    logits = rows @ everyone.mT / temperature  # (..., B, world B)
    own = torch.arange(rows.shape[-2], device=rows.device) + gather.rank * rows.shape[-2]
    return F.cross_entropy(logits.flatten(0, -2), own.expand(logits.shape[:-1]).flatten())


def negative_cosine(targets: Tensor, predictions: Tensor) -> Tensor:
    """Minus the mean cosine of paired rows: the objective of SimSiam, NNSiam and, up to its scale, BYOL.

    Args:
        targets: (B, D) float.
        predictions: (B, D) float, or (V, B, D) of V views.

    Returns:
        A float32 scalar in [-1, 1].

    Raises:
        InvalidRequest: the two are not of the same images.
    """
    _require_pairs(targets, predictions)
    with torch.autocast(predictions.device.type, enabled=False):
        return -F.cosine_similarity(targets.float(), predictions.float(), dim=-1).mean()


def _require_pairs(targets: Tensor, predictions: Tensor) -> None:
    """Refuses what would be broadcast, or paired with whichever row stands there."""
    if targets.shape != predictions.shape[-2:]:
        raise InvalidRequest(
            f"Targets {tuple(targets.shape)} and predictions {tuple(predictions.shape)} are no pairs: give (B, D) of "
            "both, or predictions (V, B, D) of V views."
        )
