"""The losses: InfoNCE between targets and predictions (eqs. 2 and 3), and negative cosine.

Both normalise their inputs and compute in float32, whatever autocast is active around them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(
    targets: Tensor, predictions: Tensor, temperature: float = 0.1, *, transposed_term: bool = False
) -> Tensor:
    """n-way cross-entropy in which row i must pick out prediction i (eq. 3; eq. 2 when targets are views).

    The negatives of a row are the other n - 1 predictions of the batch, and nothing else: neither
    the other targets (as in the 2N - 1 way NT-Xent) nor the support set.

    Args:
        targets: (B, D) float, NN(z_i, Q) or z_i; need not be normalised.
        predictions: (B, D) float, p_i of the other view; need not be normalised.
        temperature: tau > 0.
        transposed_term: adds the term of "Implementation details" whose denominator runs over the
            targets, and halves the sum. The paper finds no effect on accuracy.

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with torch.autocast(predictions.device.type, enabled=False):
        targets = F.normalize(targets.float(), dim=1)
        predictions = F.normalize(predictions.float(), dim=1)
        logits = targets @ predictions.T / temperature  # (B, B)
        own = torch.arange(len(logits), device=logits.device)
        loss = F.cross_entropy(logits, own)
        if transposed_term:
            loss = (loss + F.cross_entropy(logits.T, own)) / 2
    return loss


def negative_cosine(targets: Tensor, predictions: Tensor) -> Tensor:
    """Minus the mean cosine of paired rows: the objective of SimSiam and of NNSiam.

    Args:
        targets: (B, D) float.
        predictions: (B, D) float.

    Returns:
        A float32 scalar in [-1, 1].
    """
    with torch.autocast(predictions.device.type, enabled=False):
        return -F.cosine_similarity(targets.float(), predictions.float(), dim=1).mean()
