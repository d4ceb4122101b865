"""Several processes as one run: who this process is, and what it does together with the others.

torchrun starts the processes (`nnclr pretrain --gpus N` starts torchrun), torch's
DistributedDataParallel averages their gradients, and `GatherRanks` lets each contrast with the
predictions of all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from nnclr_hub.encoder.device import find_device
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import Gather, GatherRanks, Learner

PATIENCE = timedelta(hours=4)  # others wait while rank 0 decodes, evaluates and saves


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run.

    rank, world: its number and how many there are.
    where: its device.
    gather: collects from all.
    """

    rank: int
    world: int
    where: torch.device
    gather: Gather

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and talks."""
        return self.rank == 0

    @property
    def first_here(self) -> bool:
        """Whether this is the first process of its machine."""
        return self.world == 1 or os.environ.get("LOCAL_RANK", "0") == "0"

    def wait(self) -> None:
        """Until all have come here."""
        if self.world > 1:
            dist.barrier()

    def any(self, flag: bool) -> bool:
        """Whether any rank says so; all get the same answer."""
        if self.world == 1:
            return flag
        answer = torch.tensor(int(flag), device=self.where)
        dist.all_reduce(answer, op=dist.ReduceOp.MAX)
        return bool(answer)

    def agree(self, **figures: object) -> None:
        """That all ranks have the same.

        Raises:
            InvalidRequest: names what differs; on several machines a folder may not be shared.
        """
        if self.world == 1:
            return
        everywhere: list[Any] = [None] * self.world
        dist.all_gather_object(everywhere, figures)
        for name, here in everywhere[0].items():
            others = {str(one[name]) for one in everywhere}
            if len(others) > 1:
                raise InvalidRequest(
                    f"The processes do not agree on {name} ({', '.join(sorted(others))}; the first has {here}): give "
                    "all machines the same images, the same --out on a disk that they share, and devices of a kind."
                )


@contextmanager
def joined(device: str | None) -> Iterator[Ranks]:
    """Joins the processes that torchrun started; alone, if it did not.

    Args:
        device: "cpu", "cuda", "cuda:1"; default the GPU if there is one, of several ranks each its own.
    """
    chosen = str(find_device(device))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks(0, 1, torch.device(chosen), Gather())
        return
    if chosen == "cuda":
        chosen = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.startswith("cuda") else "gloo", timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), world, torch.device(chosen), GatherRanks())
    finally:
        dist.destroy_process_group()


def share_gradients(learner: Learner, ranks: Ranks) -> nn.Module:
    """The learner with gradients averaged over ranks and batch norm over all their images.

    The support set stays out of what torch broadcasts: every rank enqueues the same rows, so it is the
    same everywhere already; a broadcast would send the whole bank at each step.
    """
    if ranks.world == 1:
        return learner
    learner.gather = ranks.gather
    bank = (
        []
        if learner.support_set is None
        else [f"support_set.{name}" for name, _ in learner.support_set.named_buffers()]
    )
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(learner, bank)
    devices = [ranks.where] if ranks.where.type == "cuda" else None
    known = signature(DistributedDataParallel).parameters
    # torch 2.15 renamed it: running statistics are the same everywhere, since batch norm is synchronized
    silent = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return DistributedDataParallel(learner, device_ids=devices, **{silent: False})  # type: ignore[arg-type]


def synchronize_norms(module: nn.Module, where: torch.device) -> nn.Module:
    """Batch norm over the images of all ranks: torch's on GPUs; on the CPU, which torch's refuses, ours."""
    if where.type == "cuda":
        return convert_sync_batchnorm(module)
    for norm in module.modules():
        if isinstance(norm, _BatchNorm):
            norm.__class__ = _with_base(type(norm))
    return module


def _with_base(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    """The same batch norm, its statistics over all ranks; what it holds stays as it is."""
    return type(f"Synchronised{kind.__name__}", (_Synchronized, kind), {})


class _Sum(torch.autograd.Function):
    """The sum over ranks; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total


class _Synchronized(_BatchNorm):
    """Mean and variance by differentiable sums over ranks, which hold equally many values."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        over = [axis for axis in range(input.ndim) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(input.ndim)]
        x = input.float()
        world = dist.get_world_size()
        mean = _Sum.apply(x.mean(dim=over)) / world  # (C,)
        centerd = x - mean.view(shape)
        variance = _Sum.apply(centerd.square().mean(dim=over)) / world
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            count = world * x.numel() // x.shape[1]
            with torch.no_grad():
                rate = self.momentum if self.momentum is not None else 0.1
                self.running_mean.lerp_(mean, rate)
                self.running_var.lerp_(variance * count / max(1, count - 1), rate)
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(1)
        out = centerd * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        out = out.to(input.dtype)
        for following in ("drop", "act"):  # timm's batch norms have an activation of their own
            if isinstance(getattr(self, following, None), nn.Module):
                out = getattr(self, following)(out)
        return out
