"""One training step of a method: views in, a loss out (Algorithms 1 and 2).

learner = Learner(backbone, METHODS["nnclr"], projection, prediction, SupportSet(8192, 256))
step = learner([x1, x2], ids=ids)
step.loss.backward()
optimizer.step()
learner.enqueue(step, ids=ids)
learner.update_momentum_encoder(momentum_at(progress))  # does nothing for methods without a momentum encoder

Each function of `TARGETS`, and each entry of `LOSSES`, is a cell of METHODS. Plug-ins add theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.gather import ALONE, Gather
from nnclr_hub.method.large_batch import in_chunks
from nnclr_hub.method.methods import Method
from nnclr_hub.method.momentum import MomentumEncoder
from nnclr_hub.method.neighbors import Neighbors
from nnclr_hub.method.objectives import (
    Objective,
    Prototypes,
    explained_share,
    info_nce,
    lejepa_loss,
    mean_shift,
    negative_cosine,
    other_group,
    queue_info_nce,
    random_directions,
    relation_loss,
    sinkhorn,
    swapped_prediction,
)
from nnclr_hub.method.support_set import SupportSet

LARGE = 2  # number of large views; targets and neighbors come from these
DIRECTIONS = 256  # random directions of SIGReg in a step


# ---- targets: what predictions are compared with


@dataclass(frozen=True)
class Batch:
    """What a target may depend on.

    own: (B, D) projections of the two large views by the target encoder.
    p: (B, D) predictions of all views.
    ids: (B,) int64 sample numbers, or None.
    labels: (B,) int64 classes, or None.
    groups: (B,) int64, what the vectors forget, -1 where unknown; or None.
    neighbor_share: see `Learner.forward`.
    """

    own: Sequence[Tensor]
    p: Sequence[Tensor]
    ids: Tensor | None = None
    labels: Tensor | None = None
    groups: Tensor | None = None
    neighbor_share: float | Tensor = 1.0


@dataclass(frozen=True)
class Targets:
    """The targets of a batch.

    of: a tensor for each large view; most losses need (B, D).
    found: lookup results of the large views; empty if no target is a row of Q or a mean of rows.
    share: share of the batch whose target is the neighbor, a scalar in [0, 1]; None: 0.
    groups: (B,) int64 for each large view, the group of what its target is; None: the image's own.
    """

    of: Sequence[Tensor]
    found: Sequence[Neighbors] = ()
    share: Tensor | None = None
    groups: Sequence[Tensor] | None = None


def view(learner: Learner, batch: Batch) -> Targets:
    """Return the view itself, which the predictions of the other views must match (eq. 2)."""
    return Targets([z.detach() for z in batch.own] if learner.method.stop_gradient else batch.own)


def neighbor(learner: Learner, batch: Batch) -> Targets:
    """Return NN(z, Q) of each large view (eqs. 3 and 4), for the most similar `neighbor_share` of the batch."""
    assert learner.support_set is not None
    views = len(batch.own)
    ids, labels = (None if one is None else one.repeat(views) for one in (batch.ids, batch.labels))
    # all views in one product, which reads Q once
    found = learner.support_set.lookup(torch.cat(list(batch.own)), ids, labels).split(views)
    used = [_uses_neighbor(learner, nn, batch.neighbor_share) for nn in found]
    own = batch.own if learner.has_negatives else [z.detach() for z in batch.own]  # else both sides' gradient collapses
    pairs = zip(own, found, used, strict=True)
    of = [nn.embeddings if use is None else torch.where(use[:, None], nn.embeddings, z.float()) for z, nn, use in pairs]
    count = _count(len(batch.own[0]), batch.neighbor_share, batch.own[0].device)
    share = (count / len(batch.own[0])).float()
    return Targets(of, found, share, _groups_of(learner, batch, found, used))


def nearest_mean(learner: Learner, batch: Batch) -> Targets:
    """Return each large view's own embedding with its nearest rows of Q, (B, k, D) (mean shift)."""
    assert learner.support_set is not None
    k = learner.mean_of
    found = [learner.support_set.nearest_k(z, k, batch.ids) for z in batch.own]
    first = [F.normalize(z.detach().float())[:, None] for z in batch.own]
    of = [torch.cat([own, rows], dim=1)[:, :k] for own, (rows, _) in zip(first, found, strict=True)]
    return Targets(of, [nearest for _, nearest in found])


