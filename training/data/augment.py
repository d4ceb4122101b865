"""Random views of each image of a batch, with every parameter sampled per image.

AUGMENTATIONS holds the two large views of each augmentation:

- `byol` is the pair that the paper adopts from BYOL: random crop and flip, color jitter in random order, grayscale,
  blur always in one view and rarely in the other, solarization in the other.
- `crop_only` is random crops alone ("Data Augmentation", section 4.4).
- `simclr` has stronger color jitter, and blurs each view half of the time.
- `cifar` is `byol` without blur, for images of 32 pixels.

Parameters are sampled on the CPU from one generator, so a run is the same on every device. The pixels are processed on
the device where they are. Parameters are sent with `non_blocking`; otherwise a GPU would wait at each of some forty
small copies per view.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from .degrade import degrade
from .operations import EAGER, Operations

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LEAST = 2.0  # minimum side of a crop in pixels of the squashed image
ATTEMPTS = 10  # to sample a crop that fits, before a central crop is used


@dataclass(frozen=True)
class View:
    """Parameters of one view; probabilities are in [0, 1].

    size: side of the result in pixels.
    scale: share of the image's area that a crop covers.
    ratio: its width / height.
    brightness, contrast, saturation: the factor is sampled from [1 - x, 1 + x], but not below 0.
    hue: the shift is sampled from [-x, x].
    sigma: of the blur in pixels; the length of its kernel depends on the size, see `blur_taps`.
    degrade: probability of shrinking and compressing first, see `degrade`.
    mean, std: for normalizing the finished view, of values in [0, 1].
    """

    size: int = 224
    scale: tuple[float, ...] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1
    gray: float = 0.2
    blur: float = 1.0
    sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0
    degrade: float = 0.0
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD


_CROP = View(flip=0.0, jitter=0.0, gray=0.0, blur=0.0)
_SIMCLR = View(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, blur=0.5)

AUGMENTATIONS: dict[str, tuple[View, View]] = {
    "byol": (View(), View(blur=0.1, solarize=0.2)),
    "crop_only": (_CROP, _CROP),
    "simclr": (_SIMCLR, _SIMCLR),
    "cifar": (View(blur=0.0), View(blur=0.0, solarize=0.2)),
}


def make_views(
    images: Tensor, aspect: Tensor, views: Sequence[View], generator: Generator, operations: Operations = EAGER
) -> list[Tensor]:
    """Make the views of a batch of images, in order; see `make_view`."""
    pixels = _in_lines(images)
    return [make_view(pixels, aspect, view, generator, operations) for view in views]


def blur_taps(size: int) -> int:
    """Return the length of the blur kernel: 23 at 224 pixels, the odd number nearest to that share at other sizes."""
    return max(3, 2 * round((23 * size / 224 - 1) / 2) + 1)


def make_view(
    images: Tensor, aspect: Tensor, view: View, generator: Generator, operations: Operations = EAGER
) -> Tensor:
    """Make one view of each image.

    Args:
        images: (B, S, S, 3) uint8 or float in [0, 255], squashed squares.
        aspect: (B,) float32, width / height of the originals, on the CPU.
        generator: on the CPU; the source of all random numbers.

    Returns:
        (B, 3, view.size, view.size) float32, normalized, channels last.
    """
    batch, device = len(images), images.device
    # in a squashed image of extreme proportions a crop may have no pixels, hence the minimum side
    boxes = _at_least(LEAST, draw_boxes(aspect, view, generator) * images.shape[1], images.shape[1])
    flip = torch.rand(batch, generator=generator) < view.flip
    boxes, flip = (one.to(device, non_blocking=True) for one in (boxes, flip))
    x = operations.resized_crop(_in_lines(images), boxes, flip, view.size)
    degrade(x, view.degrade, generator)
    x = _jitter(x, view, generator, operations)
    x = _some(x, view.gray, lambda some, _: operations.grayscale(some), generator)
    sigma = torch.empty(batch).uniform_(*view.sigma, generator=generator).to(device, non_blocking=True)
    taps = blur_taps(view.size)
    x = _some(x, view.blur, lambda some, rows: operations.gaussian_blur(some, sigma[rows], taps), generator)
    x = _some(x, view.solarize, lambda some, _: operations.solarize(some), generator)
    return _normalize(x, view)


def _in_lines(images: Tensor) -> Tensor:
    """Convert (B, S, S, 3) to float32 with the memory layout (B, S, 3, S), once for all views, as `products` needs."""
    # `to` copies uint8 images; for float32 images it does nothing, and `contiguous` copies them
    lines = images.transpose(2, 3).to(torch.float32, memory_format=torch.contiguous_format).contiguous()
    return lines.transpose(2, 3)


def _normalize(x: Tensor, view: View) -> Tensor:
    """Normalize with the view's mean and standard deviation, and write channels last in the same pass."""
    colors = (torch.tensor(v).to(x.device, non_blocking=True) for v in (view.mean, view.std))
    mean, std = (one[:, None, None] for one in colors)
    return torch.addcmul(-mean / std, x, 1 / std, out=torch.empty_like(x, memory_format=torch.channels_last))


