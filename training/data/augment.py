"""Random views of each image of a batch, with every parameter sampled per image.

Images of other channels than RGB have the same views. Gray, of contrast, saturation and grayscale, is then the mean of
all channels, and the hue stays; brightness, solarization, crops and blur work on each value as before.

A view of an image is a function of NUMBERS uniform random numbers. They are sampled on the CPU for the whole batch of
a step, and each process uses its rows: a run has the same views on every device and for every number of processes. The
pixels are processed on the device where they are. Parameters are sent with `non_blocking`; otherwise a GPU would wait
at each of some forty small copies per view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from .crop_boxes import CROP_NUMBERS, crop_boxes
from .degrade import DEGRADE_NUMBERS, degrade
from .operations import EAGER, Operations
from .views import View

LEAST = 2.0  # minimum side of a crop in pixels of a stored copy
# columns of the random numbers of a view; the first ones are those of the crop
FLIP, JITTER, GRAY, SIGMA, BLUR, SOLARIZE, OWN = range(CROP_NUMBERS, CROP_NUMBERS + 7)
ORDER, AMOUNTS = slice(OWN + 1, OWN + 5), slice(OWN + 5, OWN + 9)
SATURATION_AND_HUE = slice(OWN + 7, OWN + 9)  # of the amounts
DEGRADE = slice(OWN + 9, OWN + 9 + DEGRADE_NUMBERS)
NUMBERS = DEGRADE.stop


class Pixels(Protocol):
    """The images of a batch, from which views are cut, or cut views.

    sizes: (B, 2) height and width of the originals.
    """

    @property
    def sizes(self) -> np.ndarray: ...

    def __len__(self) -> int: ...

    def part(self, start: int, end: int) -> Pixels:
        """Return the images from `start` to `end`."""
        ...

    def crop(self, number: int, view: View, numbers: Tensor, operations: Operations) -> Tensor:
        """Return the crops of a view, given by its number: (B, C, S, S) float32 in [0, 1], mirrored by `numbers`."""
        ...


@dataclass(frozen=True)
class StoredImages:
    """Copies of the images in memory; the device cuts the views.

    images: (B, H, W, C) uint8 or float in [0, 255].
    filled: (B, 2) height and width of the part of `images` with the copy, at the top left.
    sizes: (B, 2) height and width of the originals, whose coordinates the crops have.
    """

    images: Tensor
    filled: np.ndarray
    sizes: np.ndarray

    @classmethod
    def whole(cls, images: Tensor, aspect: Tensor) -> StoredImages:
        """Return images (B, H, W, C) that fill the array, squashed from originals of an aspect (B,) width / height."""
        high, wide = images.shape[1:3]
        sizes = np.stack([np.full(len(aspect), float(high)), high * aspect.double().numpy()], axis=1)
        scale = np.maximum(1.0, wide / sizes[:, 1:])  # no side below one pixel
        return cls(images, np.broadcast_to(np.array([high, wide], np.float64), sizes.shape), sizes * scale)

    def __len__(self) -> int:
        return len(self.images)

    def part(self, start: int, end: int) -> StoredImages:
        return StoredImages(self.images[start:end], self.filled[start:end], self.sizes[start:end])

    def in_lines(self) -> StoredImages:
        """Return float32 images with the memory layout (B, H, C, W), converted once for all views."""
        return StoredImages(_in_lines(self.images), self.filled, self.sizes)

    def crop(self, number: int, view: View, numbers: Tensor, operations: Operations) -> Tensor:
        boxes = crop_boxes(self.sizes, np.array(view.scale), np.array(view.ratio), numbers.numpy()[:, :CROP_NUMBERS])
        boxes *= np.tile(self.filled / self.sizes, 2)
        # in a copy of extreme proportions a crop may have no pixels, hence the minimum side
        length = np.minimum(self.filled, np.maximum(LEAST, boxes[:, 2:]))
        boxes = np.concatenate([np.maximum(0, np.minimum(boxes[:, :2], self.filled - length)), length], axis=1)
        device = self.images.device
        flip = numbers[:, FLIP] < view.flip
        on_device, flip = (
            one.to(device, non_blocking=True) for one in (torch.from_numpy(boxes.astype(np.float32)), flip)
        )
        return operations.resized_crop(_in_lines(self.images), on_device, flip, view.size)


@dataclass(frozen=True)
class CutViews:
    """Crops that decoding processes cut from the originals.

    crops: one (B, S, S, C) uint8 for each view, on the device, mirrored already.
    sizes: (B, 2) height and width of the originals.
    """

    crops: tuple[Tensor, ...]
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.crops[0])

    def part(self, start: int, end: int) -> CutViews:
        return CutViews(tuple(one[start:end] for one in self.crops), self.sizes[start:end])

    def crop(self, number: int, view: View, numbers: Tensor, operations: Operations) -> Tensor:
        return _in_lines(self.crops[number]).permute(0, 3, 1, 2).div_(255)  # a copy, since the crops are uint8


def sample_numbers(views: int, batch: int, generator: Generator) -> Tensor:
    """Sample the random numbers of a batch: (views, batch, NUMBERS) float32 in [0, 1)."""
    return torch.rand(views, batch, NUMBERS, generator=generator)


def make_views(
    pixels: Pixels, views: Sequence[View], numbers: Tensor, operations: Operations = EAGER, at_once: int = 0
) -> list[Tensor]:
    """Make the views of a batch of images, in order.

    Args:
        numbers: (V, B, NUMBERS) on the CPU; see `sample_numbers`.
        at_once: images to process at a time, to save memory; 0: all.

    Returns:
        (B, C, view.size, view.size) float32 for each view, normalized, channels last.
    """
    if 0 < at_once < len(pixels):
        return _make_in_parts(pixels, views, numbers, operations, at_once)
    if isinstance(pixels, StoredImages):
        pixels = pixels.in_lines()
    made: dict[int, Tensor] = {}
    for places in _groups(views):
        view = views[places[0]]
        crops = [pixels.crop(place, view, numbers[place], operations) for place in places]
        x = torch.cat(crops) if len(crops) > 1 else crops[0]
        finished = _finish(x, view, numbers[places].flatten(0, 1), operations)
        made.update(zip(places, finished.chunk(len(places)), strict=True))
    return [made[place] for place in range(len(views))]


def _groups(views: Sequence[View]) -> list[list[int]]:
    """Return the places of the views that are made together.

    Those are equal small views, which would start many kernels for little work. Large ones would need more memory.
    """
    groups: dict[object, list[int]] = {}
    for place, view in enumerate(views):
        is_small = view.size < views[0].size and view.operation is None
        groups.setdefault(view if is_small else place, []).append(place)
    return list(groups.values())


def _make_in_parts(
    pixels: Pixels, views: Sequence[View], numbers: Tensor, operations: Operations, at_once: int
) -> list[Tensor]:
    whole: list[Tensor] = []
    for start in range(0, len(pixels), at_once):
        end = min(start + at_once, len(pixels))
        parts = make_views(pixels.part(start, end), views, numbers[:, start:end], operations)
        if not whole:
            shapes = [(len(pixels), *part.shape[1:]) for part in parts]
            form = {"device": parts[0].device, "memory_format": torch.channels_last}
            whole = [torch.empty(shape, **form) for shape in shapes]  # type: ignore[call-overload]
        for all_images, part in zip(whole, parts, strict=True):
            all_images[start:end] = part
    return whole


def make_view(
    images: Tensor, aspect: Tensor, view: View, generator: Generator, operations: Operations = EAGER
) -> Tensor:
    """Make one view of each image of (B, H, W, C), which are squashed copies of originals of an aspect (B,)."""
    numbers = sample_numbers(1, len(images), generator)
    return make_views(StoredImages.whole(images, aspect), [view], numbers, operations)[0]


def blur_taps(size: int) -> int:
    """Return the length of the blur kernel: 23 at 224 pixels, the odd number nearest to that share at other sizes."""
    return max(3, 2 * round((23 * size / 224 - 1) / 2) + 1)


def _finish(x: Tensor, view: View, numbers: Tensor, operations: Operations) -> Tensor:
    """Change colors and sharpness of crops (B, C, S, S), and normalize them; `x` may be overwritten."""
    device = x.device
    degrade(x, view.degrade, numbers[:, DEGRADE])
    x = _jitter(x, view, numbers, operations)
    x = _some(x, numbers[:, GRAY] < view.gray, lambda some, _: operations.grayscale(some))
    least, most = view.sigma
    sigma = (least + (most - least) * numbers[:, SIGMA]).to(device, non_blocking=True)
    taps = blur_taps(view.size)
    x = _some(x, numbers[:, BLUR] < view.blur, lambda some, rows: operations.gaussian_blur(some, sigma[rows], taps))
    x = _some(x, numbers[:, SOLARIZE] < view.solarize, lambda some, _: operations.solarize(some))
    if view.operation is not None:
        own = Generator().manual_seed(int(numbers[0, OWN].double() * 2**24))
        x = view.operation(x, own)
    return _normalize(x, view)


def _in_lines(images: Tensor) -> Tensor:
    """Convert (B, S, S, C) to float32 with the memory layout (B, S, C, S), once for all views, as `products` needs."""
    # `to` copies uint8 images; for float32 images it does nothing, and `contiguous` copies them
    lines = images.transpose(2, 3).to(torch.float32, memory_format=torch.contiguous_format).contiguous()
    return lines.transpose(2, 3)


def _normalize(x: Tensor, view: View) -> Tensor:
    """Normalize with the view's mean and standard deviation, and write channels last in the same pass."""
    colors = (torch.tensor(v).to(x.device, non_blocking=True) for v in (view.mean, view.std))
    mean, std = (one[:, None, None] for one in colors)
    return torch.addcmul(-mean / std, x, 1 / std, out=torch.empty_like(x, memory_format=torch.channels_last))


def _some(x: Tensor, chosen: Tensor, operation: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Apply operation(images, their rows) to images `chosen` (B,) bool on the CPU; in place unless all are chosen."""
    rows = chosen.nonzero().squeeze(1)
    on_device = rows.to(x.device, non_blocking=True)
    if len(rows) == len(x):
        return operation(x, on_device)
    if len(rows):
        x[on_device] = operation(x[on_device], on_device)
    return x


def _jitter(x: Tensor, view: View, numbers: Tensor, operations: Operations) -> Tensor:
    """Apply color jitter: four operations in an order sampled per image."""
    chosen = numbers[:, JITTER] < view.jitter
    if not chosen.any():
        return x
    spread = torch.tensor([view.brightness, view.contrast, view.saturation, view.hue])
    amounts = (numbers[:, AMOUNTS] * 2 - 1) * spread
    amounts[:, :3] = (amounts[:, :3] + 1).clamp_(min=0)
    return operations.jitter(
        x, torch.where(chosen[:, None], numbers[:, ORDER].argsort(dim=1).argsort(dim=1), -1), amounts
    )
