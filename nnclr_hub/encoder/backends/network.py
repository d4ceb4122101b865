"""Network: the backbone with normalization as its first step, so that a backend takes plain pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnclr_hub.encoder.preprocessing import Preprocessing


class Network(nn.Module):
    """(N, S, S, C) uint8 crops -> (N, D) float features, not normalized.

    Args:
        backbone: (N, 3, S, S) float -> (N, D), in evaluation mode; shared, not copied.
        preprocessing: its input size, mean and std are used.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.backbone = backbone
        self.side, self.channels = preprocessing.input_size, preprocessing.in_chans
        # not part of the state dict, because they are not weights
        self.register_buffer("mean", self._colors(preprocessing.mean), persistent=False)
        self.register_buffer("std", self._colors(preprocessing.std), persistent=False)
        self.eval()

    @staticmethod
    def _colors(values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values).mul_(255).view(1, -1, 1, 1)

    def forward(self, crops: Tensor) -> Tensor:
        """Compute features of crops on the network's device; the layout in memory stays channels last."""
        return self.backbone((crops.permute(0, 3, 1, 2).float() - self.mean) / self.std)

    def example(self) -> Tensor:
        """Return (2, S, S, C) uint8 for tracing; not one image, because tracers treat batch size 1 specially."""
        return torch.zeros(2, self.side, self.side, self.channels, dtype=torch.uint8)

    @property
    def bytes(self) -> int:
        """Size of the weights in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.backbone.state_dict().values())


class WithUnitRows(nn.Module):
    """(N, S, S, 3) uint8 crops -> (N, D) features, and the same with rows of length 1."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both."""
        features = self.network(crops)
        return features, F.normalize(features)
