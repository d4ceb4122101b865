"""What makes training on a CPU faster; docs/results/cpu_step.md has the measurements."""

from __future__ import annotations

import ctypes

from torch import nn

from .small_maps import use_products

# options of mallopt, from glibc's malloc.h
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def speed_up(network: nn.Module) -> None:
    """Set up the process and a network, in place, for training on a CPU; results stay equal up to rounding."""
    keep_freed_memory()
    use_products(network)
    use_plain_attention(network)


def use_plain_attention(network: nn.Module) -> None:
    """Let timm's attention multiply matrices instead of calling torch's fused attention.

    On a CPU, the backward pass of the fused one takes half of the step of a vision transformer. It saves memory, but
    the views of training have few patches.
    """
    for module in network.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False


def keep_freed_memory() -> None:
    """Let the process keep the memory of freed tensors for the next step.

    By default, glibc returns large blocks to the system when they are freed. The activations of each step then fill
    fresh pages, and writing the first byte of each page costs more than many of the operations. Does nothing where the
    C library has no such option.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return
    mallopt(MMAP_MAX, 0)
    mallopt(TRIM_THRESHOLD, 2**31 - 1)
    mallopt(TOP_PAD, 256 << 20)  # grow by this many bytes at once
