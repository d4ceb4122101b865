"""The operations of augmentation on a batch, with parameters given per image.

Each equals torchvision's operation of the same name for every RGB image; the tests compare them. Images are
(B, C, H, W) float32 in [0, 1]. With other numbers of channels than 3, gray is the mean of all channels, and hue does
not exist. Crops and blurs are products with small matrices, one per image, because a resize and
a blur are linear along each axis. The best memory layout is (B, H, 3, W): products along both axes then need no copy.
"""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601, rounded as torchvision does

Planes = tuple[Tensor, ...]  # the channels, (B, H, W) each


def _cubic(x: Tensor) -> Tensor:
    """Compute Keys' cubic kernel with a = -1/2, which Pillow and torchvision use with antialiasing."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _resampling(
    start: Tensor, length: Tensor, source: int, out: int, *, backwards: Tensor | None = None, total: float = 1.0
) -> Tensor:
    """Return matrices that resample [start, start + length) of `source` pixels to `out`, antialiased: (B, out, source).

    `backwards` (B,) bool mirrors some of them, and each row sums to `total`. Both are free here, and would otherwise
    cost a pass over the matrices.
    """
    scale = (length / out)[:, None, None]  # source pixels an output pixel
    stretch = scale.clamp(min=1.0)
    place = torch.arange(out, device=start.device)[None, :, None]
    if backwards is not None:
        place = torch.where(backwards[:, None, None], out - 1 - place, place)
    center = start[:, None, None] + (place + 0.5) * scale
    # the kernel is 0 beyond two stretched pixels, so only these columns of the matrix are computed. Their number uses
    # integers, because torch 2.11 compiles ceil(4 * max(1.0, source / out)) to too few
    taps = torch.arange(max(4, -(-4 * source // out)) + 1, device=start.device, dtype=torch.float32)
    pixel = (center - 2 * stretch).floor_() + taps  # (B, out, taps)
    weight = _cubic((pixel + 0.5 - center) / stretch)
    # pixels outside the box were cropped away before the resize
    end = start + length
    weight *= (pixel + 0.5 >= start[:, None, None]) & (pixel + 0.5 < end[:, None, None])
    weight *= total / weight.sum(dim=2, keepdim=True)
    matrix = weight.new_zeros(len(start), out, source)
    return matrix.scatter_add_(2, pixel.clamp_(0, source - 1).long(), weight)


def resized_crop(images: Tensor, boxes: Tensor, flip: Tensor, out: int) -> Tensor:
    """Crop a box of each image, resize it bicubically to out x out, and mirror some images.

    Args:
        images: (B, H, W, C) float32 in [0, 255]; copied unless its memory layout is (B, H, C, W).
        boxes: (B, 4) float32: top, left, height, width in pixels of `images`, each side at least 1.
        flip: (B,) bool, mirror left to right.
        out: side of the result in pixels.

    Returns:
        (B, C, out, out) float32 in [0, 1].
    """
    height, width = images.shape[1:3]
    top, left, high, wide = boxes.unbind(1)
    rows = _resampling(top, high, height, out, total=1 / 255)  # (B, out, H)
    columns = _resampling(left, wide, width, out, backwards=flip)  # (B, out, W)
    return products(images.permute(0, 3, 1, 2), rows, columns).clamp_(0, 1)


def products(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Compute rows @ image @ columns^T for each channel of each image.

    Args:
        images: (B, C, H, W); copied unless its memory layout is (B, H, C, W).
        rows: (B, h, H).
        columns: (B, w, W).

    Returns:
        (B, C, h, w) with the memory layout (B, h, C, w).
    """
    high, wide, colors = rows.shape[1], images.shape[3], images.shape[1]
    lines = torch.bmm(rows, images.transpose(1, 2).flatten(2))  # (B, h, 3 W)
    lines = torch.bmm(lines.view(len(lines), high * colors, wide), columns.mT)  # (B, h 3, w)
    return lines.unflatten(1, (high, colors)).transpose(1, 2)


def grayscale(images: Tensor) -> Tensor:
    """Return gray in all channels: (B, C, H, W), each with separate memory for later in-place operations."""
    return torch.empty_like(images).copy_(gray(images))


