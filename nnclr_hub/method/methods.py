"""METHODS: a method is a row of five choices (figure "Comparison of self-supervised methods"), with its heads.

| method          | target encoder | target    | gradient through it | prediction head | objective       |
|-----------------|----------------|-----------|---------------------|-----------------|-----------------|
| simclr          | online         | view      | yes                 | none            | InfoNCE         |
| nnclr           | online         | neighbor  | no                  | paper's         | InfoNCE         |
| simsiam         | online         | view      | no                  | SimSiam's       | negative cosine |
| nnsiam          | online         | neighbor  | no                  | SimSiam's       | negative cosine |
| byol            | momentum       | view      | no                  | paper's         | negative cosine |
| momentum_nnclr  | momentum       | neighbor  | no                  | paper's         | InfoNCE         |
| momentum_simclr | momentum       | view      | no                  | none            | InfoNCE         |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Method:
    """The choices that define one self-supervised method.

    target_encoder: network that computes the target: the trained encoder, or its moving average.
    target: the other view, or that view's nearest neighbor in the support set.
    stop_gradient: whether the target is a constant. A neighbor always is one, because it is a row of a buffer.
    prediction: the head g between z and p, or none (then p = z); see `heads.PREDICTIONS`.
    objective: how targets and predictions are compared.
    projection: row of `heads.PROJECTIONS` with the sizes of the projection head.
    loss_scale: factor of the mean over both views. BYOL sums 2 - 2 cos over the views, which is four times the mean
        of the negative cosines. The factor matters to SGD, and hardly to LARS.
    """

    name: str
    target_encoder: Literal["online", "momentum"]
    target: Literal["view", "neighbor"]
    stop_gradient: bool
    prediction: Literal["none", "paper", "simsiam"]
    objective: Literal["info_nce", "negative_cosine"]
    projection: Literal["nnclr", "simclr", "simsiam", "byol", "none"]
    loss_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.target == "neighbour":  # the spelling of earlier versions
            object.__setattr__(self, "target", "neighbor")


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("simclr", "online", "view", False, "none", "info_nce", "simclr"),
        Method("nnclr", "online", "neighbor", True, "paper", "info_nce", "nnclr"),
        Method("simsiam", "online", "view", True, "simsiam", "negative_cosine", "simsiam"),
        Method("nnsiam", "online", "neighbor", True, "simsiam", "negative_cosine", "simsiam"),
        Method("byol", "momentum", "view", True, "paper", "negative_cosine", "byol", loss_scale=4.0),
        Method("momentum_nnclr", "momentum", "neighbor", True, "paper", "info_nce", "nnclr"),
        Method("momentum_simclr", "momentum", "view", True, "none", "info_nce", "simclr"),
    )
}
