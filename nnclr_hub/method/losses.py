"""How predictions are compared with targets. Each entry of `LOSSES` is a cell of METHODS. Plug-ins add theirs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.assignment import swapped_prediction
from nnclr_hub.method.lejepa import lejepa_loss, random_directions
from nnclr_hub.method.multicrop import loss_over_pairs
from nnclr_hub.method.objectives import Objective, info_nce, mean_shift, negative_cosine, queue_info_nce
from nnclr_hub.method.relation import relation_loss
from nnclr_hub.method.targets import Batch, Parts, Targets

DIRECTIONS = 256  # random directions of SIGReg in a step


@dataclass(frozen=True)
class Loss:
    """A loss of a batch, and what a learner has to know about it.

    compute: (learner, batch, targets) -> scalar.
    has_negatives: whether it keeps representations apart by itself, so that a target may pass a gradient.
    takes_objective: whether `Learner(objective=)` may replace it: one (B, D) target for each image, no rows of Q.
    chance: (learner, B) -> loss of a network that cannot distinguish the images of a batch; None: no such value.
    """

    compute: Callable[[Parts, Batch, Targets], Tensor]
    has_negatives: bool = True
    takes_objective: bool = False
    chance: Callable[[Parts, int], float] | None = None


def replaced(objective: Objective) -> Loss:
    """Return the loss of an objective of the user."""

    def compare(learner: Parts, target: Tensor, predictions: Tensor) -> Tensor:
        loss = objective(target, predictions, learner.temperature, gather=learner.gather)
        if not isinstance(loss, Tensor) or loss.ndim or not loss.is_floating_point():
            raise InvalidRequest(f"The objective must return a scalar tensor, got {getattr(loss, 'shape', loss)}.")
        return loss

    return Loss(_pairs(compare))


def _pairs(compare: Callable[[Parts, Tensor, Tensor], Tensor]) -> Callable[[Parts, Batch, Targets], Tensor]:
    """Compare the target of each large view with the predictions (V, B, D) of all other views."""
    return lambda learner, batch, targets: loss_over_pairs(partial(compare, learner), targets.of, batch.p)


def _in_queue(
    compare: Callable[[Parts, Tensor, Tensor, Tensor | None], Tensor],
) -> Callable[[Parts, Batch, Targets], Tensor]:
    """Do the same next to the rows of Q but the images' own rows and their neighbors."""

    def compute(learner: Parts, batch: Batch, targets: Targets) -> Tensor:
        left_out = _left_out(learner, batch, targets)
        pairs = list(zip(targets.of, left_out, strict=True))
        return loss_over_pairs(
            lambda target, predictions: compare(learner, target[0], predictions, target[1]), pairs, batch.p
        )

    return compute


def _left_out(learner: Parts, batch: Batch, targets: Targets) -> list[Tensor | None]:
    """Return which rows of Q are not negatives of each large view, (B, M) bool; None where no row is left out."""
    assert learner.support_set is not None
    own = learner.support_set.own_rows(batch.ids)
    if not targets.found:
        return [own] * len(targets.of)
    places = torch.arange(learner.support_set.size, device=targets.found[0].index.device)
    taken = [found.index[:, None] == places for found in targets.found]
    return [rows if own is None else own | rows for rows in taken]


def _info_nce(learner: Parts, target: Tensor, predictions: Tensor) -> Tensor:
    return info_nce(
        target,
        predictions,
        learner.temperature,
        transposed_term=learner.transposed_term,
        anchor=learner.method.anchor,
        gather=learner.gather,
    )


def _queue_info_nce(learner: Parts, target: Tensor, predictions: Tensor, left_out: Tensor | None) -> Tensor:
    return queue_info_nce(target, predictions, _queue(learner), learner.temperature, left_out)


def _relation(learner: Parts, target: Tensor, predictions: Tensor, left_out: Tensor | None) -> Tensor:
    taus = learner.temperature, learner.target_temperature
    return relation_loss(target, predictions, _queue(learner), *taus, learner.method.positive_weight, left_out)


def _lejepa(learner: Parts, batch: Batch, targets: Targets) -> Tensor:
    stacked = torch.stack(list(batch.p))  # (V, B, D)
    directions = random_directions(stacked.shape[2], DIRECTIONS, stacked.device)
    return lejepa_loss(stacked, directions, learner.sigreg_weight, len(targets.of), learner.gather)


def _queue(learner: Parts) -> Tensor:
    assert learner.support_set is not None
    return learner.support_set.queue


LOSSES: dict[str, Loss] = {
    "info_nce": Loss(_pairs(_info_nce), takes_objective=True, chance=lambda _, batch: math.log(batch)),
    "queue_info_nce": Loss(_in_queue(_queue_info_nce), chance=lambda learner, _: math.log(1 + len(_queue(learner)))),
    "negative_cosine": Loss(
        _pairs(lambda _, target, predictions: negative_cosine(target, predictions)),
        has_negatives=False,
        takes_objective=True,
    ),
    "mean_shift": Loss(_pairs(lambda _, target, predictions: mean_shift(target, predictions)), has_negatives=False),
    "relation": Loss(_in_queue(_relation)),
    "swapped_prediction": Loss(
        _pairs(lambda learner, target, predictions: swapped_prediction(target, predictions, learner.temperature)),
        chance=lambda learner, _: math.log(len(learner.prediction.weight)),  # type: ignore[arg-type],
    ),
    "lejepa": Loss(_lejepa),
}
