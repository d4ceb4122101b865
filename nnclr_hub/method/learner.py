"""One training step of a method: two views in, a loss out (Algorithm 1).

learner = Learner(backbone, METHODS["nnclr"], projection, prediction, SupportSet(8192, 256))
step = learner(x1, x2, ids=ids)
step.loss.backward()
optimizer.step()
learner.enqueue(step, ids=ids)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.methods import Method
from nnclr_hub.method.neighbours import Neighbours
from nnclr_hub.method.objectives import info_nce
from nnclr_hub.method.support_set import SupportSet


@dataclass(frozen=True)
class Step:
    """What a step computed.

    loss: scalar float32.
    z1: (B, D) projections of the first view, without gradient.
    neighbours: what the first view's look-up found; None for methods without a support set.
    took_neighbour: share of the batch whose target was the neighbour, a scalar in [0, 1].
    """

    loss: Tensor
    z1: Tensor
    neighbours: Neighbours | None
    took_neighbour: Tensor


class Learner(nn.Module):
    """Encoder f = projection(backbone), prediction head g and support set Q under one method.

    Args:
        backbone: (B, 3, H, W) -> (B, F).
        method: a row of METHODS.
        projection: (B, F) -> (B, D).
        prediction: (B, D) -> (B, D); None for p = z.
        support_set: required by methods whose target is the neighbour.
        temperature: tau of the InfoNCE loss.
        transposed_term: see `info_nce`.
    """

    def __init__(
        self,
        backbone: nn.Module,
        method: Method,
        projection: nn.Module,
        prediction: nn.Module | None = None,
        support_set: SupportSet | None = None,
        *,
        temperature: float = 0.1,
        transposed_term: bool = False,
    ) -> None:
        super().__init__()
        if (method.target == "neighbour") != (support_set is not None):
            raise InvalidRequest(
                f"The method {method.name!r} takes its target from the {method.target}, so it "
                f"{'needs a' if support_set is None else 'has no use for a'} support set."
            )
        self.method = method
        self.backbone = backbone
        self.projection = projection
        self.prediction = prediction if prediction is not None else nn.Identity()
        self.support_set = support_set
        self.temperature = temperature
        self.transposed_term = transposed_term

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        *,
        ids: Tensor | None = None,
        labels: Tensor | None = None,
        neighbour_share: float = 1.0,
    ) -> Step:
        """Both views through the encoder one after the other, so that batch norm sees one view at a time.

        Args:
            x1, x2: (B, 3, H, W) float, two views of the same B pictures.
            ids: (B,) int64 sample numbers.
            labels: (B,) int64 classes.
            neighbour_share: below 1 a deviation from the paper that short runs need: only this share of
                the batch, those with the most similar neighbours, take them as targets. The others
                take the view itself, as eq. 2 does, with gradient through both sides.
        """
        z1, z2 = self.projection(self.backbone(x1)), self.projection(self.backbone(x2))  # (B, D)
        p1, p2 = self.prediction(z1), self.prediction(z2)  # (B, D)
        if self.support_set is None:
            targets1, targets2 = (z1.detach(), z2.detach()) if self.method.stop_gradient else (z1, z2)
            neighbours, took = None, torch.zeros((), device=z1.device)
        else:
            neighbours = self.support_set.lookup(z1, ids, labels)
            targets1 = self._targets(z1, neighbours, neighbour_share)
            targets2 = self._targets(z2, self.support_set.lookup(z2, ids, labels), neighbour_share)
            took = torch.full((), self._count(len(z1), neighbour_share) / len(z1), device=z1.device)
        loss = self._objective(targets1, p2) / 2 + self._objective(targets2, p1) / 2
        return Step(loss, z1.detach(), neighbours, took)

    def enqueue(self, step: Step, ids: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Puts the step's first view into the support set; call it after the optimizer's step."""
        if self.support_set is not None:
            self.support_set.enqueue(step.z1, ids, labels)

    @staticmethod
    def _count(batch: int, share: float) -> int:
        return round(batch * share)

    def _targets(self, z: Tensor, found: Neighbours, share: float) -> Tensor:
        """The neighbours of the most similar `share` of the batch, the views of the rest: (B, D) float32."""
        count = self._count(len(z), share)
        if count == len(z):
            return found.embeddings
        takes = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        takes[found.similarity.topk(count).indices] = True
        return torch.where(takes[:, None], found.embeddings, z.float())

    def _objective(self, targets: Tensor, predictions: Tensor) -> Tensor:
        return info_nce(targets, predictions, self.temperature, transposed_term=self.transposed_term)