def gray(images: Tensor) -> Tensor:
    """Return gray: (B, 1, H, W)."""
    return luma(images.unbind(1)).unsqueeze(1)


def luma(planes: Planes) -> Tensor:
    """Return the brightness of all channels together, (B, H, W): luma of RGB, the mean of other channels."""
    if len(planes) != 3:
        return torch.stack(planes).mean(dim=0)
    red, green, blue = planes
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(other, images, factor[:, None, None, None]).clamp_(0, 1)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Scale towards black: factor (B,) >= 0; 1 changes nothing."""
    return (images * factor[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image's mean gray: factor (B,) >= 0."""
    return _blend(images, gray(images).mean(dim=(1, 2, 3), keepdim=True), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grayscale image: factor (B,) >= 0."""
    return _blend(images, gray(images), factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue by shift (B,) in [-0.5, 0.5] of the color circle; value and saturation stay the same."""
    return torch.stack(turn_hue(images.unbind(1), shift[:, None, None]), dim=2).transpose(1, 2)


def turn_hue(planes: Planes, shift: Tensor) -> Planes:
    """Rotate the hue of planes like `adjust_hue`, with the shift (B, 1, 1); nothing if they are not RGB."""
    if len(planes) != 3:
        return planes
    red, green, blue = planes
    value = torch.maximum(torch.maximum(red, green), blue)
    least = torch.minimum(torch.minimum(red, green), blue)
    chroma = value - least
    # sixths of the circle from red, for any brightest channel
    sector = torch.where(value == red, green - blue, torch.where(value == green, blue - red, red - green))
    sector = sector / torch.where(chroma == 0, 1.0, chroma)
    sector = sector + torch.where(value == red, 0.0, torch.where(value == green, 2.0, 4.0)) + 6 * shift
    sector = sector - 6 * (sector / 6).floor()
    shares = ((sector - 3).abs() - 1, 2 - (sector - 2).abs(), 2 - (sector - 4).abs())
    red, green, blue = ((share.clamp(0, 1) * chroma + least).clamp(0, 1) for share in shares)
    return red, green, blue


def solarize(images: Tensor, threshold: float = 0.5) -> Tensor:
    """Invert values of at least `threshold`."""
    return torch.where(images >= threshold, 1 - images, images)


def gaussian_blur(images: Tensor, sigma: Tensor, taps: int) -> Tensor:
    """Blur each image with its sigma (B,) in pixels, mirrored at the borders; `taps` is odd and below 2 H."""
    high, wide = images.shape[2:]
    rows = blur_matrix(sigma, taps, high)
    return products(images, rows, rows if high == wide else blur_matrix(sigma, taps, wide))


def blur_matrix(sigma: Tensor, taps: int, side: int, chosen: Tensor | None = None) -> Tensor:
    """Return (B, side, side): row i holds the taps around pixel i, with those beyond the border folded back.

    Args:
        sigma: (B,) in pixels.
        chosen: (B,) bool, images to blur; the others get the identity. None: all.
    """
    half = taps // 2
    offset = torch.arange(-half, half + 1, device=sigma.device)
    weight = torch.exp(-0.5 * (offset[None] / sigma[:, None]) ** 2)
    weight = weight / weight.sum(dim=1, keepdim=True)  # (B, taps)
    if chosen is not None:
        weight = torch.where(chosen[:, None], weight, (offset == 0).to(weight.dtype))
    source = torch.arange(side, device=sigma.device)[:, None] + offset[None]  # (side, taps)
    source = (side - 1) - ((side - 1) - source.abs()).abs()
    matrix = weight.new_zeros(len(weight), side, side)
    source = source.expand(len(weight), -1, -1)
    return matrix.scatter_add_(2, source, weight[:, None, :].expand_as(source))


# ------------------------------------------------------------------------------ color jitter
# Brightness, contrast, saturation and hue, in an order and by amounts sampled per image. `jitter_rows` selects the
# images that have an operation at a turn: the least work, and the fastest on a CPU. `jitter_all` computes every
# operation for every pixel and keeps what is needed, with the same shapes for any parameters.

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
