"""Projection and prediction heads ("Architecture", section 4.1), and the heads of the compared methods.

The projection MLP has "3 fully connected layers of sizes [2048, 2048, d]". Batch norm follows each, and ReLU follows
the first two. The prediction MLP has two layers, [4096, d], with batch norm and ReLU after the hidden one only.
A linear layer before a batch norm has no bias, because the norm would remove it.
"""

from __future__ import annotations

from torch import Tensor, nn

from nnclr_hub.method.methods import LastNorm


class ProjectionHead(nn.Module):
    """Head that maps the encoder's output to z: (B, in_dim) -> (B, out_dim).

    Args:
        in_dim: length of the encoder's output.
        hidden_dim: width of the hidden layers.
        out_dim: d.
        layers: number of linear layers.
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
        widths = [in_dim, *[hidden_dim] * (layers - 1)]
        for width in widths[:-1]:
            parts += [nn.Linear(width, hidden_dim, bias=False), nn.BatchNorm1d(hidden_dim), nn.ReLU(inplace=True)]
        parts.append(nn.Linear(widths[-1], out_dim, bias=False))
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
