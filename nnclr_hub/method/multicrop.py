"""Multi-crop: two large views and any number of small ones ("ImageNet linear evaluation", section 4.2).

Targets and neighbors come from the large views only. Each target is compared with the predictions of every other view,
large or small, and the loss is the mean over those pairs. Small views of one size pass the encoder together, and all
pairs of one target pass the loss together. The work in Python then grows with the number of sizes and targets, not
with the number of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")  # targets of a view


def encode_views(encode: Callable[[Tensor], Tensor], views: Sequence[Tensor], large: int) -> list[Tensor]:
    """Encode large views one at a time and small views together by size.

    Args:
        encode: (B, 3, H, W) -> (B, D).
        views: each (B, 3, H, W), the large ones first.
        large: number of large views. Batch norm sees each of them separately, as without multi-crop.

    Returns:
        The (B, D) output for each view, in order.
    """
    encoded = [encode(x) for x in views[:large]]
    small: dict[torch.Size, list[int]] = {}
    for number, x in enumerate(views[large:]):
        small.setdefault(x.shape, []).append(number)
    places: dict[int, Tensor] = {}
    for numbers in small.values():
        together = encode(torch.cat([views[large + number] for number in numbers]))
        places |= dict(zip(numbers, together.chunk(len(numbers)), strict=True))
    return encoded + [places[number] for number in range(len(places))]


def loss_over_pairs(
    objective: Callable[[T, Tensor], Tensor], targets: Sequence[T], predictions: Sequence[Tensor]
) -> Tensor:
    """Return the mean of objective(target of view i, prediction of view j) over all i and all j other than i.

    With two views this is Algorithm 1: L(NN1, p2) / 2 + L(NN2, p1) / 2.

    Args:
        objective: takes a view's targets and predictions (V, B, D) of the others, and returns the mean over V.
        targets: of each large view, such as (B, D).
        predictions: (B, D) of each view, the large ones first.
    """
    losses = []
    for number, target in enumerate(targets):
        others = [p for j, p in enumerate(predictions) if j != number]
        losses.append(objective(target, torch.stack(others)))
    return torch.stack(losses).mean()
