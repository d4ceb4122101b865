"""Set up the CPU's part of training: docs/results/cpu_step.md and docs/gpu.md have the measurements.

Convolutions of small feature maps are computed as matrix products on a CPU. oneDNN's convolutions multiply rows of a
feature map. The last stage of a ResNet has maps of 2 x 2 pixels for views of 64, and rows of 2 leave most of a vector
register or AMX tile empty: a quarter of the operations then take more than half of the time. A matrix product over all
pixels of the batch has long rows again. The pixels under each kernel are copied for it, which pays only while maps are
small (docs/results/cpu_step.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

THREADS_NEXT_TO_A_GPU = 4
WIDE = 512  # output channels of a convolution that is slow on larger maps too
# "training" in a checkout, "nnclr_hub_training" where `nnclr` loads the program. A process can load both, and torch
# frees an operation that is defined again under the same name, while the first module still calls it
NAMESPACE = str(__package__).replace(".", "_")

# options of mallopt, from glibc's malloc.h
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def cpu_features() -> Mapping[str, Any]:
    """Return what this CPU can compute, such as amx_bf16; empty in versions of torch that do not know."""
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


def choose_precision(precision: str, where: torch.device) -> str:
    """Return bf16 where the hardware multiplies it, fp16 on other GPUs, and fp32 on other CPUs."""
    if precision != "auto":
        return precision
    if where.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    features = cpu_features()
    return "bf16" if features.get("avx512_bf16") or features.get("amx_bf16") else "fp32"


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


# ------------------------------------------------------------------------------ small feature maps


@dataclass(frozen=True)
class Limits:
    """Sides of the largest output maps, in pixels, for which matrix products are faster; measured.

    wide: in a convolution with at least WIDE output channels, for the output and both gradients.
    narrow: the same in other convolutions.
    weights: in any convolution, for the gradient of the weights.
    """

    wide: int
    narrow: int
    weights: int


FP32, BF16, AMX = Limits(4, 2, 3), Limits(0, 0, 3), Limits(4, 2, 6)


class SmallMapConv2d(nn.Conv2d):
    """A convolution that is a matrix product where its output is small; with the same weights, and equal results."""

    in_bf16 = BF16  # limits of this machine

    def forward(self, input: Tensor) -> Tensor:
        """Return the (B, O, h, w) output of a (B, C, H, W) input, in the precision of autocast if it is on."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        limits = self.in_bf16 if dtype == torch.bfloat16 else FP32
        stride, padding, kernel = int(self.stride[0]), int(self.padding[0]), self.kernel_size[0]
        side = (max(input.shape[2:]) + 2 * padding - kernel) // stride + 1  # side of the output
        product = side <= (limits.wide if self.out_channels >= WIDE else limits.narrow)
        weights = product or side <= limits.weights
        if not weights or input.ndim == 3:
            return super().forward(input)
        return convolve(input.to(dtype), self.weight.to(dtype), stride, padding, product)


def use_products(network: nn.Module) -> None:
    """Replace the convolutions of a network, in place, by ones that are matrix products on small maps."""
    SmallMapConv2d.in_bf16 = AMX if cpu_features().get("amx_bf16") else BF16
    for module in network.modules():
        if type(module) is nn.Conv2d and _fits(module):
            module.__class__ = SmallMapConv2d
            if module.kernel_size == (1, 1) and module.weight.requires_grad:
                module.weight.register_hook(partial(_as_strides_of, module.weight.stride()))


def _as_strides_of(stride: tuple[int, ...], grad: Tensor) -> Tensor:
    """Return the gradient of a 1 x 1 kernel with the strides of the kernel, which DDP expects.

    The order in memory is the same, but a sum of gradients may have other strides in its dimensions of length 1.
    """
    return grad.as_strided(grad.shape, stride) if grad.is_contiguous() else grad


def _fits(module: nn.Conv2d) -> bool:
    square = all(len(set(pair)) == 1 for pair in (module.kernel_size, module.stride, module.padding))
    simple = module.groups == 1 and module.bias is None and module.padding_mode == "zeros"
    return square and simple and not isinstance(module.padding, str) and set(module.dilation) == {1}


