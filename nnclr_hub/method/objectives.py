"""The losses: those of the paper, and those of the methods that it is compared with.

InfoNCE between targets and predictions (eqs. 2 and 3), among the rows of Q, negative cosine, and mean shift accept the
predictions of one view, or of several views stacked, and return the mean over the views.

- Targets that are a distribution over Q: the other views must have the same similarities to every row of Q. ReSSL
  (Zheng et al., NeurIPS 2021) is this relation alone, SCE (Denize et al., WACV 2023) mixes it with the positive.
- Targets that are an assignment to prototypes: SwAV (Caron et al., NeurIPS 2020), without its queue. The assignment of
  one view, balanced over the batch by Sinkhorn-Knopp, is what the scores of the other views must predict (eq. 2).
- LeJEPA (Balestriero and LeCun, arXiv:2511.08544): views agree, and SIGReg keeps embeddings from collapsing. Along
  random directions their distribution must be a standard normal one, by the Epps-Pulley test, which measures the
  distance between characteristic functions.

All compute in float32 even under autocast, and normalize their inputs, except rows of Q, neighbors of `mean_shift`, and
embeddings of LeJEPA.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.gather import ALONE, Gather

KNOTS = 17  # points at which SIGReg compares characteristic functions
LARGEST = 3.0  # the last of them; both functions are nearly zero beyond
RIDGE = 1.0  # of `explained_share`, relative to the mean variance of a dimension


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
    groups: tuple[Tensor, Tensor] | None = None,
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
        groups: (B,) int64 of the targets, and of the predictions, -1 where unknown. The negatives of a row are the
            columns of its group and the columns of unknown group. A row of unknown group has all columns as negatives.
            If the positive is of another group, a network that forgets groups has the lower loss. None: all columns.
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
        if groups is not None and anchor != "target":
            groups = groups[1], groups[0]
        loss = _cross_entropy(rows, columns, temperature, groups, gather)
        if transposed_term:
            groups = None if groups is None else (groups[1], groups[0])
            loss = (loss + _cross_entropy(columns, rows, temperature, groups, gather)) / 2
    return loss


def _cross_entropy(
    rows: Tensor, columns: Tensor, temperature: float, groups: tuple[Tensor, Tensor] | None, gather: Gather
) -> Tensor:
    everyone = gather.with_gradient(columns.transpose(0, -2)).transpose(0, -2)  # (..., world B, D)
    logits = rows @ everyone.mT / temperature  # (..., B, world B)
    own = torch.arange(rows.shape[-2], device=rows.device) + gather.rank * rows.shape[-2]
    if groups is not None:
        other = other_group(groups[0][:, None], gather(groups[1]))  # (B, world B)
        logits = logits.masked_fill(other.scatter(1, own[:, None], False), -torch.inf)
    return F.cross_entropy(logits.flatten(0, -2), own.expand(logits.shape[:-1]).flatten())


def other_group(one: Tensor, two: Tensor) -> Tensor:
    """Return where groups are known, and differ: bool."""
    return (one != two) & (one >= 0) & (two >= 0)


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
    """
    _require_pairs(neighbors[:, 0], predictions)
    return -(F.normalize(predictions.float(), dim=-1) * neighbors.float().mean(dim=1)).sum(dim=-1).mean()


def explained_share(vectors: Tensor, groups: Tensor, gather: Gather = ALONE) -> Tensor:
    """Measure which share of the variance of a group a ridge regression on vectors explains.

    No linear classifier finds a group that no linear regression predicts: both see only the distance of the means.
    The regression on each half of the images predicts the other half. On the images that it is fitted to, a regression
    predicts even random groups, the better the more dimensions the vectors have: to minimize that costs dimensions.

    Args:
        vectors: (B, V, F) float, of V views of each image; not necessarily normalized.
        groups: (B,) int64, -1 where unknown. An image of unknown group has no part in the regressions.
        gather: collects the batch over the ranks of a distributed run.

    Returns:
        The mean over both halves, a float32 scalar of at most 1; about 0 if nothing can be predicted.
    """
    with torch.autocast(vectors.device.type, enabled=False):
        x, groups = gather.with_gradient(F.normalize(vectors.float(), dim=-1)), gather(groups)
        halves = []
        for start in range(2):
            rows, of_rows = x[start::2].flatten(0, 1), groups[start::2].repeat_interleave(x.shape[1])  # (n, F), (n,)
            known = (of_rows >= 0)[:, None]  # the number of rows must not change from step to step, for a CUDA graph
            mean = (rows * known).sum(dim=0) / known.sum().clamp(min=1)
            halves.append(((rows - mean) * known, of_rows))
        return (_explained(*halves[0], *halves[1]) + _explained(*halves[1], *halves[0])) / 2


