"""The paper's method in plain torch, one concept per file, usable in any training loop.

from nnclr_hub.method import METHODS, PredictionHead, ProjectionHead, SupportSet, info_nce

Q = SupportSet(size=98_304, dim=256)
loss = info_nce(Q.lookup(z1).embeddings, p2) / 2 + info_nce(Q.lookup(z2).embeddings, p1) / 2
...                                         # backward, optimizer step
Q.enqueue(z1)
"""

from nnclr_hub.method.assignment import Prototypes, sinkhorn, swapped_prediction
from nnclr_hub.method.gather import Gather, GatherRanks
from nnclr_hub.method.heads import PREDICTIONS, PROJECTIONS, PredictionHead, ProjectionHead
from nnclr_hub.method.large_batch import in_chunks
from nnclr_hub.method.learner import Learner, Step
from nnclr_hub.method.methods import METHODS, Method
from nnclr_hub.method.momentum import MomentumEncoder, momentum_at
from nnclr_hub.method.neighbors import Neighbors, nearest
from nnclr_hub.method.objectives import info_nce, mean_shift, negative_cosine
from nnclr_hub.method.relation import relation_loss
from nnclr_hub.method.sigreg import lejepa_loss, sigreg
from nnclr_hub.method.support_set import SupportSet

__all__ = [
    "METHODS",
    "PREDICTIONS",
    "PROJECTIONS",
    "Gather",
    "GatherRanks",
    "Learner",
    "Method",
    "MomentumEncoder",
    "Neighbors",
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