def assignment(learner: Learner, batch: Batch) -> Targets:
    """Return the assignment of each large view to prototypes, (B, K) (SwAV)."""
    return Targets([sinkhorn(p, learner.target_temperature, gather=learner.gather) for p in batch.p[: len(batch.own)]])


def _uses_neighbor(learner: Learner, found: Neighbors, share: float | Tensor) -> Tensor | None:
    """Return whose target is the neighbor, the most similar `share` of the batch: (B,) bool; None for all."""
    assert learner.support_set is not None
    guided = learner.support_set.guided
    if isinstance(share, float | int) and share == 1 and not guided:
        return None
    # the most similar of the whole batch, so the choice does not depend on the number of ranks
    order = learner.gather(found.similarity).argsort(descending=True, stable=True)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    own_places = place[learner.gather.rank * len(found.index) :][: len(found.index)]
    use_neighbor = own_places < _count(len(order), share, order.device)
    # without a row that metadata allows, the view itself is the target
    return use_neighbor & found.similarity.isfinite() if guided else use_neighbor


def _groups_of(
    learner: Learner, batch: Batch, found: Sequence[Neighbors], used: Sequence[Tensor | None]
) -> list[Tensor] | None:
    """Return the group of the targets of each large view: the neighbor's, or the image's own."""
    if batch.groups is None or learner.groups is None or learner.support_set is None:
        return None
    ids = [learner.support_set.ids[nn.index] for nn in found]  # -1 for an initial random row
    known = [one >= 0 if use is None else (one >= 0) & use for one, use in zip(ids, used, strict=True)]
    pairs = zip(known, ids, strict=True)
    return [torch.where(use, learner.groups[one.clamp(min=0)], batch.groups) for use, one in pairs]


def _count(batch: int, share: float | Tensor, device: torch.device) -> Tensor:
    """Return the number of images with a neighbor as target, a scalar tensor; half is rounded to even."""
    return (torch.as_tensor(share, dtype=torch.float64).to(device, non_blocking=True) * batch).round()


TARGETS: dict[str, Callable[[Learner, Batch], Targets]] = {
    "view": view,
    "neighbor": neighbor,
    "nearest_mean": nearest_mean,
    "assignment": assignment,
}


# ---- losses: how they are compared


@dataclass(frozen=True)
class Loss:
    """A loss of a batch, and what a learner has to know about it.

    compute: (learner, batch, targets) -> scalar.
    has_negatives: whether it keeps representations apart by itself, so that a target may pass a gradient.
    takes_objective: whether `Learner(objective=)` may replace it: one (B, D) target for each image, no rows of Q.
    chance: (learner, B) -> loss of a network that cannot distinguish the images of a batch; None: no such value.
    """

    compute: Callable[[Learner, Batch, Targets], Tensor]
    has_negatives: bool = True
    takes_objective: bool = False
    chance: Callable[[Learner, int], float] | None = None


def replaced(objective: Objective) -> Loss:
    """Return the loss of an objective of the user."""

    def compare(learner: Learner, target: Tensor, predictions: Tensor) -> Tensor:
        loss = objective(target, predictions, learner.temperature, gather=learner.gather)
        if not isinstance(loss, Tensor) or loss.ndim or not loss.is_floating_point():
            raise InvalidRequest(f"The objective must return a scalar tensor, got {getattr(loss, 'shape', loss)}.")
        return loss

    return Loss(_pairs(compare))


def _over_pairs(compare: Callable[[int, Tensor], Tensor], targets: int, predictions: Sequence[Tensor]) -> Tensor:
    """Return the mean of compare(i, the predictions (V, B, D) of all views but i) over the large views i.

    With two views this is Algorithm 1: L(NN1, p2) / 2 + L(NN2, p1) / 2. With small views (multi-crop, section 4.2) each
    target is compared with the predictions of every other view, all in one call, and the mean is over those pairs.
    """
    others = [torch.stack([p for j, p in enumerate(predictions) if j != i]) for i in range(targets)]
    return torch.stack([compare(i, one) for i, one in enumerate(others)]).mean()


def _pairs(compare: Callable[[Learner, Tensor, Tensor], Tensor]) -> Callable[[Learner, Batch, Targets], Tensor]:
    return lambda learner, batch, targets: _over_pairs(
        lambda i, others: compare(learner, targets.of[i], others), len(targets.of), batch.p
    )


