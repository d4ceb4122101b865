"""A batch larger than the memory for its activations: the encoder's gradients by way of a cache.

The loss of a contrastive method needs the embeddings of the whole batch at once, so adding up the
losses of small batches is another loss, with fewer negatives. What takes the memory is the encoder's
activations, and these are made twice instead of kept: the first pass goes over the batch in chunks and
keeps the outputs alone, the heads and the loss see the whole batch, and the backward pass makes each
chunk's activations again. The gradient is that of the large batch; the price is one more forward pass.

Batch norm inside the encoder sees a chunk at a time, as it does on the GPUs of a distributed run
without synchronized statistics. The heads' batch norm sees the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def in_chunks(encoder: nn.Module, x: Tensor, chunk: int) -> Tensor:
    """encoder(x), never holding the activations of more than `chunk` images.

    Args:
        encoder: (B, ...) -> (B, F).
        x: (B, ...) float.
        chunk: images a pass; 0, or at least B: one ordinary pass.
    """
    if chunk <= 0 or chunk >= len(x):
        return encoder(x)
    if not torch.is_grad_enabled():
        return torch.cat([encoder(part) for part in _equal_parts(x, chunk)])

    def passes() -> tuple[nullcontext[None], object]:
        return nullcontext(), _frozen_statistics(encoder)

    parts = [checkpoint(encoder, part, use_reentrant=False, context_fn=passes) for part in _equal_parts(x, chunk)]  # type: ignore[arg-type]
    return torch.cat(parts)  # type: ignore[arg-type]


def _equal_parts(x: Tensor, most: int) -> tuple[Tensor, ...]:
    """Parts of at most that many rows, as equal as can be: batch norm cannot take a left-over of one."""
    return x.tensor_split(-(-len(x) // most))


@contextmanager
def _frozen_statistics(encoder: nn.Module) -> Iterator[None]:
    """The second pass must not count for the running statistics again."""
    norms = [module for module in encoder.modules() if isinstance(module, _BatchNorm)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum
