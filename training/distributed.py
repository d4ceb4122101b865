"""Several processes as one run: this process's rank, and the operations that all ranks perform together.

torchrun starts the processes (`nnclr pretrain --gpus N` starts torchrun), or Slurm's srun does. torch's
DistributedDataParallel averages their gradients, and with `GatherRanks` each process contrasts with the predictions of
all. On several machines start torchrun there yourself, with the same program and no --gpus:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        -m nnclr_hub.cli pretrain resnet50_imagenet --data IMAGENET --out RUN
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from inspect import signature
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.device import find_device
from nnclr_hub.errors import InvalidRequest, TrainingError
from nnclr_hub.method import Gather, GatherRanks, Learner

T = TypeVar("T")
WAIT = timedelta(hours=4)  # the other ranks wait while rank 0 decodes, evaluates and saves
INTERRUPTED = 130
NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# of errors of gloo, which have no class
LOST = ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting", "monitoredBarrier")


@dataclass(frozen=True)
class Ranks:
    """This process and the run's other processes.

    rank, world: number of this process and number of processes.
    where: the device of this process.
    gather: collects tensors from all processes.
    waiting: a group of all processes, for waiting on the CPU.
    limit: time after which a rank that does not take part in an operation ends the run.
    """

    rank: int
    world: int
    where: torch.device
    gather: Gather
    waiting: dist.ProcessGroup | None = None
    limit: timedelta = WAIT

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints messages."""
        return self.rank == 0

    @property
    def world_here(self) -> int:
        """Number of processes on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world))

    @property
    def first_here(self) -> bool:
        """Whether this is the first process on its machine."""
        return self.world == 1 or os.environ.get("LOCAL_RANK", "0") == "0"

    def wait(self) -> None:
        """Block until all ranks have reached this call, for hours if need be."""
        if self.world > 1:
            dist.monitored_barrier(self.waiting, WAIT)

    def wait_for_first(self) -> None:
        """Block until the first rank has reached this call; the first blocks for the others up to `limit`."""
        if self.world > 1:
            dist.monitored_barrier(self.waiting, self.limit if self.first else WAIT)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true on any rank; all ranks get the same result."""
        if self.world == 1:
            return flag
        answer = torch.tensor(int(flag), device=self.where)
        dist.all_reduce(answer, op=dist.ReduceOp.MAX)
        return bool(answer)

    def collect(self, value: T) -> list[T]:
        """Return the values of all ranks, in order, on every rank."""
        found: list[Any] = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(found, value)
        return found

    def of_first(self, compute: Callable[[], T]) -> T:
        """Return the first rank's result of `compute` on all ranks; the others wait for it."""
        if self.world == 1:
            return compute()
        found: list[Any] = [compute() if self.first else None]
        dist.broadcast_object_list(found, group=self.waiting)
        return found[0]

    def require_equal(self, **values: object) -> None:
        """Check that all ranks have the same values."""
        everywhere = self.collect(values)
        for name, here in everywhere[0].items():
            others = {str(one[name]) for one in everywhere}
            if len(others) > 1:
                raise InvalidRequest(
                    f"The processes disagree on {name} ({', '.join(sorted(others))}; the first has {here}). Use the "
                    "same images, a shared --out folder and the same kind of device on all machines."
                )

    @contextmanager
    def losses_explained(self) -> Iterator[None]:
        """Replace the error of a lost connection by a TrainingError that says what to do."""
        try:
            yield
        except (dist.DistError, RuntimeError) as error:
            known = isinstance(error, dist.DistError) or any(words in str(error) for words in LOST)
            if self.world == 1 or not known:
                raise
            minutes = self.limit.total_seconds() / 60
            raise TrainingError(
                f"Process {self.rank} of {self.world} lost the others, or one of them took more than {minutes:g} "
                "minutes for a step. Look for the first message, then continue with --resume; the last checkpoint is "
                "intact."
            ) from error


