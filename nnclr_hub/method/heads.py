"""The projection and prediction heads ("Architecture", section 4.1).

"The projection MLP consists of 3 fully connected layers of sizes [2048, 2048, d]", each followed by
batch norm, the first two by ReLU as well. The prediction MLP has two: [4096, d], with batch norm and
ReLU after the hidden one alone. A linear layer that batch norm follows carries no bias: the norm
would take it away again.
"""

from __future__ import annotations

from torch import Tensor, nn


class ProjectionHead(nn.Module):
    """z from the encoder's output: (B, in_dim) -> (B, out_dim)."""

    def __init__(self, in_dim: int, hidden_dim: int = 2048, out_dim: int = 256) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(in_dim, hidden_dim, bias=False),
            nn.BatchNorm1d(hidden_dim),
            nn.ReLU(inplace=True),
            nn.Linear(hidden_dim, hidden_dim, bias=False),
            nn.BatchNorm1d(hidden_dim),
            nn.ReLU(inplace=True),
            nn.Linear(hidden_dim, out_dim, bias=False),
            nn.BatchNorm1d(out_dim),
        )

    def forward(self, h: Tensor) -> Tensor:
        return self.layers(h)


class PredictionHead(nn.Module):
    """p = g(z): (B, dim) -> (B, dim)."""

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