def _explained(x: Tensor, groups: Tensor, other: Tensor, other_groups: Tensor) -> Tensor:
    """Return the share of the variance of groups (m,) that the regression from (n, F) to (n,) explains on (m, F).

    Rows of unknown group are 0.
    """
    fitted, count = ((one >= 0).sum().clamp(min=1) for one in (groups, other_groups))
    covariance = x.T @ x / fitted  # (F, F)
    ridge = RIDGE * covariance.diagonal().mean().clamp(min=1e-8) * torch.eye(len(covariance), device=x.device)
    factor = torch.linalg.cholesky_ex(covariance + ridge)[0]  # without a check, which would make a GPU wait
    x, other = (torch.linalg.solve_triangular(factor, one.T, upper=False) for one in (x, other))  # (F, n), (F, m)
    # of one indicator for each group: the product of those of two images is whether their groups are equal
    explained = (other.T @ x / fitted * (other_groups[:, None] == groups)).sum()
    equal = (other_groups[:, None] == other_groups) & (other_groups >= 0)
    return explained / (count - equal.sum() / count).clamp(min=1)


def _require_pairs(targets: Tensor, predictions: Tensor) -> None:
    if targets.shape != predictions.shape[-2:]:
        raise InvalidRequest(
            f"Targets of shape {tuple(targets.shape)} do not match predictions of shape {tuple(predictions.shape)}; "
            "expected (B, D) for both, or (V, B, D) predictions of V views."
        )


# ---- a distribution over Q


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
        temperature: temperature of the prediction, above 0.
        target_temperature: of s, above 0 and at most `temperature`; a smaller value makes targets sharper than
            predictions.
        weight: share of the positive, 0 to 1.
        mask: (B, M) bool, true where a row of Q is an older embedding of the same image and is left out.

    Returns:
        The mean over batch and views, a float32 scalar.
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


# ---- an assignment to prototypes


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
        iterations: steps of the Sinkhorn-Knopp algorithm. Each scales the columns, then the rows.
        gather: collects the batch over the ranks of a distributed run.

    Returns:
        (B, K) float32, each row a distribution. Constant: no gradient passes.
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
        temperature: temperature of the softmax, above 0.

    Returns:
        The mean over batch and views, a float32 scalar.
    """
    if codes.shape != scores.shape[-2:] or not temperature > 0:
        raise InvalidRequest(
            f"Codes {tuple(codes.shape)} and scores {tuple(scores.shape)} at temperature {temperature}: expected "
            "(B, K) and (B, K) or (V, B, K), and a temperature above 0."
        )
    log_p = F.log_softmax(scores.float() / temperature, dim=-1)
    return -(codes * log_p).sum(dim=-1).mean()


# ---- LeJEPA


def random_directions(dim: int, count: int, device: torch.device | None = None) -> Tensor:
    """Sample `count` unit vectors from torch's global generator: (D, count) float32."""
    directions = torch.randn(dim, count, device=device)
    return directions / directions.norm(dim=0)


def sigreg(z: Tensor, directions: Tensor, gather: Gather = ALONE) -> Tensor:
    """Return the mean Epps-Pulley statistic of the embeddings along the directions (LeJEPA, section 4).

    The statistic of one direction is B times the integral over t of |phi(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2), where phi
    is the empirical characteristic function of the projected batch; the trapezoid rule has 17 knots on [0, 3], doubled
    because the integrand is even.

    Args:
        z: (..., B, D) float, not normalized; leading axes are views, tested separately.
        directions: (D, S) float unit columns.
        gather: collects the batch over the ranks of a distributed run.

    Returns:
        A float32 scalar, at least 0; 1.05 in expectation for a standard normal batch.
    """
    if z.shape[-1] != len(directions):
        raise InvalidRequest(
            f"Embeddings of length {z.shape[-1]} cannot be projected on directions of length {len(directions)}."
        )
    with torch.autocast(z.device.type, enabled=False):
        everyone = gather.with_gradient(z.float().transpose(0, -2)).transpose(0, -2)  # (..., world B, D)
        t = torch.linspace(0, LARGEST, KNOTS, device=z.device)
        gauss = (-t.square() / 2).exp()
        weights = torch.full_like(t, 2 * LARGEST / (KNOTS - 1))
        weights[0] /= 2
        weights[-1] /= 2
        angles = (everyone @ directions.float()).unsqueeze(-1) * t  # (..., B, S, knots)
        distance = (angles.cos().mean(dim=-3) - gauss).square() + angles.sin().mean(dim=-3).square()
        return (distance @ (weights * gauss)).mean() * everyone.shape[-2]


def lejepa_loss(z: Tensor, directions: Tensor, weight: float = 0.02, large: int = 2, gather: Gather = ALONE) -> Tensor:
    """Combine the prediction term and SIGReg: (1 - weight) * agreement + weight * sigreg (LeJEPA, eq. of section 5).

    Args:
        z: (V, B, D) float, embeddings of all views, the large ones first; not normalized.
        directions: (D, S) float unit columns, see `random_directions`.
        weight: lambda, 0 to 1.
        large: number of large views; every view must predict their mean.
        gather: collects the batch over the ranks of a distributed run.

    Returns:
        A float32 scalar.
    """
    if not 0 <= weight <= 1 or z.dim() != 3 or len(z) < large:
        raise InvalidRequest(
            f"lejepa_loss takes (V, B, D) embeddings of at least {large} views and a weight between 0 and 1, got "
            f"{tuple(z.shape)} and {weight}."
        )
    center = z[:large].float().mean(dim=0)  # (B, D)
    agreement = (z.float() - center).square().mean()
    return (1 - weight) * agreement + weight * sigreg(z, directions, gather)
