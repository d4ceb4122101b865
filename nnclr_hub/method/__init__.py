"""The paper's method in plain torch, one concept per file, usable in any training loop.

from nnclr_hub.method import METHODS, PredictionHead, ProjectionHead, SupportSet, info_nce

Q = SupportSet(size=98_304, dim=256)
loss = info_nce(Q.lookup(z1).embeddings, p2) / 2 + info_nce(Q.lookup(z2).embeddings, p1) / 2
...                                         # backward, optimizer step
Q.enqueue(z1)

The names load with their first use, so METHODS and the sizes of heads need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnclr_hub.method.assignment import Prototypes, sinkhorn, swapped_prediction
    from nnclr_hub.method.gather import Gather, GatherRanks
    from nnclr_hub.method.heads import PredictionHead, ProjectionHead
    from nnclr_hub.method.large_batch import in_chunks
    from nnclr_hub.method.learner import LEARNERS, Learner, Step
    from nnclr_hub.method.lejepa import lejepa_loss, sigreg
    from nnclr_hub.method.methods import METHODS, PREDICTIONS, PROJECTIONS, Method
    from nnclr_hub.method.momentum import MomentumEncoder, momentum_at
    from nnclr_hub.method.neighbors import Neighbors, nearest
    from nnclr_hub.method.objectives import OBJECTIVES, Objective, info_nce, mean_shift, negative_cosine
    from nnclr_hub.method.relation import relation_loss
    from nnclr_hub.method.support_set import SUPPORT_SETS, SupportSet

# name -> module
_HOME = {
    "Prototypes": "assignment",
    "sinkhorn": "assignment",
    "swapped_prediction": "assignment",
    "Gather": "gather",
    "GatherRanks": "gather",
    "PredictionHead": "heads",
    "ProjectionHead": "heads",
    "in_chunks": "large_batch",
    "LEARNERS": "learner",
    "Learner": "learner",
    "Step": "learner",
    "METHODS": "methods",
    "Method": "methods",
    "PREDICTIONS": "methods",
    "PROJECTIONS": "methods",
    "MomentumEncoder": "momentum",
    "momentum_at": "momentum",
    "Neighbors": "neighbors",
    "nearest": "neighbors",
    "OBJECTIVES": "objectives",
    "Objective": "objectives",
    "info_nce": "objectives",
    "mean_shift": "objectives",
    "negative_cosine": "objectives",
    "relation_loss": "relation",
    "lejepa_loss": "lejepa",
    "sigreg": "lejepa",
    "SUPPORT_SETS": "support_set",
    "SupportSet": "support_set",
}

__all__ = [
    "LEARNERS",
    "METHODS",
    "OBJECTIVES",
    "PREDICTIONS",
    "PROJECTIONS",
    "SUPPORT_SETS",
    "Gather",
    "GatherRanks",
    "Learner",
    "Method",
    "MomentumEncoder",
    "Neighbors",
    "Objective",
    "PredictionHead",
    "ProjectionHead",
    "Prototypes",
    "Step",
    "SupportSet",
    "in_chunks",
    "info_nce",
    "lejepa_loss",
    "mean_shift",
    "momentum_at",
    "nearest",
    "negative_cosine",
    "relation_loss",
    "sigreg",
    "sinkhorn",
    "swapped_prediction",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
