"""Network: the backbone with the normalization before it, so that a backend takes pixels as they are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnclr_hub.encoder.preprocess import Preprocessing


class Network(nn.Module):
    """(N, S, S, 3) uint8 crops -> (N, D) float features, before they are brought to length 1.

    Args:
        backbone: (N, 3, S, S) float -> (N, D), in evaluation mode; shared, not copied.
        preprocessing: its side and colors.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.backbone = backbone
        self.side = preprocessing.input_size
        # not in the state dict: they are no weights
        self.register_buffer("mean", self._colors(preprocessing.mean), persistent=False)
        self.register_buffer("std", self._colors(preprocessing.std), persistent=False)
        self.eval()

    @staticmethod
    def _colors(values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values).mul_(255).view(1, 3, 1, 1)

    def forward(self, crops: Tensor) -> Tensor:
        """Crops on the network's device; its layout stays channels last in memory."""
        return self.backbone((crops.permute(0, 3, 1, 2).float() - self.mean) / self.std)

    def example(self) -> Tensor:
        """(2, S, S, 3) uint8, for what records the network by running it; not one image, for 1 is a special size."""
        return torch.zeros(2, self.side, self.side, 3, dtype=torch.uint8)

    @property
    def bytes(self) -> int:
        """Size of the weights."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.backbone.state_dict().values())
