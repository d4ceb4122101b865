"""The paper's method in plain torch, one concept per file, usable in any training loop.

from nnclr_hub.method import METHODS, PredictionHead, ProjectionHead, SupportSet, info_nce

Q = SupportSet(size=98_304, dim=256)
loss = info_nce(Q.lookup(z1).embeddings, p2) / 2 + info_nce(Q.lookup(z2).embeddings, p1) / 2
...                                         # backward, optimizer step
Q.enqueue(z1)

The names load with their first use, so METHODS and the sizes of heads need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnclr_hub.lazy_names import lazy_names

if TYPE_CHECKING:
    from nnclr_hub.method.assignment import Prototypes, sinkhorn, swapped_prediction
    from nnclr_hub.method.gather import Gather, GatherRanks
    from nnclr_hub.method.heads import PredictionHead, ProjectionHead
    from nnclr_hub.method.large_batch import in_chunks
    from nnclr_hub.method.learner import LEARNERS, Learner, Step
    from nnclr_hub.method.lejepa import lejepa_loss, sigreg
    from nnclr_hub.method.losses import LOSSES, Loss
    from nnclr_hub.method.methods import METHODS, PREDICTIONS, PROJECTIONS, Method
    from nnclr_hub.method.momentum import MomentumEncoder, momentum_at
    from nnclr_hub.method.neighbors import Neighbors, nearest
    from nnclr_hub.method.objectives import (
        OBJECTIVES,
        Objective,
        info_nce,
        mean_shift,
        negative_cosine,
        queue_info_nce,
    )
    from nnclr_hub.method.relation import relation_loss
    from nnclr_hub.method.support_set import SUPPORT_SETS, SupportSet
    from nnclr_hub.method.targets import TARGETS, Batch, Targets

__all__ = [
    "LEARNERS",
    "LOSSES",
    "METHODS",
    "OBJECTIVES",
    "PREDICTIONS",
    "PROJECTIONS",
    "SUPPORT_SETS",
    "TARGETS",
    "Batch",
    "Gather",
    "GatherRanks",
    "Learner",
    "Loss",
    "Method",
    "MomentumEncoder",
    "Neighbors",
    "Objective",
    "PredictionHead",
    "ProjectionHead",
    "Prototypes",
    "Step",
    "SupportSet",
    "Targets",
    "in_chunks",
    "info_nce",
    "lejepa_loss",
    "mean_shift",
    "momentum_at",
    "nearest",
    "negative_cosine",
    "queue_info_nce",
    "relation_loss",
    "sigreg",
    "sinkhorn",
    "swapped_prediction",
]


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "assignment": ("Prototypes", "sinkhorn", "swapped_prediction"),
        "gather": ("Gather", "GatherRanks"),
        "heads": ("PredictionHead", "ProjectionHead"),
        "large_batch": ("in_chunks",),
        "learner": ("LEARNERS", "Learner", "Step"),
        "lejepa": ("lejepa_loss", "sigreg"),
        "losses": ("LOSSES", "Loss"),
        "methods": ("METHODS", "Method", "PREDICTIONS", "PROJECTIONS"),
        "momentum": ("MomentumEncoder", "momentum_at"),
        "neighbors": ("Neighbors", "nearest"),
        "objectives": ("OBJECTIVES", "Objective", "info_nce", "mean_shift", "negative_cosine", "queue_info_nce"),
        "relation": ("relation_loss",),
        "support_set": ("SUPPORT_SETS", "SupportSet"),
        "targets": ("TARGETS", "Batch", "Targets"),
    },
)
