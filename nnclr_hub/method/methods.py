"""METHODS: a method is a row of choices (figure "Comparison of self-supervised methods"), together with its heads.

| method          | target encoder | target             | gradient | head g     | objective          | negatives |
|-----------------|----------------|--------------------|----------|------------|--------------------|-----------|
| simclr          | online         | view               | yes      | none       | InfoNCE            | batch     |
| nnclr           | online         | neighbor           | no       | paper's    | InfoNCE            | batch     |
| queue_nnclr     | online         | neighbor           | no       | paper's    | InfoNCE            | queue     |
| simsiam         | online         | view               | no       | SimSiam's  | negative cosine    | none      |
| nnsiam          | online         | neighbor           | no       | SimSiam's  | negative cosine    | none      |
| byol            | momentum       | view               | no       | paper's    | negative cosine    | none      |
| momentum_nnclr  | momentum       | neighbor           | no       | paper's    | InfoNCE            | batch     |
| momentum_simclr | momentum       | view               | no       | none       | InfoNCE            | batch     |
| moco_v2         | momentum       | view               | no       | none       | InfoNCE            | queue     |
| moco_v3         | momentum       | view               | no       | paper's    | InfoNCE            | batch     |
| msf             | momentum       | mean of neighbors  | no       | paper's    | mean shift         | none      |
| ressl           | momentum       | distribution       | no       | none       | relation           | queue     |
| sce             | momentum       | view, distribution | no       | none       | relation           | queue     |
| swav            | online         | assignment         | no       | prototypes | swapped prediction | none      |
| lejepa          | online         | center             | yes      | none       | SIGReg             | none      |

"gradient" says whether the target passes one; a "center" is the mean of the large views.
The rows from `moco_v2` on are the methods that NNCLR is compared with at equal cost. Where their papers use other heads
or schedules, `--set` changes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nnclr_hub.errors import InvalidRequest

LastNorm = Literal["affine", "plain", "none"]  # of a projection head
# of objectives that have any
NEGATIVES: dict[str, tuple[str, ...]] = {"info_nce": ("batch", "queue"), "relation": ("queue",)}


@dataclass(frozen=True)
class Method:
    """The choices that define one self-supervised method.

    target_encoder: network that computes the target: the trained encoder, or its moving average.
    target: the other view; that view's nearest neighbor in the support set Q; the mean of its k nearest; its
        distribution of similarities to Q; its assignment to prototypes; or the mean of the large views.
    stop_gradient: whether the target is a constant. A neighbor always is one, because it is a row of a buffer.
    prediction: the head g between z and p, or none (then p = z); see PREDICTIONS.
    objective: how targets and predictions are compared.
    negatives: what a prediction is compared with besides its target. InfoNCE takes the other predictions of the batch
        or the rows of Q, a relation takes the rows of Q, and the other objectives take none.
    projection: row of PROJECTIONS with the sizes of the projection head.
    loss_scale: factor of the mean over both views. BYOL sums 2 - 2 cos over the views, which is four times the mean
        of the negative cosines. The factor matters to SGD, and hardly to LARS.
    anchor: whose row of the similarity matrix InfoNCE normalizes: the target's, as in eq. 3 of the paper, or the
        prediction's, as in MoCo v3.
    positive_weight: share of the other view in the target of the objective "relation"; the rest is the distribution
        over Q.

    Raises:
        InvalidRequest: the objective does not take these negatives.
    """

    name: str
    target_encoder: Literal["online", "momentum"]
    target: Literal["view", "neighbor", "neighbors", "distribution", "assignment", "center"]
    stop_gradient: bool
    prediction: Literal["none", "paper", "simsiam", "prototypes"]
    objective: Literal["info_nce", "negative_cosine", "mean_shift", "relation", "swapped_prediction", "lejepa"]
    negatives: Literal["batch", "queue", "none"]
    projection: Literal["nnclr", "simclr", "simsiam", "byol", "moco_v3", "swav", "lejepa", "none"]
    loss_scale: float = 1.0
    anchor: Literal["target", "prediction"] = "target"
    positive_weight: float = 1.0

    @property
    def uses_support_set(self) -> bool:
        """Whether targets or negatives come from Q."""
        return self.target in ("neighbor", "neighbors", "distribution") or self.negatives == "queue"

    def __post_init__(self) -> None:
        allowed = NEGATIVES.get(self.objective, ("none",))
        if self.negatives not in allowed:
            raise InvalidRequest(
                f"The objective {self.objective!r} of the method {self.name!r} takes negatives={' or '.join(allowed)}, "
                f"not {self.negatives!r}."
            )


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("simclr", "online", "view", False, "none", "info_nce", "batch", "simclr"),
        Method("nnclr", "online", "neighbor", True, "paper", "info_nce", "batch", "nnclr"),
        Method("queue_nnclr", "online", "neighbor", True, "paper", "info_nce", "queue", "nnclr"),
        Method("simsiam", "online", "view", True, "simsiam", "negative_cosine", "none", "simsiam"),
        Method("nnsiam", "online", "neighbor", True, "simsiam", "negative_cosine", "none", "simsiam"),
        Method("byol", "momentum", "view", True, "paper", "negative_cosine", "none", "byol", loss_scale=4.0),
        Method("momentum_nnclr", "momentum", "neighbor", True, "paper", "info_nce", "batch", "nnclr"),
        Method("momentum_simclr", "momentum", "view", True, "none", "info_nce", "batch", "simclr"),
        Method("moco_v2", "momentum", "view", True, "none", "info_nce", "queue", "simclr"),
        Method("moco_v3", "momentum", "view", True, "paper", "info_nce", "batch", "moco_v3", anchor="prediction"),
        Method("msf", "momentum", "neighbors", True, "paper", "mean_shift", "none", "byol", loss_scale=4.0),
        Method("ressl", "momentum", "distribution", True, "none", "relation", "queue", "simclr", positive_weight=0.0),
        Method("sce", "momentum", "distribution", True, "none", "relation", "queue", "simclr", positive_weight=0.5),
        Method("swav", "online", "assignment", True, "prototypes", "swapped_prediction", "none", "swav"),
        Method("lejepa", "online", "center", False, "none", "lejepa", "none", "lejepa"),
    )
}


@dataclass(frozen=True)
class Projection:
    """Sizes of one paper's projection head, as arguments of `heads.ProjectionHead`."""

    hidden_dim: int
    out_dim: int
    layers: int
    last_norm: LastNorm


PROJECTIONS: dict[str, Projection] = {
    "nnclr": Projection(2048, 256, 3, "affine"),
    "simclr": Projection(2048, 128, 2, "affine"),  # "A Simple Framework", section 3 and its code
    "simsiam": Projection(2048, 2048, 3, "plain"),  # "Exploring Simple Siamese", section 3; d = 2048
    "byol": Projection(4096, 256, 2, "none"),  # "Bootstrap Your Own Latent", section 3.3
    "moco_v3": Projection(4096, 256, 2, "plain"),  # "An Empirical Study of Training ViTs", its code for ResNets
    "swav": Projection(2048, 128, 2, "none"),  # "Unsupervised Learning by Contrasting Cluster Assignments", its code
    "lejepa": Projection(2048, 64, 3, "none"),  # "LeJEPA", its minimal script with d = 16 to 64
}
# hidden widths; the paper uses BYOL's prediction head, and SimSiam's is a bottleneck
PREDICTIONS: dict[str, int] = {"paper": 4096, "simsiam": 512}
