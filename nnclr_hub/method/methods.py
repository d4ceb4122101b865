"""METHODS: a method is a row of choices (figure "Comparison of self-supervised methods"), together with its heads.

| method          | target encoder | target       | gradient | head g     | objective          | negatives |
|-----------------|----------------|--------------|----------|------------|--------------------|-----------|
| simclr          | online         | view         | yes      | none       | InfoNCE            | batch     |
| nnclr           | online         | neighbor     | no       | paper's    | InfoNCE            | batch     |
| queue_nnclr     | online         | neighbor     | no       | paper's    | queue InfoNCE      | Q         |
| simsiam         | online         | view         | no       | SimSiam's  | negative cosine    | none      |
| nnsiam          | online         | neighbor     | no       | SimSiam's  | negative cosine    | none      |
| byol            | momentum       | view         | no       | paper's    | negative cosine    | none      |
| momentum_nnclr  | momentum       | neighbor     | no       | paper's    | InfoNCE            | batch     |
| momentum_simclr | momentum       | view         | no       | none       | InfoNCE            | batch     |
| moco_v2         | momentum       | view         | no       | none       | queue InfoNCE      | Q         |
| moco_v3         | momentum       | view         | no       | paper's    | InfoNCE            | batch     |
| msf             | momentum       | nearest mean | no       | paper's    | mean shift         | none      |
| ressl           | momentum       | view         | no       | none       | relation to Q      | Q         |
| sce             | momentum       | view         | no       | none       | relation to Q      | Q         |
| swav            | online         | assignment   | no       | prototypes | swapped prediction | none      |
| lejepa          | online         | view         | yes      | none       | SIGReg             | none      |
| teacher         | teacher        | view         | no       | none       | InfoNCE            | batch     |
| teacher_cosine  | teacher        | view         | no       | none       | negative cosine    | none      |
| teacher_nnclr   | teacher        | neighbor     | no       | none       | InfoNCE            | batch     |

"gradient" says whether the target passes one. The names of targets and objectives are those of functions in `TARGETS`
and `LOSSES`, so a new row needs no change of the learner. The rows from `moco_v2` to `lejepa` are the methods that
NNCLR is compared with at equal cost. Where their papers use other heads or schedules, `--set` changes them. The rows of
a teacher are not in the paper: a frozen encoder gives one vector per image, which is the target of both views, and
whose neighbors are those of the teacher.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

LastNorm = Literal["affine", "plain", "none"]  # the last batch norm of a projection head


@dataclass(frozen=True)
class Method:
    """The choices that define one self-supervised method.

    target_encoder: network that computes the target: the trained encoder, its moving average, or a frozen teacher.
    target: what predictions are compared with; a name in `TARGETS`.
    stop_gradient: whether a view is a constant as target. A neighbor always is one, because it is a row of a buffer.
    prediction: the head g between z and p, or none (then p = z); see PREDICTIONS.
    objective: how predictions are compared with targets; a name in `LOSSES`.
    projection: row of PROJECTIONS with the sizes of the projection head.
    loss_scale: factor of the mean over both views. BYOL sums 2 - 2 cos over the views, which is four times the mean
        of the negative cosines. The factor matters to SGD, and hardly to LARS.
    anchor: whose row of the similarity matrix InfoNCE normalizes: the target's, as in eq. 3 of the paper, or the
        prediction's, as in MoCo v3.
    positive_weight: share of the other view in the target of the objective "relation"; the rest is the distribution
        over Q.
    uses_support_set: whether targets or negatives come from Q.
    """

    name: str
    target_encoder: Literal["online", "momentum", "teacher"]
    target: str
    stop_gradient: bool
    prediction: Literal["none", "paper", "simsiam", "prototypes"]
    objective: str
    projection: Literal["nnclr", "simclr", "simsiam", "byol", "moco_v3", "swav", "lejepa", "teacher", "none"]
    loss_scale: float = 1.0
    anchor: Literal["target", "prediction"] = "target"
    positive_weight: float = 1.0
    uses_support_set: bool = False


_with_queue = partial(Method, uses_support_set=True)
METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("simclr", "online", "view", False, "none", "info_nce", "simclr"),
        _with_queue("nnclr", "online", "neighbor", True, "paper", "info_nce", "nnclr"),
        _with_queue("queue_nnclr", "online", "neighbor", True, "paper", "queue_info_nce", "nnclr"),
        Method("simsiam", "online", "view", True, "simsiam", "negative_cosine", "simsiam"),
        _with_queue("nnsiam", "online", "neighbor", True, "simsiam", "negative_cosine", "simsiam"),
        Method("byol", "momentum", "view", True, "paper", "negative_cosine", "byol", loss_scale=4.0),
        _with_queue("momentum_nnclr", "momentum", "neighbor", True, "paper", "info_nce", "nnclr"),
        Method("momentum_simclr", "momentum", "view", True, "none", "info_nce", "simclr"),
        _with_queue("moco_v2", "momentum", "view", True, "none", "queue_info_nce", "simclr"),
        Method("moco_v3", "momentum", "view", True, "paper", "info_nce", "moco_v3", anchor="prediction"),
        _with_queue("msf", "momentum", "nearest_mean", True, "paper", "mean_shift", "byol", loss_scale=4.0),
        _with_queue("ressl", "momentum", "view", True, "none", "relation", "simclr", positive_weight=0.0),
        _with_queue("sce", "momentum", "view", True, "none", "relation", "simclr", positive_weight=0.5),
        Method("swav", "online", "assignment", True, "prototypes", "swapped_prediction", "swav"),
        Method("lejepa", "online", "view", False, "none", "lejepa", "lejepa"),
        Method("teacher", "teacher", "view", True, "none", "info_nce", "teacher"),
        Method("teacher_cosine", "teacher", "view", True, "none", "negative_cosine", "teacher"),
        _with_queue("teacher_nnclr", "teacher", "neighbor", True, "none", "info_nce", "teacher"),
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
    "teacher": Projection(2048, 256, 1, "none"),  # linear, so that the encoder's output keeps what the teacher's has
}
# hidden widths; the paper uses BYOL's prediction head, and SimSiam's is a bottleneck
PREDICTIONS: dict[str, int] = {"paper": 4096, "simsiam": 512}
