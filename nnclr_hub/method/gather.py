"""Collect batches over the processes of a distributed run.

The columns of InfoNCE are the predictions of the whole batch, and the support set takes all its projections.
A single process has all of them. Several processes collect them in the order of their ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Gather:
    """Collection in a single process: every tensor is complete already."""

    rank = 0
    world = 1

    def __call__(self, x: Tensor) -> Tensor:
        """Return the rows of all ranks, without gradient: (B, ...) -> (world B, ...)."""
        return x.detach()

    def with_gradient(self, x: Tensor) -> Tensor:
        """Return the rows of all ranks. Each rank receives the sum of all ranks' gradients for its own rows."""
        return x


ALONE = Gather()


class GatherRanks(Gather):
    """Collection over a torch.distributed group; every rank passes the same number of rows.

    DistributedDataParallel then averages gradients over ranks, and the result is the gradient of the mean loss over
    the whole batch.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)

    def __call__(self, x: Tensor) -> Tensor:
        return _all_rows(x.detach(), self.group)

    def with_gradient(self, x: Tensor) -> Tensor:
        return _AllRows.apply(x, self.group)  # type: ignore[no-any-return]


def _all_rows(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    rows = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, x.contiguous(), group=group)
    return torch.cat(rows)


class _AllRows(torch.autograd.Function):
    """All-gather whose backward pass sums the gradients of all ranks.

    A slice of the local gradient alone would be too small by a factor of the number of ranks.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group, ctx.rows = group, len(x)
        return _all_rows(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous().clone()  # autograd may pass the same tensor to other functions
        dist.all_reduce(gradient, group=ctx.group)
        first = dist.get_rank(ctx.group) * ctx.rows
        return gradient[first : first + ctx.rows], None
