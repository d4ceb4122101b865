"""Color jitter: brightness, contrast, saturation and hue, in an order and by amounts sampled per image.

Two implementations compute the same images. `jitter_rows` selects the images that have an operation at a turn,
processes them and writes them back. This is the least work, and the fastest on a CPU. `jitter_all` computes every
operation for every pixel and keeps what is needed, with the same shapes for any parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .pixel_ops import Planes, adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation, luma, turn_hue

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
BY_ROWS = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)  # by number


def jitter_rows(images: Tensor, turns: Tensor, amounts: Tensor) -> Tensor:
    """Apply color jitter in place.

    Args:
        images: (B, C, H, W) float32 in [0, 1].
        turns: (B, 4) int64, the turn from 0 to 3 of each operation; -1 for an image without jitter.
        amounts: (B, 4) float32, of each operation.

    Returns:
        `images`.
    """
    for turn in range(len(BY_ROWS)):
        for number, operation in enumerate(BY_ROWS):
            rows = (turns[:, number] == turn).nonzero().squeeze(1)
            if len(rows):
                images[rows] = operation(images[rows], amounts[rows, number])
    return images


def jitter_all(images: Tensor, turns: Tensor, amounts: Tensor) -> Tensor:
    """Apply color jitter like `jitter_rows`, with all arguments on one device, and not in place.

    Contrast needs the mean of the whole image at its turn, so there is one pass before it and one pass after it.

    Returns:
        (B, C, H, W) float32, contiguous.
    """
    at, by = (one.T[..., None, None] for one in (turns, amounts))  # (4, B, 1, 1)
    planes: Planes = images.unbind(1)
    planes = _all_but_contrast(planes, at, by, at < at[CONTRAST])
    mean = luma(planes).mean(dim=(1, 2), keepdim=True)
    planes = _where(at[CONTRAST] >= 0, _blended(planes, mean, by[CONTRAST]), planes)
    planes = _all_but_contrast(planes, at, by, at > at[CONTRAST])
    return torch.stack(planes, dim=1)


def _all_but_contrast(planes: Planes, at: Tensor, by: Tensor, wanted: Tensor) -> Planes:
    """Apply the other three operations where `wanted`, (4, B, 1, 1) bool. Hue is the most expensive: computed once."""
    planes = _brightness_and_saturation(planes, at, by, wanted & (at < at[HUE]))
    planes = _where(wanted[HUE], turn_hue(planes, by[HUE]), planes)
    return _brightness_and_saturation(planes, at, by, wanted & (at > at[HUE]))


def _brightness_and_saturation(planes: Planes, at: Tensor, by: Tensor, wanted: Tensor) -> Planes:
    first = at[BRIGHTNESS] < at[SATURATION]
    planes = _where(wanted[BRIGHTNESS] & first, _scaled(planes, by[BRIGHTNESS]), planes)
    planes = _where(wanted[SATURATION], _blended(planes, luma(planes), by[SATURATION]), planes)
    return _where(wanted[BRIGHTNESS] & ~first, _scaled(planes, by[BRIGHTNESS]), planes)


def _scaled(planes: Planes, factor: Tensor) -> Planes:
    return tuple((plane * factor).clamp(0, 1) for plane in planes)


def _blended(planes: Planes, other: Tensor, factor: Tensor) -> Planes:
    return tuple(torch.lerp(other.expand_as(plane), plane, factor).clamp(0, 1) for plane in planes)


def _where(condition: Tensor, new: Planes, old: Planes) -> Planes:
    return tuple(torch.where(condition, *pair) for pair in zip(new, old, strict=True))
