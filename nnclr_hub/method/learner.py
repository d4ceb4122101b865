"""One training step of a method: views in, a loss out (Algorithms 1 and 2).

learner = Learner(backbone, METHODS["nnclr"], projection, prediction, SupportSet(8192, 256))
step = learner([x1, x2], ids=ids)
step.loss.backward()
optimizer.step()
learner.enqueue(step, ids=ids)
learner.update_momentum_encoder(momentum_at(progress))  # does nothing for methods without a momentum encoder
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.assignment import Prototypes, sinkhorn, swapped_prediction
from nnclr_hub.method.gather import ALONE, Gather
from nnclr_hub.method.large_batch import in_chunks
from nnclr_hub.method.lejepa import lejepa_loss, random_directions
from nnclr_hub.method.methods import Method
from nnclr_hub.method.momentum import MomentumEncoder
from nnclr_hub.method.multicrop import encode_views, loss_over_pairs
from nnclr_hub.method.neighbors import Neighbors
from nnclr_hub.method.objectives import Objective, info_nce, mean_shift, negative_cosine, queue_info_nce
from nnclr_hub.method.relation import relation_loss
from nnclr_hub.method.support_set import SupportSet

DIRECTIONS = 256  # random directions of SIGReg in a step
LARGE = 2  # number of large views; targets and neighbors come from these


@dataclass(frozen=True)
class Step:
    """Result of the forward pass of one step.

    loss: scalar float32.
    z1, z2: (B, D) projections of the large views, without gradient, from the momentum encoder if there is one.
    neighbors: lookup result of the first view; None for methods whose target is not a row of Q or a mean of rows.
    neighbor_share: share of the batch whose target is the neighbor, a scalar in [0, 1].
    """

    loss: Tensor
    z1: Tensor
    z2: Tensor
    neighbors: Neighbors | None
    neighbor_share: Tensor


class Learner(nn.Module):
    """Encoder f = projection(backbone), prediction head g and support set Q, combined by one method.

    Args:
        backbone: (B, 3, H, W) -> (B, F).
        method: a row of METHODS.
        projection: (B, F) -> (B, D); None for z = the backbone's output.
        prediction: (B, D) -> (B, D); None for p = z.
        support_set: required by methods whose targets or negatives come from Q, rejected by the others.
        objective: replaces the method's, for targets of shape (B, D) and no negatives from Q.
        temperature: tau of the InfoNCE loss.
        target_temperature: of a distribution over Q, see `relation_loss`, and of an assignment, see `sinkhorn`.
        transposed_term: see `info_nce`; not for negatives from Q.
        mean_of: k of a target that is a mean of neighbors; the target's own embedding is the first of them.
        sigreg_weight: lambda of `lejepa_loss`.
        chunk: images per pass of the backbone, see `in_chunks`; 0 for the whole batch.
        both_views: enqueue both large views instead of only the first.
        gather: collects tensors over the ranks of a distributed run.

    Raises:
        InvalidRequest: the support set is missing, or the method does not use one; an objective for a method whose
            targets have another shape; or a transposed term without negatives of the batch.
    """

    def __init__(
        self,
        backbone: nn.Module,
        method: Method,
        projection: nn.Module | None = None,
        prediction: nn.Module | None = None,
        support_set: SupportSet | None = None,
        *,
        objective: Objective | None = None,
        temperature: float = 0.1,
        target_temperature: float = 0.05,
        transposed_term: bool = False,
        mean_of: int = 5,
        sigreg_weight: float = 0.02,
        chunk: int = 0,
        both_views: bool = False,
        gather: Gather = ALONE,
    ) -> None:
        super().__init__()
        if method.uses_support_set != (support_set is not None):
            needs = "needs a support set" if support_set is None else "does not use a support set: leave it out"
            raise InvalidRequest(
                f"The method {method.name!r} {needs} (its target: {method.target}, its negatives: {method.negatives})."
            )
        if (method.target == "assignment") != isinstance(prediction, Prototypes):
            raise InvalidRequest(
                "Methods with target 'assignment' need Prototypes as their prediction head, and other methods must not "
                f"have them; {method.name!r} has the target {method.target!r}."
            )
        if transposed_term and method.negatives == "queue":
            raise InvalidRequest(f"transposed_term needs negatives of the batch; {method.name!r} takes them from Q.")
        replaceable = method.objective in ("info_nce", "negative_cosine") and method.negatives != "queue"
        if objective is not None and not replaceable:
            raise InvalidRequest(
                f"The objective of the method {method.name!r} cannot be replaced, because it takes more than one "
                "target vector per image; choose another method, such as nnclr."
            )
        self.method = method
        self.objective = objective
        self.backbone = backbone
        self.projection = projection if projection is not None else nn.Identity()
        self.prediction = prediction if prediction is not None else nn.Identity()
        self.support_set = support_set
        self.momentum = MomentumEncoder(self.online) if method.target_encoder == "momentum" else None
        self.temperature = temperature
        self.target_temperature = target_temperature
        self.transposed_term = transposed_term
        self.mean_of = mean_of
        self.sigreg_weight = sigreg_weight
        self.chunk = chunk
        self.both_views = both_views
        self.gather = gather

    @property
    def online(self) -> nn.Sequential:
        """Return f: the trained backbone and its projection."""
        return nn.Sequential(self.backbone, self.projection)

    @property
    def target(self) -> nn.Sequential:
        """Return the network whose projections the support set holds: f_m if there is one, else f."""
        return self.online if self.momentum is None else self.momentum.encoder  # type: ignore[return-value]

    def forward(
        self,
        views: Sequence[Tensor],
        *,
        ids: Tensor | None = None,
        labels: Tensor | None = None,
        neighbor_share: float | Tensor = 1.0,
    ) -> Step:
        """Compute the loss. Large views pass the encoder one at a time, so batch norm sees one view at a time.

        Args:
            views: (B, 3, H, W) float each, of the same B images: two large ones first, then any small ones.
            ids: (B,) int64 sample numbers.
            labels: (B,) int64 classes.
            neighbor_share: share of the batch, those with the most similar neighbors, that uses neighbors as targets.
                Below 1 this deviates from the paper; short runs need it. The rest uses the view itself: with gradient
                through both sides for InfoNCE (eq. 2), without gradient for the negative cosine (SimSiam). A scalar
                tensor on the device of the views gives the same operations for any share, as a CUDA graph needs.
        """
        z = encode_views(lambda x: self.projection(in_chunks(self.backbone, x, self.chunk)), views, LARGE)  # (B, D)
        p = encode_views(self.prediction, z, LARGE)  # (B, D)
        own = [self._project(self.target, x) for x in views[:LARGE]] if self.momentum is not None else z[:LARGE]
        neighbors, share = None, torch.zeros((), device=z[0].device)
        found: Sequence[Neighbors] = ()
        if self.method.target == "neighbor":
            assert self.support_set is not None
            found = [self.support_set.lookup(one, ids, labels) for one in own]
            targets = [self._targets(one, nn, neighbor_share) for one, nn in zip(own, found, strict=True)]
            neighbors = found[0]
            share = (self._count(len(z[0]), neighbor_share, z[0].device) / len(z[0])).float()
        elif self.method.target == "neighbors":
            targets, neighbors = self._mean_shift_targets(own, ids)
        elif self.method.target == "assignment":
            targets = [sinkhorn(one, self.target_temperature, gather=self.gather) for one in p[:LARGE]]
        else:
            targets = [one.detach() for one in own] if self.method.stop_gradient else own
        if self.method.objective == "lejepa":
            stacked = torch.stack(list(p))  # (V, B, D)
            directions = random_directions(stacked.shape[2], DIRECTIONS, stacked.device)
            loss = lejepa_loss(stacked, directions, self.sigreg_weight, LARGE, self.gather)
            return Step(loss, own[0].detach(), own[1].detach(), None, share)
        left_out = self._left_out(ids, found)
        loss = self.method.loss_scale * loss_over_pairs(self._objective, list(zip(targets, left_out, strict=True)), p)
        return Step(loss, own[0].detach(), own[1].detach(), neighbors, share)

    def enqueue(self, step: Step, ids: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Add the step's first view (or both) to the support set. Call it after the optimizer's step."""
        if self.support_set is None:
            return
        ids, labels = (None if one is None else self.gather(one) for one in (ids, labels))
        for z in (step.z1, step.z2) if self.both_views else (step.z1,):
            self.support_set.enqueue(self.gather(z), ids, labels)

    def chance_loss(self, batch: int) -> dict[str, float]:
        """Return {"chance": loss of a network that cannot distinguish the images of a batch}.

        The dictionary is empty for objectives without such a reference value.
        """
        if self.objective is not None:
            return {}
        if self.method.objective == "info_nce":
            queue = self.support_set if self.method.negatives == "queue" else None
            return {"chance": math.log(batch if queue is None else 1 + queue.size)}
        if isinstance(self.prediction, Prototypes):
            return {"chance": math.log(len(self.prediction.weight))}
        return {}

    def update_momentum_encoder(self, t: float) -> None:
        """Set f_m = t f_m + (1 - t) f; does nothing for methods without a momentum encoder."""
        if self.momentum is not None:
            self.momentum.update(self.online, t)

    @torch.no_grad()
    def project(self, x: Tensor) -> Tensor:
        """Return projections as the support set holds them: (B, 3, H, W) -> (B, D)."""
        return self._project(self.target, x)

    def _project(self, encoder: nn.Sequential, x: Tensor) -> Tensor:
        backbone, projection = encoder
        with torch.no_grad():
            return projection(in_chunks(backbone, x, self.chunk))

    @staticmethod
    def _count(batch: int, share: float | Tensor, device: torch.device) -> Tensor:
        """Return the number of images with a neighbor as target, a scalar tensor; half is rounded to even."""
        return (torch.as_tensor(share, dtype=torch.float64).to(device, non_blocking=True) * batch).round()

    def _targets(self, z: Tensor, found: Neighbors, share: float | Tensor) -> Tensor:
        """Return neighbors for the most similar `share` of the batch and views for the rest: (B, D) float32."""
        if isinstance(share, float | int) and share == 1:
            return found.embeddings
        # the most similar of the whole batch, so the choice does not depend on the number of ranks
        order = self.gather(found.similarity).argsort(descending=True, stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=z.device))
        own_places = place[self.gather.rank * len(z) :][: len(z)]
        use_neighbor = own_places < self._count(len(order), share, z.device)
        own = z.detach() if self.method.objective == "negative_cosine" else z  # else SimSiam without its stop-gradient
        return torch.where(use_neighbor[:, None], found.embeddings, own.float())

    def _mean_shift_targets(self, own: Sequence[Tensor], ids: Tensor | None) -> tuple[list[Tensor], Neighbors]:
        """Return each large view's own embedding with its nearest rows of Q, (B, k, D), and the first view's rows."""
        assert self.support_set is not None
        found = [self.support_set.nearest_k(one, self.mean_of, ids) for one in own]
        first = [F.normalize(one.detach().float())[:, None] for one in own]
        targets = [
            torch.cat([one, rows], dim=1)[:, : self.mean_of] for one, (rows, _) in zip(first, found, strict=True)
        ]
        return targets, found[0][1]

    def _left_out(self, ids: Tensor | None, found: Sequence[Neighbors]) -> list[Tensor | None]:
        """Return which rows of Q are not negatives of each large view: the images' own rows, and the neighbors.

        Args:
            ids: (B,) int64 sample numbers.
            found: neighbors of the large views; none for methods whose targets are others.

        Returns:
            (B, M) bool for each large view; None where no row is left out.
        """
        if self.method.negatives != "queue":
            return [None] * LARGE
        assert self.support_set is not None
        own = self.support_set.own_rows(ids)
        if not found:
            return [own] * LARGE
        places = torch.arange(self.support_set.size, device=found[0].index.device)
        taken = [one.index[:, None] == places for one in found]
        return [one if own is None else own | one for one in taken]

    def _objective(self, target: tuple[Tensor, Tensor | None], predictions: Tensor) -> Tensor:
        """Return the loss of the predictions of other views, given targets and the rows of Q that are not negatives."""
        method, (targets, left_out) = self.method, target
        if self.objective is not None:
            loss = self.objective(targets, predictions, self.temperature, gather=self.gather)
            if not isinstance(loss, Tensor) or loss.ndim or not loss.is_floating_point():
                raise InvalidRequest(f"The objective must return a scalar tensor, got {getattr(loss, 'shape', loss)}.")
            return loss
        if method.objective == "negative_cosine":
            return negative_cosine(targets, predictions)
        if method.objective == "mean_shift":
            return mean_shift(targets, predictions)
        if method.objective == "swapped_prediction":
            return swapped_prediction(targets, predictions, self.temperature)
        if method.objective == "relation":
            assert self.support_set is not None
            taus, weight = (self.temperature, self.target_temperature), method.positive_weight
            return relation_loss(targets, predictions, self.support_set.queue, *taus, weight, left_out)
        if method.negatives == "queue":
            assert self.support_set is not None
            return queue_info_nce(targets, predictions, self.support_set.queue, self.temperature, left_out)
        return info_nce(
            targets,
            predictions,
            self.temperature,
            transposed_term=self.transposed_term,
            anchor=method.anchor,
            gather=self.gather,
        )


# the learners that a recipe can name; each takes the arguments of Learner. Plug-ins add theirs
LEARNERS: dict[str, Callable[..., Learner]] = {"learner": Learner}
