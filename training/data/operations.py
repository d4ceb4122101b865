"""The operations of augmentation, eager or compiled, in one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .jitter import jitter_at_once, jitter_by_rows
from .pixel_ops import gaussian_blur, grayscale, resized_crop, solarize


@dataclass(frozen=True)
class Operations:
    """See the functions of these names; `jitter` takes its parameters on the CPU and may work in place."""

    resized_crop: Callable[[Tensor, Tensor, Tensor, int], Tensor] = resized_crop
    jitter: Callable[[Tensor, Tensor, Tensor], Tensor] = jitter_by_rows
    grayscale: Callable[[Tensor], Tensor] = grayscale
    solarize: Callable[[Tensor], Tensor] = solarize
    gaussian_blur: Callable[[Tensor, Tensor, int], Tensor] = gaussian_blur


EAGER = Operations()


def operations_for(where: torch.device, compile: bool) -> Operations:
    """Return compiled operations if they are wanted and the device supports them: a GPU since Volta, with Triton."""
    if compile and where.type == "cuda" and find_spec("triton") and torch.cuda.get_device_capability(where) >= (7, 0):
        return compiled()
    return EAGER


@cache
def compiled() -> Operations:
    """Return the same operations compiled into few kernels, for any number of images: it changes with every batch."""

    def fused(operation: Callable[..., Tensor]) -> Any:
        return torch.compile(operation, dynamic=True)

    at_once = fused(jitter_at_once)

    def jitter(images: Tensor, turns: Tensor, amounts: Tensor) -> Tensor:
        return at_once(images, *(one.to(images.device, non_blocking=True) for one in (turns, amounts)))

    return Operations(fused(_planar_crop), jitter, fused(grayscale), fused(solarize), fused(gaussian_blur))


def _planar_crop(images: Tensor, boxes: Tensor, flip: Tensor, out: int) -> Tensor:
    """Crop like `resized_crop`, with the memory layout (B, 3, H, W).

    torch fuses only loops of one shape. With any other layout, `jitter_at_once` would compile to twice as many passes.
    """
    return resized_crop(images, boxes, flip, out).contiguous()
