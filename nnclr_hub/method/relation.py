"""Targets that are a distribution over the support set: ReSSL and SCE.

The target of a view is not one vector but how similar it is to every row of Q. The other views must have the same
similarities. SCE (Denize et al., WACV 2023) mixes this relation with the positive of InfoNCE; ReSSL (Zheng et al.,
NeurIPS 2021) is the relation alone.

    loss = relation_loss(z_momentum1, z2, support_set.queue, weight=0.5)      # SCE
    loss = relation_loss(z_momentum1, z2, support_set.queue, weight=0.0)      # ReSSL
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nnclr_hub.errors import InvalidRequest


def relation_loss(
    targets: Tensor,
    predictions: Tensor,
    queue: Tensor,
    temperature: float = 0.1,
    target_temperature: float = 0.05,
    weight: float = 0.5,
    mask: Tensor | None = None,
) -> Tensor:
    """Compute the cross-entropy between a target's and a prediction's similarity to the rows of Q (SCE, eqs. 5 to 8).

    The target distribution over [own target, Q] is weight * (1, 0, ..., 0) + (1 - weight) * (0, s), where s is the
    softmax of the target's similarities to Q. The prediction is the softmax of its similarities to [own target, Q];
    with weight 0 the own target has no part in it, as in ReSSL.

    Args:
        targets: (B, D) float, of the momentum encoder; constant. Need not be normalized.
        predictions: (B, D) float of another view, or (V, B, D) of V of them. Need not be normalized.
        queue: (M, D) float unit rows, Q.
        temperature: of the prediction, above 0.
        target_temperature: of s, above 0 and at most `temperature`; a smaller value makes targets sharper than
            predictions.
        weight: share of the positive, 0 to 1.
        mask: (B, M) bool, true where a row of Q is an older embedding of the same image and is left out.

    Returns:
        The mean over batch and views, a float32 scalar.

    Raises:
        InvalidRequest: shapes, temperatures or weight are outside of these ranges.
    """
    if targets.shape != predictions.shape[-2:] or targets.shape[1] != queue.shape[1]:
        raise InvalidRequest(
            f"Targets {tuple(targets.shape)}, predictions {tuple(predictions.shape)} and queue {tuple(queue.shape)} do "
            "not match: expected (B, D), (B, D) or (V, B, D), and (M, D)."
        )
    if not 0 < target_temperature <= temperature or not 0 <= weight <= 1:
        raise InvalidRequest(
            f"temperature={temperature}, target_temperature={target_temperature}, weight={weight}: expected "
            "0 < target_temperature <= temperature and a weight between 0 and 1."
        )
    with torch.autocast(predictions.device.type, enabled=False):
        targets = F.normalize(targets.detach().float())
        predictions = F.normalize(predictions.float(), dim=-1)
        queue = queue.detach().float()
        relation = targets @ queue.T / target_temperature  # (B, M)
        others = predictions @ queue.T / temperature  # (..., B, M)
        if mask is not None:
            relation, others = relation.masked_fill(mask, -torch.inf), others.masked_fill(mask, -torch.inf)
        own = (predictions * targets).sum(dim=-1, keepdim=True) / temperature  # (..., B, 1)
        if weight == 0:
            own = torch.full_like(own, -torch.inf)
        log_p = F.log_softmax(torch.cat([own, others], dim=-1), dim=-1)  # (..., B, 1 + M)
        positive = targets.new_full((len(targets), 1), weight)
        target = torch.cat([positive, (1 - weight) * relation.softmax(dim=1)], dim=1)  # (B, 1 + M)
        # 0 * -inf of masked rows is NaN; they have no part in the sum
        return -(target * log_p.masked_fill(target == 0, 0.0)).sum(dim=-1).mean()
