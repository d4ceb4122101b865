"""What [CLS] attends to in the last block: "the average self-attention over all heads in the final layer"."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from torch import Tensor


def class_token_rows(attention: Attention, x: Tensor) -> Tensor:
    """The softmax rows of the first token, one a head, computed from what the attention is given.

    Only one query is needed, so this costs a twelfth or less of the attention's own work.

    Args:
        attention: timm's, of whatever `fused_attn`.
        x: (B, N, C) tokens, normalized as the block does.

    Returns:
        (B, heads, N) float32; the rows sum to 1.
    """
    width = attention.num_heads * attention.head_dim
    weight, bias = attention.qkv.weight, attention.qkv.bias
    parts = (slice(0, width), slice(width, 2 * width))
    q, k = (
        F.linear(tokens, weight[part], None if bias is None else bias[part]).unflatten(2, (attention.num_heads, -1))
        for tokens, part in zip((x[:, :1], x), parts, strict=True)
    )
    q, k = attention.q_norm(q.transpose(1, 2)), attention.k_norm(k.transpose(1, 2))  # (B, heads, N, C / heads)
    return torch.softmax((q * attention.scale) @ k.transpose(2, 3), dim=-1)[:, :, 0].float()


def fewest(row: Tensor, mass: float) -> Tensor:
    """Which patches are the fewest whose share of the row's own sum is `mass` or more.

    Args:
        row: (n,) not negative, not all zero.
        mass: in (0, 1].

    Returns:
        (n,) bool.
    """
    order = row.double().sort(descending=True, stable=True)
    shares = order.values.cumsum(0)
    count = int((shares < mass * shares[-1]).sum()) + 1
    kept = torch.zeros(len(row), dtype=torch.bool)
    kept[order.indices[:count]] = True
    return kept
