"""Several processes as one run: this process's rank, and the operations that all ranks perform together.

torchrun starts the processes (`nnclr pretrain --gpus N` starts torchrun), torch's DistributedDataParallel averages
their gradients, and with `GatherRanks` each process contrasts with the predictions of all.
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

TIMEOUT = timedelta(hours=4)  # the other ranks wait while rank 0 decodes, evaluates and saves


@dataclass(frozen=True)
class Ranks:
    """This process and the run's other processes.

    rank, world: number of this process and number of processes.
    where: the device of this process.
    gather: collects tensors from all processes.
    """

    rank: int
    world: int
    where: torch.device
    gather: Gather

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints messages."""
        return self.rank == 0

    @property
    def first_here(self) -> bool:
        """Whether this is the first process on its machine."""
        return self.world == 1 or os.environ.get("LOCAL_RANK", "0") == "0"

    def wait(self) -> None:
        """Block until all ranks have reached this call."""
        if self.world > 1:
            dist.barrier()

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true on any rank; all ranks get the same result."""
        if self.world == 1:
            return flag
        answer = torch.tensor(int(flag), device=self.where)
        dist.all_reduce(answer, op=dist.ReduceOp.MAX)
        return bool(answer)

    def require_equal(self, **values: object) -> None:
        """Check that all ranks have the same values.

        Raises:
            InvalidRequest: names the value that differs; on several machines a folder may not be shared.
        """
        if self.world == 1:
            return
        everywhere: list[Any] = [None] * self.world
        dist.all_gather_object(everywhere, values)
        for name, here in everywhere[0].items():
            others = {str(one[name]) for one in everywhere}
            if len(others) > 1:
                raise InvalidRequest(
                    f"The processes disagree on {name} ({', '.join(sorted(others))}; the first has {here}). Use the "
                    "same images, a shared --out folder and the same kind of device on all machines."
                )


@contextmanager
def joined(device: str | None) -> Iterator[Ranks]:
    """Join the processes that torchrun started, or run as a single process.

    Args:
        device: "cpu", "cuda" or "cuda:1"; default the GPU if there is one, a separate GPU for each rank.
    """
    chosen = str(find_device(device))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks(0, 1, torch.device(chosen), Gather())
        return
    if chosen == "cuda":
        chosen = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.startswith("cuda") else "gloo", timeout=TIMEOUT)
    try:
        yield Ranks(dist.get_rank(), world, torch.device(chosen), GatherRanks())
    finally:
        dist.destroy_process_group()


def share_gradients(learner: Learner, ranks: Ranks) -> nn.Module:
    """Wrap the learner so that gradients are averaged over ranks.

    torch must not broadcast the support set: every rank enqueues the same rows, so it is equal everywhere already. A
    broadcast would send the whole queue at each step.
    """
    if ranks.world == 1:
        return learner
    learner.gather = ranks.gather
    queue = (
        []
        if learner.support_set is None
        else [f"support_set.{name}" for name, _ in learner.support_set.named_buffers()]
    )
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(learner, queue)
    devices = [ranks.where] if ranks.where.type == "cuda" else None
    known = signature(DistributedDataParallel).parameters
    # torch 2.15 renamed the argument. Running statistics are equal on all ranks, since batch norm is synchronized.
    no_sync = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return DistributedDataParallel(learner, device_ids=devices, **{no_sync: False})  # type: ignore[arg-type]


def synchronize_norms(module: nn.Module, where: torch.device) -> nn.Module:
    """Synchronize batch norm over ranks: with torch's layer on GPUs, with ours on the CPU, which torch's rejects."""
    if where.type == "cuda":
        return convert_sync_batchnorm(module)
    for norm in module.modules():
        if isinstance(norm, _BatchNorm):
            kind = type(norm)  # with statistics over all ranks; parameters and buffers are unchanged
            norm.__class__ = type(f"Synchronized{kind.__name__}", (_Synchronized, kind), {})
    return module


class _Sum(torch.autograd.Function):
    """Sum over ranks; its gradient is the sum of the ranks' gradients."""

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
    """Batch norm with mean and variance from differentiable sums over ranks, which hold equally many values."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        over = [axis for axis in range(input.ndim) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(input.ndim)]
        x = input.float()
        world = dist.get_world_size()
        mean = _Sum.apply(x.mean(dim=over)) / world  # (C,)
        centered = x - mean.view(shape)
        variance = _Sum.apply(centered.square().mean(dim=over)) / world
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            count = world * x.numel() // x.shape[1]
            with torch.no_grad():
                rate = self.momentum if self.momentum is not None else 0.1
                self.running_mean.lerp_(mean, rate)
                self.running_var.lerp_(variance * count / max(1, count - 1), rate)
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(1)
        out = centered * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        out = out.to(input.dtype)
        for layer in ("drop", "act"):  # timm's batch norms contain an activation
            if isinstance(getattr(self, layer, None), nn.Module):
                out = getattr(self, layer)(out)
        return out
