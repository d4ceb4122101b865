"""Residual blocks that do nothing: a fresh ResNet of timm's has norms of weight 0 at the end of each branch."""

from __future__ import annotations

from typing import cast

from timm.models.resnet import BasicBlock, Bottleneck
from torch import Tensor, nn


def idle_blocks(backbone: nn.Module) -> float:
    """Share of the residual blocks whose last norm has weight 0 throughout, so that the block is its shortcut.

    0 where there are no such blocks.
    """
    blocks = [module for module in backbone.modules() if isinstance(module, BasicBlock | Bottleneck)]
    ends = [block.bn3 if isinstance(block, Bottleneck) else block.bn2 for block in blocks]
    idle = [not bool(cast(Tensor, end.weight).any()) for end in ends]
    return sum(idle) / len(idle) if idle else 0.0
