"""Set up the CPU's part of training: docs/results/cpu_step.md and docs/gpu.md have the measurements."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

THREADS_NEXT_TO_A_GPU = 4

# options of mallopt, from glibc's malloc.h
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def cpu_features() -> Mapping[str, Any]:
    """Return what this CPU can compute, such as amx_bf16; empty in versions of torch that do not know."""
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


def keep_freed_memory() -> None:
    """Let the process keep the memory of freed tensors for the next step, until it ends.

    By default, glibc returns large blocks to the system when they are freed. The activations of each step then fill
    fresh pages, and writing the first byte of each page costs more than many of the operations. Does nothing where the
    C library has no such option.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return
    mallopt(MMAP_MAX, 0)
    mallopt(TRIM_THRESHOLD, -1)  # never
    mallopt(TOP_PAD, 256 << 20)  # grow by this many bytes at once


def use_few_threads() -> None:
    """Let torch use at most THREADS_NEXT_TO_A_GPU threads on the CPU, for a run whose network is on a GPU.

    Such a step computes only small tensors on the CPU, for which waiting threads keep cores busy: on 16 cores, two runs
    with 16 threads each next to a few other processes were more than ten times as slow. The number stays after the run.
    """
    torch.set_num_threads(min(torch.get_num_threads(), THREADS_NEXT_TO_A_GPU))


def use_plain_attention(network: nn.Module) -> None:
    """Let timm's attention multiply matrices instead of calling torch's fused attention.

    On a CPU, the backward pass of the fused one takes half of the step of a ViT-Ti. The plain one stores its weights:
    batch x heads x patches x patches numbers in each layer, which `chunk` reduces.
    """
    for module in network.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # type: ignore[assignment]