def _among_rows_of_q(
    compare: Callable[[Learner, Tensor, Tensor, Tensor | None], Tensor],
) -> Callable[[Learner, Batch, Targets], Tensor]:
    """Return a loss that compares targets and predictions with the rows of Q, as negatives or as a distribution.

    Three kinds of rows are left out: an image's own older embeddings, NN(z, Q) if it is the target, and rows of other
    groups.
    """

    def compute(learner: Learner, batch: Batch, targets: Targets) -> Tensor:
        q = learner.support_set
        assert q is not None
        of_image = q.own_rows(batch.ids)  # (B, M) bool; None: no row
        if batch.groups is not None and learner.groups is not None:
            of_rows = learner.groups[q.ids.clamp(min=0)].where(q.ids >= 0, -1)  # initial random rows have no group
            other = other_group(of_rows, batch.groups[:, None])
            of_image = other if of_image is None else of_image | other
        left_out: list[Tensor | None] = [of_image] * len(targets.of)  # for each large view
        if targets.found:
            rows = torch.arange(q.size, device=q.ids.device)
            is_target = [nn.index[:, None] == rows for nn in targets.found]
            left_out = [one if of_image is None else one | of_image for one in is_target]
        return _over_pairs(
            lambda i, others: compare(learner, targets.of[i], others, left_out[i]), len(targets.of), batch.p
        )

    return compute


def _info_nce(learner: Learner, batch: Batch, targets: Targets) -> Tensor:
    def compare(i: int, others: Tensor) -> Tensor:
        of = batch.groups if targets.groups is None else targets.groups[i]
        return info_nce(
            targets.of[i],
            others,
            learner.temperature,
            transposed_term=learner.transposed_term,
            anchor=learner.method.anchor,
            groups=None if of is None or batch.groups is None else (of, batch.groups),
            gather=learner.gather,
        )

    return _over_pairs(compare, len(targets.of), batch.p)


def _queue_info_nce(learner: Learner, target: Tensor, predictions: Tensor, left_out: Tensor | None) -> Tensor:
    return queue_info_nce(target, predictions, _queue(learner), learner.temperature, left_out)


def _relation(learner: Learner, target: Tensor, predictions: Tensor, left_out: Tensor | None) -> Tensor:
    taus = learner.temperature, learner.target_temperature
    return relation_loss(target, predictions, _queue(learner), *taus, learner.method.positive_weight, left_out)


def _lejepa(learner: Learner, batch: Batch, targets: Targets) -> Tensor:
    stacked = torch.stack(list(batch.p))  # (V, B, D)
    directions = random_directions(stacked.shape[2], DIRECTIONS, stacked.device)
    return lejepa_loss(stacked, directions, learner.sigreg_weight, len(targets.of), learner.gather)


def _info_nce_at_chance(learner: Learner, candidates: int) -> float:
    """Return the mean InfoNCE of equal similarities: the logarithm of the number of candidates.

    With groups, the candidates of an image are those of its group and of unknown group.
    """
    if learner.groups is None:
        return math.log(candidates)
    share = (learner.groups + 1).bincount() / len(learner.groups)  # the first is that of unknown groups
    return math.log(candidates) + float(torch.xlogy(share[1:], share[1:] + share[0]).sum())


def _queue(learner: Learner) -> Tensor:
    assert learner.support_set is not None
    return learner.support_set.queue


LOSSES: dict[str, Loss] = {
    "info_nce": Loss(_info_nce, takes_objective=True, chance=_info_nce_at_chance),
    "queue_info_nce": Loss(
        _among_rows_of_q(_queue_info_nce),
        chance=lambda learner, _: _info_nce_at_chance(learner, 1 + len(_queue(learner))),
    ),
    "negative_cosine": Loss(
        _pairs(lambda _, target, predictions: negative_cosine(target, predictions)),
        has_negatives=False,
        takes_objective=True,
    ),
    "mean_shift": Loss(_pairs(lambda _, target, predictions: mean_shift(target, predictions)), has_negatives=False),
    "relation": Loss(_among_rows_of_q(_relation)),
    "swapped_prediction": Loss(
        _pairs(lambda learner, target, predictions: swapped_prediction(target, predictions, learner.temperature)),
        chance=lambda learner, _: math.log(len(learner.prediction.weight)),  # type: ignore[arg-type],
    ),
    "lejepa": Loss(_lejepa),
}


# ---- the learner