def _at_least(side: float, boxes: Tensor, size: int) -> Tensor:
    """Enlarge boxes to a minimum side within an image of `size` pixels."""
    length = boxes[:, 2:].clamp(min=side)
    return torch.cat([torch.minimum(boxes[:, :2], size - length), length], dim=1)


def draw_boxes(aspect: Tensor, view: View, generator: Generator) -> Tensor:
    """Sample random crops like torchvision: uniform area, log-uniform ratio, ten attempts, then a central crop.

    Returns:
        (B, 4) float32: top, left, height, width as shares of the image's height and width.
    """
    batch = len(aspect)
    wide, high = aspect[:, None], torch.ones(batch, 1)  # the image, in units of its height
    area = torch.empty(batch, ATTEMPTS).uniform_(*view.scale, generator=generator) * wide * high
    log_ratio = torch.empty(batch, ATTEMPTS).uniform_(*(math.log(r) for r in view.ratio), generator=generator)
    w, h = (area * log_ratio.exp()).sqrt(), (area / log_ratio.exp()).sqrt()  # (B, ATTEMPTS)
    fits = (w <= wide) & (h <= high)
    first = fits.int().argmax(dim=1, keepdim=True)
    nearest_ratio = aspect.clamp(*view.ratio)
    some = fits.any(dim=1)
    w = torch.where(some, w.gather(1, first)[:, 0], torch.minimum(aspect, nearest_ratio))
    h = torch.where(some, h.gather(1, first)[:, 0], torch.minimum(aspect / nearest_ratio, torch.ones(batch)))
    place = torch.where(some[:, None], torch.rand(batch, 2, generator=generator), 0.5)
    top, left = (1 - h) * place[:, 0], (aspect - w) * place[:, 1]
    return torch.stack([top, left / aspect, h, w / aspect], dim=1)


def _some(x: Tensor, probability: float, operation: Callable[[Tensor, Tensor], Tensor], generator: Generator) -> Tensor:
    """Apply operation(images, their rows) to images chosen with a probability; in place unless all are chosen."""
    rows = (torch.rand(len(x), generator=generator) < probability).nonzero().squeeze(1)
    on_device = rows.to(x.device, non_blocking=True)
    if len(rows) == len(x):
        return operation(x, on_device)
    if len(rows):
        x[on_device] = operation(x[on_device], on_device)
    return x


def _jitter(x: Tensor, view: View, generator: Generator, operations: Operations) -> Tensor:
    """Apply color jitter: four operations in an order sampled per image."""
    batch = len(x)
    chosen = torch.rand(batch, generator=generator) < view.jitter
    order = torch.rand(batch, 4, generator=generator).argsort(dim=1)
    spread = torch.tensor([view.brightness, view.contrast, view.saturation, view.hue])
    amounts = (torch.rand(batch, 4, generator=generator) * 2 - 1) * spread
    amounts[:, :3] = (amounts[:, :3] + 1).clamp_(min=0)
    if not chosen.any():
        return x
    return operations.jitter(x, torch.where(chosen[:, None], order.argsort(dim=1), -1), amounts)
