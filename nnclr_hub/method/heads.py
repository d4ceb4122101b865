"""Projection and prediction heads ("Architecture", section 4.1), and the heads of the compared methods.

The projection MLP has "3 fully connected layers of sizes [2048, 2048, d]". Batch norm follows each, and ReLU follows
the first two. The prediction MLP has two layers, [4096, d], with batch norm and ReLU after the hidden one only.
A linear layer before a batch norm has no bias, because the norm would remove it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

LastNorm = Literal["affine", "plain", "none"]


class ProjectionHead(nn.Module):
    """Head that maps the encoder's output to z: (B, in_dim) -> (B, out_dim).

    Args:
        in_dim: length of the encoder's output.
        hidden_dim: width of the hidden layers.
        out_dim: d.
        layers: number of linear layers, at least 2.
        last_norm: batch norm after the last layer: "affine" has a learned scale and shift, "plain" has neither.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_dim: int = 2048,
        out_dim: int = 256,
        *,
        layers: int = 3,
        last_norm: LastNorm = "affine",
    ) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for width in [in_dim, *[hidden_dim] * (layers - 2)]:
            parts += [nn.Linear(width, hidden_dim, bias=False), nn.BatchNorm1d(hidden_dim), nn.ReLU(inplace=True)]
        parts.append(nn.Linear(hidden_dim, out_dim, bias=False))
        if last_norm != "none":
            parts.append(nn.BatchNorm1d(out_dim, affine=last_norm == "affine"))
        self.layers = nn.Sequential(*parts)

    def forward(self, h: Tensor) -> Tensor:
        return self.layers(h)


class PredictionHead(nn.Module):
    """Head that maps z to p = g(z): (B, dim) -> (B, dim)."""

    def __init__(self, dim: int = 256, hidden_dim: int = 4096) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(dim, hidden_dim, bias=False),
            nn.BatchNorm1d(hidden_dim),
            nn.ReLU(inplace=True),
            nn.Linear(hidden_dim, dim),
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z)


@dataclass(frozen=True)
class Projection:
    """Sizes of one paper's projection head, as arguments of `ProjectionHead`."""

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
