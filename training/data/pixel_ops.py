"""The operations of augmentation on a batch, with parameters given per picture.

Each equals torchvision's operation of the same name, picture by picture (the tests hold them to
it). Pictures are (B, 3, H, W) float32 in [0, 1]. Crops and blurs are products with small matrices,
one a picture: a resize, like a blur, is linear along each axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601, rounded as torchvision does


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic kernel with a = -1/2, which Pillow and torchvision use when they antialias."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _resampling(start: Tensor, length: Tensor, source: int, out: int) -> Tensor:
    """Matrices that resample [start, start + length) of `source` pixels to `out`, antialiased: (B, out, source)."""
    scale = (length / out)[:, None, None]  # source pixels an output pixel
    stretch = scale.clamp(min=1.0)
    centre = start[:, None, None] + (torch.arange(out, device=start.device)[None, :, None] + 0.5) * scale
    # the kernel is 0 beyond two stretched pixels, so only these columns of the matrix are computed; how many, in whole
    # numbers, for torch 2.11 compiles ceil(4 * max(1.0, source / out)) to too few
    taps = torch.arange(max(4, -(-4 * source // out)) + 1, device=start.device, dtype=torch.float32)
    pixel = (centre - 2 * stretch).floor_() + taps  # (B, out, taps)
    weight = _cubic((pixel + 0.5 - centre) / stretch)
    # what lies outside the box was cropped away before the resize
    end = start + length
    weight *= (pixel + 0.5 >= start[:, None, None]) & (pixel + 0.5 < end[:, None, None])
    weight /= weight.sum(dim=2, keepdim=True)
    matrix = weight.new_zeros(len(start), out, source)
    return matrix.scatter_add_(2, pixel.clamp_(0, source - 1).long(), weight)


def resized_crop(images: Tensor, boxes: Tensor, flip: Tensor, out: int) -> Tensor:
    """Crops a box of each picture, resizes it bicubically to out x out, and mirrors some.

    Args:
        images: (B, H, W, 3) float32 in [0, 255].
        boxes: (B, 4) float32: top, left, height, width in pixels of `images`, each side at least 1.
        flip: (B,) bool, mirror left to right.
        out: side of the result in pixels.

    Returns:
        (B, 3, out, out) float32 in [0, 1].
    """
    _, height, width, channels = images.shape
    top, left, high, wide = boxes.unbind(1)
    rows = _resampling(top, high, height, out).div_(255)  # (B, out, H)
    columns = _resampling(left, wide, width, out)  # (B, out, W)
    columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    cut = torch.bmm(rows, images.flatten(2))  # (B, out, W * 3)
    cut = cut.unflatten(2, (width, channels)).permute(0, 3, 1, 2).flatten(1, 2)  # (B, 3 * out, W)
    return torch.bmm(cut, columns.mT).unflatten(1, (channels, out)).clamp_(0, 1)


def grayscale(images: Tensor) -> Tensor:
    """Luma in all three channels: (B, 3, H, W)."""
    return _luma(images).expand_as(images)


def _luma(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue).unsqueeze(1)  # (B, 1, H, W)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(other, images, factor[:, None, None, None]).clamp_(0, 1)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Towards black: factor (B,) >= 0, 1 leaves as is."""
    return (images * factor[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Towards the picture's mean grey: factor (B,) >= 0."""
    return _blend(images, _luma(images).mean(dim=(1, 2, 3), keepdim=True), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Towards its own greys: factor (B,) >= 0."""
    return _blend(images, _luma(images), factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turns the hue by shift (B,) in [-0.5, 0.5] of the colour circle, at the same value and saturation."""
    red, green, blue = images.unbind(1)
    value, least = images.amax(dim=1), images.amin(dim=1)
    chroma = value - least
    safe = torch.where(chroma == 0, 1.0, chroma)
    # sixths of the circle from red, whichever channel is the brightest
    sector = torch.where(value == red, green - blue, torch.where(value == green, blue - red, red - green)).div_(safe)
    sector.add_(torch.where(value == red, 0.0, torch.where(value == green, 2.0, 4.0)))
    sector.add_(6 * shift[:, None, None])
    sector.sub_(6 * (sector / 6).floor_())
    turned = torch.empty_like(images)
    turned[:, 0] = (sector - 3).abs_().sub_(1)
    turned[:, 1] = 2 - (sector - 2).abs_()
    turned[:, 2] = 2 - (sector - 4).abs_()
    return turned.clamp_(0, 1).mul_(chroma[:, None]).add_(least[:, None]).clamp_(0, 1)


def solarize(images: Tensor, threshold: float = 0.5) -> Tensor:
    """Inverts what is at least `threshold` bright."""
    return torch.where(images >= threshold, 1 - images, images)


def gaussian_blur(images: Tensor, sigma: Tensor, taps: int) -> Tensor:
    """Blurs each picture with its own sigma (B,) in pixels, mirrored at the borders; `taps` is odd and below 2 H."""
    half = taps // 2
    offset = torch.arange(-half, half + 1, device=images.device)
    weight = torch.exp(-0.5 * (offset[None] / sigma[:, None]) ** 2)
    weight = weight / weight.sum(dim=1, keepdim=True)  # (B, taps)
    rows = _blur_matrix(weight, offset, images.shape[2])
    columns = _blur_matrix(weight, offset, images.shape[3])
    return rows[:, None] @ images @ columns[:, None].transpose(2, 3)


def _blur_matrix(weight: Tensor, offset: Tensor, side: int) -> Tensor:
    """(B, side, side): row i holds the taps around pixel i, those beyond the border folded back."""
    source = torch.arange(side, device=weight.device)[:, None] + offset[None]  # (side, taps)
    source = (side - 1) - ((side - 1) - source.abs()).abs()
    matrix = weight.new_zeros(len(weight), side, side)
    source = source.expand(len(weight), -1, -1)
    return matrix.scatter_add_(2, source, weight[:, None, :].expand_as(source))


@dataclass(frozen=True)
class Operations:
    """The operations under one name each, eager or compiled."""

    resized_crop: Callable[[Tensor, Tensor, Tensor, int], Tensor] = resized_crop
    brightness: Callable[[Tensor, Tensor], Tensor] = adjust_brightness
    contrast: Callable[[Tensor, Tensor], Tensor] = adjust_contrast
    saturation: Callable[[Tensor, Tensor], Tensor] = adjust_saturation
    hue: Callable[[Tensor, Tensor], Tensor] = adjust_hue
    grayscale: Callable[[Tensor], Tensor] = grayscale
    solarize: Callable[[Tensor], Tensor] = solarize
    gaussian_blur: Callable[[Tensor, Tensor, int], Tensor] = gaussian_blur


EAGER = Operations()


@cache
def compiled() -> Operations:
    """The same operations, each fused into few kernels; for any number of pictures, as every batch picks others."""
    return Operations(*(torch.compile(getattr(EAGER, one.name), dynamic=True) for one in fields(Operations)))
