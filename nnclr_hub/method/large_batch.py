"""Train with a batch whose activations do not fit in memory.

The loss of a contrastive method needs the embeddings of the whole batch at once. Summing the losses of small batches
gives a different loss with fewer negatives. The encoder's activations take most of the memory, so they are computed
twice instead of kept. The first pass goes over the batch in chunks and keeps only the outputs; the heads and the loss
see the whole batch. The backward pass recomputes the activations of each chunk. The gradient equals that of the large
batch, at the price of one more forward pass.

Batch norm inside the encoder sees one chunk at a time, as on the GPUs of a distributed run without synchronized
statistics. The batch norm of the heads sees the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def in_chunks(encoder: nn.Module, x: Tensor, chunk: int) -> Tensor:
    """Compute encoder(x) without ever holding the activations of more than `chunk` images.

    Args:
        encoder: (B, ...) -> (B, F).
        x: (B, ...) float.
        chunk: images per pass; 0, or at least B, means one ordinary pass.
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
    """Split into parts of at most `most` rows, as equal as possible: batch norm cannot process a remainder of one."""
    return x.tensor_split(-(-len(x) // most))


@contextmanager
def _frozen_statistics(encoder: nn.Module) -> Iterator[None]:
    norms = [module for module in encoder.modules() if isinstance(module, _BatchNorm)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum
