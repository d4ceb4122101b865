"""`nnclr pretrain --gpus N`: torchrun's launcher, with its outcome in one sentence.

On several machines start torchrun there yourself, with the same program and no --gpus:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        -m nnclr_hub.cli pretrain resnet50_imagenet --data IMAGENET --out RUN
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

import torch

from nnclr_hub.errors import InvalidRequest, TrainingError

INTERRUPTED = 130


def launch(processes: int, arguments: Sequence[str], device: str | None) -> int:
    """Runs `nnclr ARGUMENTS` in that many processes on this machine and returns the exit code.

    Args:
        processes: how many; on GPUs, one each.
        arguments: of the command line, without --gpus.
        device: as given on the command line; "cpu" needs no GPUs.

    Raises:
        InvalidRequest: more processes than there are GPUs.
    """
    there = torch.cuda.device_count()
    if device not in (None, "cpu", "cuda"):
        raise InvalidRequest(f"--gpus {processes} gives each process a GPU of its own: leave --device {device} out.")
    if device != "cpu" and processes > there:
        raise InvalidRequest(f"--gpus {processes}, but this machine has {there}: give at most that, or --device cpu.")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # each process would otherwise take all cores, and torchrun would say so
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
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
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the processes speak for themselves
    try:
        elastic_launch(config, sys.executable)("-m", "nnclr_hub.cli", *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            raise TrainingError(
                f"Process {rank} was ended by {signal.Signals(-failure.exitcode).name}, often for want of memory: take "
                "a smaller batch_size, then go on with --resume."
            ) from error
        return int(failure.exitcode)
    except SignalException:  # the processes have been told, and have saved
        return INTERRUPTED
    return 0
