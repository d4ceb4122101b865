"""`nnclr pretrain --gpus N`: start torchrun's launcher and report its outcome in one sentence.

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
from pathlib import Path
from types import FrameType

import torch

from nnclr_hub.cores import usable_cores
from nnclr_hub.errors import InvalidRequest, TrainingError

INTERRUPTED = 130


def launch(processes: int, arguments: Sequence[str], device: str | None) -> int:
    """Run `nnclr ARGUMENTS` in several processes on this machine and return the exit code.

    Args:
        processes: number of processes; with GPUs, one per GPU.
        arguments: of the command line, without --gpus.
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
    before = signal.signal(signal.SIGUSR1, _forward)
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
    finally:
        signal.signal(signal.SIGUSR1, before)
    return 0


def _forward(number: int, frame: FrameType | None) -> None:
    """Send a signal to the processes of the run; Slurm sends SIGUSR1 to this process alone."""
    for children in Path("/proc/self/task").glob("*/children"):
        for process in children.read_text().split():
            if b"nnclr_hub.cli" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(int(process), number)