# ---- the operation and its gradients; torch.compile calls them as they are


@torch.library.custom_op(f"{NAMESPACE}::convolve", mutates_args=())
def convolve(x: Tensor, weight: Tensor, stride: int, padding: int, product: bool) -> Tensor:
    """Convolve (B, C, H, W) with (O, C, k, k): (B, O, h, w). The gradient of the weights is a matrix product.

    product: whether the output and the gradient of x are matrix products, too.
    """
    if not product:
        return F.conv2d(x, weight, None, stride, padding).contiguous(memory_format=torch.channels_last)
    columns, (h, w) = _columns(x, weight.shape[2], stride, padding)
    return (columns @ _rows(weight).t()).view(len(x), h, w, -1).permute(0, 3, 1, 2)


@convolve.register_fake
def _(x: Tensor, weight: Tensor, stride: int, padding: int, product: bool) -> Tensor:
    return F.conv2d(x, weight, None, stride, padding).contiguous(memory_format=torch.channels_last)


@torch.library.custom_op(f"{NAMESPACE}::convolve_backward", mutates_args=())
def convolve_backward(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, product: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the weights."""
    k = weight.shape[2]
    flat = grad.permute(0, 2, 3, 1).reshape(-1, grad.shape[1])  # (B h w, O)
    columns, _ = _columns(x, k, stride, padding)
    of_weight = (flat.t() @ columns).view(len(weight), k, k, -1).permute(0, 3, 1, 2)
    if product:
        of_x = _sum_columns(flat @ _rows(weight), x.shape, grad.shape[2:], k, stride, padding)
    else:
        of_x = torch.ops.aten.convolution_backward(
            grad, x, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [True, False, False]
        )[0].contiguous(memory_format=torch.channels_last)
    return of_x, of_weight


@convolve_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, product: bool) -> tuple[Tensor, Tensor]:
    of_x, of_weight = (torch.empty_like(one, memory_format=torch.channels_last) for one in (x, weight))
    return of_x, of_weight


def _save(ctx, inputs, output) -> None:
    x, weight, *ctx.how = inputs
    ctx.save_for_backward(x, weight)


def _gradients(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (*convolve_backward(grad, *ctx.saved_tensors, *ctx.how), None, None, None)


convolve.register_autograd(_gradients, setup_context=_save)


def _rows(weight: Tensor) -> Tensor:
    return weight.permute(0, 2, 3, 1).reshape(len(weight), -1)


def _columns(x: Tensor, k: int, stride: int, padding: int) -> tuple[Tensor, tuple[int, int]]:
    """Copy the pixels under the kernel at each place: (B h w, k k C), and (h, w)."""
    x = F.pad(x.permute(0, 2, 3, 1), (0, 0, *(padding,) * 4))
    windows = x.unfold(1, k, stride).unfold(2, k, stride)  # (B, h, w, C, k, k)
    return windows.permute(0, 1, 2, 4, 5, 3).reshape(-1, k * k * x.shape[3]), (windows.shape[1], windows.shape[2])


def _sum_columns(columns: Tensor, shape: torch.Size, out: torch.Size, k: int, stride: int, padding: int) -> Tensor:
    """Add each of (B h w, k k C) columns to its pixel of an image of this shape (B, C, H, W)."""
    batch, channels, height, width = shape
    h, w = out
    columns = columns.view(batch, h, w, k, k, channels)
    # a sum of up to k k numbers, in float32 like those inside a convolution
    dtype = torch.promote_types(columns.dtype, torch.float32)
    image = columns.new_zeros(batch, height + 2 * padding, width + 2 * padding, channels, dtype=dtype)
    for i in range(k):
        for j in range(k):
            image[:, i : i + stride * h : stride, j : j + stride * w : stride] += columns[:, :, :, i, j]
    inner = image[:, padding : padding + height, padding : padding + width].to(columns.dtype)
    return inner.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
