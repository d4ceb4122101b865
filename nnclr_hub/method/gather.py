"""What the processes of a distributed run must see of one another's batches.

The columns of InfoNCE are the predictions of the whole batch, and the support set takes all its
projections. One process alone has them; several collect them, in the order of their ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Gather:
    """One process alone: there is nothing to collect."""

    rank = 0
    world = 1

    def __call__(self, x: Tensor) -> Tensor:
        """All ranks' rows, without gradient: (B, ...) -> (world B, ...)."""
        return x.detach()

    def with_gradient(self, x: Tensor) -> Tensor:
        """All ranks' rows; each rank gets the gradient that all of them have for its own."""
        return x


ALONE = Gather()


class GatherRanks(Gather):
    """Collects over a torch.distributed group; every rank must give as many rows.

    With gradients that are then averaged over ranks, as DistributedDataParallel does, the result is
    the gradient of the mean loss over the whole batch.
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
    """All-gather whose backward sums what all ranks have for a row; a slice of the local gradient alone would be
    too small by the number of ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group, ctx.rows = group, len(x)
        return _all_rows(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous().clone()  # autograd may hand the same one to others
        dist.all_reduce(gradient, group=ctx.group)
        first = dist.get_rank(ctx.group) * ctx.rows
        return gradient[first : first + ctx.rows], None
