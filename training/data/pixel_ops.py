"""The operations of augmentation on a batch, with parameters given per picture.

Each equals torchvision's operation of the same name, picture by picture (the tests hold them to
it). Pictures are (B, 3, H, W) float32 in [0, 1]. Crops and blurs are products with small matrices,
one a picture: a resize, like a blur, is linear along each axis.
"""

from __future__ import annotations

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
    pixel = torch.arange(source, device=start.device)[None, None, :] + 0.5
    weight = _cubic((pixel - centre) / stretch)
    # what lies outside the box was cropped away before the resize
    inside = (pixel >= start[:, None, None]) & (pixel < (start + length)[:, None, None])
    weight = torch.where(inside, weight, 0.0)
    return weight / weight.sum(dim=2, keepdim=True)


def resized_crop(images: Tensor, boxes: Tensor, flip: Tensor, out: int) -> Tensor:
    """Crops a box of each picture, resizes it bicubically to out x out, and mirrors some.

    Args:
        images: (B, H, W, 3) uint8.
        boxes: (B, 4) float32: top, left, height, width in pixels of `images`, each side at least 1.
        flip: (B,) bool, mirror left to right.
        out: side of the result in pixels.

    Returns:
        (B, 3, out, out) float32 in [0, 1].
    """
    batch, height, width, channels = images.shape
    top, left, high, wide = boxes.unbind(1)
    rows = _resampling(top, high, height, out)  # (B, out, H)
    columns = _resampling(left, wide, width, out)  # (B, out, W)
    columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    pixels = images.reshape(batch, height, width * channels).float() / 255
    cut = torch.bmm(rows, pixels).reshape(batch, out, width, channels)  # (B, out, W, 3)
    cut = cut.permute(0, 3, 1, 2).reshape(batch, channels * out, width)
    return torch.bmm(cut, columns.transpose(1, 2)).reshape(batch, channels, out, out).clamp_(0, 1)


def grayscale(images: Tensor) -> Tensor:
    """Luma in all three channels: (B, 3, H, W)."""
    return _luma(images).expand_as(images)


def _luma(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue).unsqueeze(1)  # (B, 1, H, W)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    factor = factor[:, None, None, None]
    return (factor * images + (1 - factor) * other).clamp_(0, 1)


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
    value = images.amax(dim=1)
    chroma = value - images.amin(dim=1)
    safe = torch.where(chroma == 0, 1.0, chroma)
    sector = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sector = sector + 6 * shift[:, None, None]
    channels = []
    for offset in (5, 3, 1):  # of red, green and blue on the circle of six sectors
        k = (offset + sector) % 6
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, dim=1).clamp_(0, 1)


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
