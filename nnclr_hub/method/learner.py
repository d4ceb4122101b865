"""One training step of a method: views in, a loss out (Algorithms 1 and 2).

learner = Learner(backbone, METHODS["nnclr"], projection, prediction, SupportSet(8192, 256))
step = learner([x1, x2], ids=ids)
step.loss.backward()
optimizer.step()
learner.enqueue(step, ids=ids)
learner.update_momentum_encoder(momentum_at(progress))  # does nothing for methods without a momentum encoder
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.assignment import Prototypes
from nnclr_hub.method.gather import ALONE, Gather
from nnclr_hub.method.large_batch import in_chunks
from nnclr_hub.method.losses import LOSSES, replaced
from nnclr_hub.method.methods import Method
from nnclr_hub.method.momentum import MomentumEncoder
from nnclr_hub.method.multicrop import encode_views
from nnclr_hub.method.neighbors import Neighbors
from nnclr_hub.method.objectives import Objective
from nnclr_hub.method.support_set import SupportSet
from nnclr_hub.method.targets import TARGETS, Batch

LARGE = 2  # number of large views; targets and neighbors come from these


@dataclass(frozen=True)
class Step:
    """Result of the forward pass of one step.

    loss: scalar float32.
    z1, z2: (B, D) projections of the large views by the target encoder, without gradient: what Q takes.
    online: (B, D) projections of the first view by the trained encoder, without gradient.
    neighbors: lookup result of the first view; None for methods whose target is not a row of Q or a mean of rows.
    neighbor_share: share of the batch whose target is the neighbor, a scalar in [0, 1].
    """

    loss: Tensor
    z1: Tensor
    z2: Tensor
    online: Tensor
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
        teacher: (N, D) float, the vectors of a frozen encoder for the samples 0 to N - 1; required by the methods with
            a teacher, rejected by the others. It is not a part of the state.
        gather: collects tensors over the ranks of a distributed run.

    Raises:
        InvalidRequest: a support set or teacher is missing, or the method does not use one; an objective for a method
            whose targets have another shape; or a transposed term without negatives of the batch.
    """

    teacher: Tensor | None

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
        teacher: Tensor | None = None,
        gather: Gather = ALONE,
    ) -> None:
        super().__init__()
        for known, name in ((TARGETS, method.target), (LOSSES, method.objective)):
            if name not in known:
                raise InvalidRequest(f"The method {method.name!r} names {name!r}; known are {', '.join(known)}.")
        loss = LOSSES[method.objective]
        if method.uses_support_set != (support_set is not None):
            needs = "needs a support set" if support_set is None else "does not use a support set: leave it out"
            raise InvalidRequest(
                f"The method {method.name!r} {needs} (its target: {method.target}, its objective: {method.objective})."
            )
        if (method.target_encoder == "teacher") != (teacher is not None):
            needs = "needs the vectors of a teacher" if teacher is None else "does not use a teacher: leave it out"
            raise InvalidRequest(f"The method {method.name!r} {needs}.")
        if (method.prediction == "prototypes") != isinstance(prediction, Prototypes):
            raise InvalidRequest(
                "Methods with the head 'prototypes' need Prototypes as their prediction head, and others must not have "
                f"them; {method.name!r} has the head {method.prediction!r}."
            )
        if transposed_term and not (loss.takes_objective and loss.has_negatives):
            raise InvalidRequest(f"transposed_term needs negatives of the batch; {method.name!r} does not have them.")
        if objective is not None and not loss.takes_objective:
            raise InvalidRequest(
                f"The objective of the method {method.name!r} cannot be replaced, because it takes more than one "
                "target vector per image; choose another method, such as nnclr."
            )
        self.method = method
        self.loss = loss if objective is None else replaced(objective)
        self.objective, self.has_negatives = objective, loss.has_negatives
        self.backbone = backbone
        self.projection = projection if projection is not None else nn.Identity()
        self.prediction = prediction if prediction is not None else nn.Identity()
        self.support_set = support_set
        self.momentum = MomentumEncoder(self.online) if method.target_encoder == "momentum" else None
        self.register_buffer("teacher", teacher, persistent=False)
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
            ids: (B,) int64 sample numbers; required with a teacher.
            labels: (B,) int64 classes.
            neighbor_share: share of the batch, those with the most similar neighbors, that uses neighbors as targets.
                Below 1 this deviates from the paper; short runs need it. The rest uses the view itself: with gradient
                through both sides for InfoNCE (eq. 2), without gradient for the negative cosine (SimSiam). A scalar
                tensor on the device of the views gives the same operations for any share, as a CUDA graph needs.
        """
        z = encode_views(lambda x: self.projection(in_chunks(self.backbone, x, self.chunk)), views, LARGE)  # (B, D)
        p = encode_views(self.prediction, z, LARGE)  # (B, D)
        own = z[:LARGE]
        if self.momentum is not None or self.teacher is not None:
            own = [self.project(x, ids) for x in views[:LARGE]]
        batch = Batch(own, p, ids, labels, neighbor_share)
        targets = TARGETS[self.method.target](self, batch)
        loss = self.method.loss_scale * self.loss.compute(self, batch, targets)
        share = torch.zeros((), device=z[0].device) if targets.share is None else targets.share
        found = targets.found[0] if targets.found else None
        return Step(loss, own[0].detach(), own[1].detach(), z[0].detach(), found, share)

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
        return {} if self.loss.chance is None else {"chance": self.loss.chance(self, batch)}

    def update_momentum_encoder(self, t: float) -> None:
        """Set f_m = t f_m + (1 - t) f; does nothing for methods without a momentum encoder."""
        if self.momentum is not None:
            self.momentum.update(self.online, t)

    @torch.no_grad()
    def project(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Return projections as the support set holds them, (B, D): of views (B, 3, H, W), or the teacher's of `ids`.

        Raises:
            InvalidRequest: a teacher without the numbers of the samples.
        """
        if self.teacher is not None:
            if ids is None:
                raise InvalidRequest("The vectors of a teacher are those of samples; pass ids.")
            return self.teacher[ids]
        backbone, projection = self.target
        return projection(in_chunks(backbone, x, self.chunk))


# the learners that a recipe can name; each takes the arguments of Learner. Plug-ins add theirs
LEARNERS: dict[str, Callable[..., Learner]] = {"learner": Learner}
