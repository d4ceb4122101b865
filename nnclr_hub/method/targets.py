"""What predictions are compared with: the other view, its neighbors in Q, or an assignment to prototypes.

Each function of `TARGETS` is a cell of METHODS. It takes the learner and a batch, and returns the targets of both large
views. Plug-ins add theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from nnclr_hub.method.assignment import sinkhorn
from nnclr_hub.method.gather import Gather
from nnclr_hub.method.methods import Method
from nnclr_hub.method.neighbors import Neighbors
from nnclr_hub.method.support_set import SupportSet


class Parts(Protocol):
    """What targets and losses use of a learner; see the arguments of `Learner`."""

    method: Method
    support_set: SupportSet | None
    prediction: torch.nn.Module
    has_negatives: bool
    temperature: float
    target_temperature: float
    transposed_term: bool
    mean_of: int
    sigreg_weight: float
    gather: Gather


@dataclass(frozen=True)
class Batch:
    """What a target may depend on.

    own: (B, D) projections of the two large views by the target encoder.
    p: (B, D) predictions of all views.
    ids: (B,) int64 sample numbers, or None.
    labels: (B,) int64 classes, or None.
    neighbor_share: see `Learner.forward`.
    """

    own: Sequence[Tensor]
    p: Sequence[Tensor]
    ids: Tensor | None = None
    labels: Tensor | None = None
    neighbor_share: float | Tensor = 1.0


@dataclass(frozen=True)
class Targets:
    """The targets of a batch.

    of: a tensor for each large view; most losses need (B, D).
    found: lookup results of the large views; empty if no target is a row of Q or a mean of rows.
    share: share of the batch whose target is the neighbor, a scalar in [0, 1]; None: 0.
    """

    of: Sequence[Tensor]
    found: Sequence[Neighbors] = ()
    share: Tensor | None = None


def view(learner: Parts, batch: Batch) -> Targets:
    """Return the view itself, which the predictions of the other views must match (eq. 2)."""
    return Targets([z.detach() for z in batch.own] if learner.method.stop_gradient else batch.own)


def neighbor(learner: Parts, batch: Batch) -> Targets:
    """Return NN(z, Q) of each large view (eqs. 3 and 4), for the most similar `neighbor_share` of the batch."""
    assert learner.support_set is not None
    found = [learner.support_set.lookup(z, batch.ids, batch.labels) for z in batch.own]
    of = [_mixed(learner, z, nn, batch.neighbor_share) for z, nn in zip(batch.own, found, strict=True)]
    count = _count(len(batch.own[0]), batch.neighbor_share, batch.own[0].device)
    return Targets(of, found, (count / len(batch.own[0])).float())


def nearest_mean(learner: Parts, batch: Batch) -> Targets:
    """Return each large view's own embedding with its nearest rows of Q, (B, k, D) (mean shift)."""
    assert learner.support_set is not None
    k = learner.mean_of
    found = [learner.support_set.nearest_k(z, k, batch.ids) for z in batch.own]
    first = [F.normalize(z.detach().float())[:, None] for z in batch.own]
    of = [torch.cat([own, rows], dim=1)[:, :k] for own, (rows, _) in zip(first, found, strict=True)]
    return Targets(of, [nearest for _, nearest in found])


def assignment(learner: Parts, batch: Batch) -> Targets:
    """Return the assignment of each large view to prototypes, (B, K) (SwAV)."""
    return Targets([sinkhorn(p, learner.target_temperature, gather=learner.gather) for p in batch.p[: len(batch.own)]])


def _mixed(learner: Parts, z: Tensor, found: Neighbors, share: float | Tensor) -> Tensor:
    """Return neighbors for the most similar `share` of the batch and views for the rest: (B, D) float32."""
    assert learner.support_set is not None
    guided = learner.support_set.guided
    if isinstance(share, float | int) and share == 1 and not guided:
        return found.embeddings
    # the most similar of the whole batch, so the choice does not depend on the number of ranks
    order = learner.gather(found.similarity).argsort(descending=True, stable=True)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=z.device))
    own_places = place[learner.gather.rank * len(z) :][: len(z)]
    use_neighbor = own_places < _count(len(order), share, z.device)
    if guided:  # without a row that metadata allows, the view itself is the target
        use_neighbor &= found.similarity.isfinite()
    own = z if learner.has_negatives else z.detach()  # without negatives, a gradient through both sides collapses
    return torch.where(use_neighbor[:, None], found.embeddings, own.float())


def _count(batch: int, share: float | Tensor, device: torch.device) -> Tensor:
    """Return the number of images with a neighbor as target, a scalar tensor; half is rounded to even."""
    return (torch.as_tensor(share, dtype=torch.float64).to(device, non_blocking=True) * batch).round()


TARGETS: dict[str, Callable[[Parts, Batch], Targets]] = {
    "view": view,
    "neighbor": neighbor,
    "nearest_mean": nearest_mean,
    "assignment": assignment,
}
