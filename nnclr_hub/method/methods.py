"""METHODS: a method is a row of five choices (figure "Comparison of self-supervised methods")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Method:
    """What one self-supervised method compares with what.

    target_encoder: whose output the target is; "online" is the trained encoder itself.
    target: the other view, or that view's nearest neighbour in the support set.
    stop_gradient: whether the target is a constant. A neighbour always is: it comes out of a buffer.
    prediction: the head g between z and p, or none (then p = z).
    objective: how targets and predictions are compared.
    """

    name: str
    target_encoder: Literal["online"]
    target: Literal["view", "neighbour"]
    stop_gradient: bool
    prediction: Literal["none", "paper"]
    objective: Literal["info_nce"]


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("simclr", "online", "view", stop_gradient=False, prediction="none", objective="info_nce"),
        Method("nnclr", "online", "neighbour", stop_gradient=True, prediction="paper", objective="info_nce"),
    )
}
