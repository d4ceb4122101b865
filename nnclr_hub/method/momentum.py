"""Momentum encoder f_m (Algorithm 2): a moving average of the trained encoder's weights.

f_m = MomentumEncoder(f)
zm1, zm2 = f_m(x1), f_m(x2)                 # never with gradient
...                                         # backward, optimizer step
f_m.update(f, momentum_at(progress, start=0.99))
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn


def momentum_at(progress: float, start: float = 0.99) -> float:
    """Return t of the moving average at `progress` (0 to 1): a cosine from `start` to 1, as in BYOL."""
    return 1 - (1 - start) * (math.cos(math.pi * progress) + 1) / 2


class MomentumEncoder(nn.Module):
    """Copy of an encoder whose weights follow the trained encoder slowly.

    Only parameters are averaged. Batch norm stays in training mode and collects its statistics from this copy's
    activations, because the trained encoder's statistics would not fit the averaged weights. Stochastic depth is off.

    Args:
        online: the trained encoder; it is copied.
    """

    def __init__(self, online: nn.Module) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(online).requires_grad_(False)
        for module in self.encoder.modules():
            if hasattr(module, "drop_prob"):  # the attribute's name in the layers of timm and torchvision
                module.drop_prob = 0.0  # type: ignore[assignment]

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)

    @torch.no_grad()
    def reset(self, online: nn.Module) -> None:
        """Set f_m = f, including running statistics. Call it after loading other weights into f."""
        self.encoder.load_state_dict(online.state_dict())

    @torch.no_grad()
    def update(self, online: nn.Module, t: float) -> None:
        """Set f_m = t f_m + (1 - t) f.

        Args:
            online: the trained encoder, of the same structure.
            t: in [0, 1]; 1 changes nothing.
        """
        ours: list[Tensor] = list(self.encoder.parameters())
        torch._foreach_lerp_(ours, [p.detach() for p in online.parameters()], 1 - t)
