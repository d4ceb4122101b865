"""The paper's method in plain torch, one concept per file, usable in any training loop.

from nnclr_hub.method import METHODS, PredictionHead, ProjectionHead, SupportSet, info_nce

Q = SupportSet(size=98_304, dim=256)
loss = info_nce(Q.lookup(z1).embeddings, p2) / 2 + info_nce(Q.lookup(z2).embeddings, p1) / 2
...                                         # backward, optimizer step
Q.enqueue(z1)

The names load with their first use, so METHODS and the sizes of heads need no torch.
"""

# ruff: noqa: F401 - the names are for type checkers

from __future__ import annotations

from typing import TYPE_CHECKING

from nnclr_hub.lazy_names import lazy_names

if TYPE_CHECKING:
    from nnclr_hub.method.gather import Gather, GatherRanks
    from nnclr_hub.method.heads import PredictionHead, ProjectionHead
    from nnclr_hub.method.large_batch import in_chunks
    from nnclr_hub.method.learner import LEARNERS, LOSSES, TARGETS, Batch, Learner, Loss, Step, Targets
    from nnclr_hub.method.methods import METHODS, PREDICTIONS, PROJECTIONS, Method
    from nnclr_hub.method.momentum import MomentumEncoder, momentum_at
    from nnclr_hub.method.neighbors import Neighbors, nearest
    from nnclr_hub.method.objectives import (
        OBJECTIVES,
        Objective,
        Prototypes,
        explained_share,
        info_nce,
        lejepa_loss,
        mean_shift,
        negative_cosine,
        queue_info_nce,
        random_directions,
        relation_loss,
        sigreg,
        sinkhorn,
        swapped_prediction,
    )
    from nnclr_hub.method.support_set import SUPPORT_SETS, SupportSet

_HOMES = {
    "gather": ("Gather", "GatherRanks"),
    "heads": ("PredictionHead", "ProjectionHead"),
    "large_batch": ("in_chunks",),
    "learner": ("LEARNERS", "LOSSES", "TARGETS", "Batch", "Learner", "Loss", "Step", "Targets"),
    "methods": ("METHODS", "Method", "PREDICTIONS", "PROJECTIONS"),
    "momentum": ("MomentumEncoder", "momentum_at"),
    "neighbors": ("Neighbors", "nearest"),
    "objectives": (
        *("OBJECTIVES", "Objective", "Prototypes", "explained_share", "info_nce", "lejepa_loss", "mean_shift"),
        *(
            "negative_cosine",
            "queue_info_nce",
            "random_directions",
            "relation_loss",
            "sigreg",
            "sinkhorn",
            "swapped_prediction",
        ),
    ),
    "support_set": ("SUPPORT_SETS", "SupportSet"),
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
__all__ = sorted(name for names in _HOMES.values() for name in names)  # pyright: ignore[reportUnsupportedDunderAll]
