"""Targets that are an assignment to prototypes: SwAV (Caron et al., NeurIPS 2020), without its queue.

Each view's score is the cosine with K trained prototypes. The assignment of one view, balanced over the batch
by Sinkhorn-Knopp, is the target that the scores of the other views must predict ("swapped prediction", eq. 2).

    codes = sinkhorn(scores1)                  # (B, K), rows sum to 1, columns to B / K
    loss = swapped_prediction(codes, scores2, temperature=0.1)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.gather import ALONE, Gather


class Prototypes(nn.Module):
    """K unit vectors C, trained with the encoder; gives the scores z C of normalized projections.

    Args:
        dim: D, length of z.
        count: K.
    """

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, dim))
        nn.init.normal_(self.weight)

    def forward(self, z: Tensor) -> Tensor:
        """Return the cosine of each projection with each prototype: (B, D) -> (B, K) float32."""
        with torch.autocast(z.device.type, enabled=False):
            return F.normalize(z.float()) @ F.normalize(self.weight.float()).T


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3, gather: Gather = ALONE) -> Tensor:
    """Assign a batch to prototypes so that every prototype gets an equal share (SwAV, eqs. 3 to 5).

    Args:
        scores: (B, K) float, cosines with the prototypes.
        epsilon: weight of the entropy; a smaller one gives harder assignments.
        iterations: of the Sinkhorn-Knopp algorithm. Each scales the columns, then the rows.
        gather: collects the batch over the ranks of a distributed run.

    Returns:
        (B, K) float32, each row a distribution. Constant: no gradient passes.

    Raises:
        InvalidRequest: epsilon is not above 0, or iterations is below 1.
    """
    if not epsilon > 0 or iterations < 1:
        raise InvalidRequest(
            f"sinkhorn needs epsilon above 0 and at least 1 iteration, got epsilon={epsilon} and "
            f"iterations={iterations}."
        )
    everyone = gather(scores.float())  # (world B, K)
    # in logarithms: exp(1 / 0.05) overflows half precision and loses the small shares in single precision
    log_q = everyone / epsilon
    batch, prototypes = log_q.shape
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(dim=0, keepdim=True) + math.log(batch / prototypes)
        log_q = log_q - log_q.logsumexp(dim=1, keepdim=True)
    return log_q.exp()[gather.rank * len(scores) :][: len(scores)]


def swapped_prediction(codes: Tensor, scores: Tensor, temperature: float = 0.1) -> Tensor:
    """Compute the cross-entropy between the assignment of one view and the softmax of another view's scores.

    Args:
        codes: (B, K) float32, rows that sum to 1; see `sinkhorn`.
        scores: (B, K) float of another view, or (V, B, K) of V of them.
        temperature: of the softmax, above 0.

    Returns:
        The mean over batch and views, a float32 scalar.

    Raises:
        InvalidRequest: the shapes do not match, or the temperature is not above 0.
    """
    if codes.shape != scores.shape[-2:] or not temperature > 0:
        raise InvalidRequest(
            f"Codes {tuple(codes.shape)} and scores {tuple(scores.shape)} at temperature {temperature}: expected "
            "(B, K) and (B, K) or (V, B, K), and a temperature above 0."
        )
    log_p = F.log_softmax(scores.float() / temperature, dim=-1)
    return -(codes * log_p).sum(dim=-1).mean()