@dataclass(frozen=True)
class Step:
    """Result of the forward pass of one step.

    loss: scalar float32.
    z1, z2: (B, D) projections of the large views by the target encoder, without gradient: what Q takes.
    online: (B, D) projections of the first view by the trained encoder, without gradient.
    neighbors: lookup result of the first view; None for methods whose target is not a row of Q or a mean of rows.
    neighbor_share: share of the batch whose target is the neighbor, a scalar in [0, 1].
    forgetting: the part of the loss that makes vectors forget their group, a scalar; None without groups.
    """

    loss: Tensor
    z1: Tensor
    z2: Tensor
    online: Tensor
    neighbors: Neighbors | None
    neighbor_share: Tensor
    forgetting: Tensor | None = None


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
        target_temperature: for a distribution over Q, see `relation_loss`, and for an assignment, see `sinkhorn`.
        transposed_term: see `info_nce`; not for negatives from Q.
        mean_of: k of a target that is a mean of neighbors; the target's own embedding is the first of them.
        sigreg_weight: lambda of `lejepa_loss`.
        chunk: images per pass of the backbone, see `in_chunks`; 0 for the whole batch.
        both_views: enqueue both large views instead of only the first.
        teacher: (N, D) float, the vectors of a frozen encoder for the samples 0 to N - 1; required by the methods with
            a teacher, rejected by the others. It is not a part of the state.
        groups: (N,) int64, the group of each sample, which vectors forget, such as the scanner of an image; -1 where
            unknown. Negatives come from the target's own group, because those of others reward a network that tells
            groups apart. An unknown group restricts nothing. It is not a part of the state.
        forget: weight of `explained_share` of the groups in the loss, from the backbone's output.
        gather: collects tensors over the ranks of a distributed run.

    Raises:
        InvalidRequest: a support set or teacher is missing, or the method does not use one; an objective for a method
            whose targets have another shape; or a transposed term without negatives of the batch.
    """

    teacher: Tensor | None
    groups: Tensor | None

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
        groups: Tensor | None = None,
        forget: float = 5.0,
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
        self.register_buffer("groups", groups, persistent=False)
        self.forget = forget
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
            ids: (B,) int64 sample numbers; required with a teacher or groups.
            labels: (B,) int64 classes.
            neighbor_share: share of the batch, those with the most similar neighbors, that uses neighbors as targets.
                Below 1 this deviates from the paper; short runs need it. The rest uses the view itself: with gradient
                through both sides for InfoNCE (eq. 2), without gradient for the negative cosine (SimSiam). A scalar
                tensor on the device of the views gives the same operations for any share, as a CUDA graph needs.
        """
        if self.groups is not None and ids is None:
            raise InvalidRequest("The groups are those of samples; pass ids.")
        outputs: list[Tensor] = []  # (B, F) of the backbone, the large views first

        def encode(x: Tensor) -> Tensor:
            outputs.append(in_chunks(self.backbone, x, self.chunk))
            return self.projection(outputs[-1])

        z = _encode(encode, views)  # (B, D)
        p = _encode(self.prediction, z)  # (B, D)
        own = z[:LARGE]
        if self.momentum is not None or self.teacher is not None:
            own = [self.project(x, ids) for x in views[:LARGE]]
        groups, forgetting = None if self.groups is None else self.groups[ids], None
        batch = Batch(own, p, ids, labels, groups, neighbor_share)
        targets = TARGETS[self.method.target](self, batch)
        loss = self.method.loss_scale * self.loss.compute(self, batch, targets)
        if groups is not None:
            forgetting = self.forget * explained_share(torch.stack(outputs[:LARGE], 1), groups, self.gather)
            loss = loss + forgetting
        share = torch.zeros((), device=z[0].device) if targets.share is None else targets.share
        found = targets.found[0] if targets.found else None
        return Step(loss, own[0].detach(), own[1].detach(), z[0].detach(), found, share, forgetting)

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


def _encode(network: Callable[[Tensor], Tensor], views: Sequence[Tensor]) -> list[Tensor]:
    """Return the output (B, D) of each view, in order: of large views one at a time, of small ones together by size.

    Batch norm then sees each large view separately, as without small views.
    """
    encoded = {number: network(x) for number, x in enumerate(views[:LARGE])}
    small: dict[torch.Size, list[int]] = {}
    for number, x in enumerate(views[LARGE:], LARGE):
        small.setdefault(x.shape, []).append(number)
    for numbers in small.values():
        together = network(torch.cat([views[number] for number in numbers]))
        encoded |= dict(zip(numbers, together.chunk(len(numbers)), strict=True))
    return [encoded[number] for number in range(len(views))]


# the learners that a recipe can name; each takes the arguments of Learner. Plug-ins add theirs
LEARNERS: dict[str, Callable[..., Learner]] = {"learner": Learner}