@contextmanager
def joined(device: str | torch.device | None, minutes: float = 10.0) -> Iterator[Ranks]:
    """Join the processes that torchrun or srun started, or run as a single process.

    Args:
        device: "cpu", "cuda" or "cuda:1"; default the GPU if there is one, a separate GPU for each rank.
        minutes: after which an operation of all ranks fails because one of them does not take part.
    """
    chosen = str(find_device(device))
    if ":" in chosen:  # else pinned memory, among others, would take memory of the first GPU
        torch.cuda.set_device(chosen)
    environment = os.environ | slurm_ranks(os.environ)
    world = int(environment.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks(0, 1, torch.device(chosen), Gather())
        return
    if missing := [name for name in NEEDED if name not in environment]:
        raise InvalidRequest(
            f"WORLD_SIZE is {world}, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set. Start "
            "the processes with nnclr pretrain --gpus N, torchrun or srun."
        )
    os.environ.update(environment)
    if chosen == "cuda":
        chosen = f"cuda:{_own_gpu(int(environment['LOCAL_RANK']))}"
        torch.cuda.set_device(chosen)
    where = torch.device(chosen)
    on_gpu = where.type == "cuda"
    limit = timedelta(minutes=minutes)
    try:
        store, rank, _ = next(dist.rendezvous("env://", timeout=limit))
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            timeout=limit,
            store=dist.PrefixStore("group", store),
            rank=rank,
            world_size=world,
            device_id=where if on_gpu else None,
        )
        waiting = dist.new_group(backend="gloo", timeout=WAIT)
    except (dist.DistError, RuntimeError) as error:
        meeting = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
        reason = str(error).strip().partition("\n")[0]
        raise TrainingError(
            f"Process {environment['RANK']} of {world} did not meet the others at {meeting} ({reason}). "
            "Check that all processes have started, and that this address can be reached from their machines."
        ) from error
    assert isinstance(waiting, dist.ProcessGroup)
    ranks = Ranks(rank, world, where, GatherRanks(), waiting, limit)
    try:
        with ranks.losses_explained():
            yield ranks
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _own_gpu(local_rank: int) -> int:
    count = torch.cuda.device_count()
    if count > 1 and local_rank >= count:
        raise InvalidRequest(f"This machine has {count} GPUs, and a process number {local_rank + 1}; start fewer.")
    return 0 if count == 1 else local_rank  # Slurm may show each process its own GPU alone


def slurm_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of torch.distributed for a process that srun started; {} for any other process.

    The first host of the job step is the meeting point, on a port that depends on the job.
    """
    world = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if "WORLD_SIZE" in environment or world == "1" or "SLURM_PROCID" not in environment:
        return {}
    hosts = environment.get("SLURM_STEP_NODELIST", "127.0.0.1")
    first = re.sub(r"\[(\d+).*", r"\1", hosts.split(",")[0])  # node[03-05,9],other -> node03
    return {
        "WORLD_SIZE": world,
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": environment.get("SLURM_STEP_TASKS_PER_NODE", world).split("(")[0].split(",")[0],
        "MASTER_ADDR": environment.get("MASTER_ADDR", first),
        "MASTER_PORT": environment.get("MASTER_PORT", str(20_000 + int(environment.get("SLURM_JOB_ID", "0")) % 20_000)),
    }


def share_gradients(learner: Learner, ranks: Ranks) -> nn.Module:
    """Wrap the learner so that gradients are averaged over ranks.

    torch must not broadcast the support set and the tables of the images: they are equal on all ranks, which enqueue
    the same rows. A broadcast would send the whole queue at each step.
    """
    if ranks.world == 1:
        return learner
    learner.gather = ranks.gather
    buffers = ["teacher", "groups"]
    if learner.support_set is not None:
        buffers += [f"support_set.{name}" for name, _ in learner.support_set.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(learner, buffers)
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


# ------------------------------------------------------------------------------ nnclr pretrain --gpus N


def launch(processes: int, arguments: Sequence[str], device: str | None) -> int:
    """Run `nnclr ARGUMENTS` in several processes on this machine and return the exit code.

    Args:
        processes: number of processes; with GPUs, one per GPU.
        arguments: arguments of the command line, without --gpus.
        device: as given on the command line; "cpu" needs no GPUs.

    Raises:
        InvalidRequest: more processes than there are GPUs.
    """
    available = torch.cuda.device_count()
    if device not in (None, "cpu", "cuda"):
        raise InvalidRequest(f"--gpus {processes} assigns one GPU to each process; leave --device {device} out.")
    if device != "cpu" and processes > available:
        raise InvalidRequest(
            f"--gpus must be at most {available}, the number of GPUs on this machine; got {processes}. "
            "Use --device cpu to run several processes without GPUs."
        )
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # otherwise each process would use all cores, and torchrun would print a warning
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // processes)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # gloo's and NCCL's errors become a sentence
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"nnclr-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the processes print their own errors
    try:
        elastic_launch(config, sys.executable)("-m", "nnclr_hub.cli", *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            raise TrainingError(
                f"Process {rank} was killed by {signal.Signals(-failure.exitcode).name}, often for lack of memory. Set "
                "a smaller batch_size, then continue with --resume."
            ) from error
        return int(failure.exitcode)
    except SignalException:  # the processes have received it too, and have saved
        return INTERRUPTED
    return 0
