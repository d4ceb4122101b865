"""Random views of each image of a batch, with every parameter sampled per image.

Images of other channels than RGB have the same views. Gray, of contrast, saturation and grayscale, is then the mean of
all channels, and the hue stays; brightness, solarization, crops and blur work on each value as before.

A view of an image is a function of NUMBERS uniform random numbers. They are sampled on the CPU for the whole batch of
a step, and each process uses its rows: a run has the same views on every device and for every number of processes. The
pixels are processed on the device where they are.

Two functions finish the crops, with equal results. `change_rows` selects the images that an operation changes, which is
the least work and the fastest form on a CPU. `change_all` computes every operation for every image and keeps what is
needed. Its operations and shapes are the same at each step, so a GPU can replay them as one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Generator, Tensor

from .cutting import CROP_NUMBERS, crop_boxes
from .pixel_ops import (
    blur_matrix,
    gaussian_blur,
    gray,
    grayscale,
    jitter_all,
    jitter_rows,
    products,
    resized_crop,
    solarize,
)
from .views import View

LEAST = 2.0  # minimum side of a crop in pixels of a stored copy
# columns of the random numbers of a view; the first ones are those of the crop
FLIP, JITTER, GRAY, SIGMA, BLUR, SOLARIZE, OWN = range(CROP_NUMBERS, CROP_NUMBERS + 7)
ORDER, AMOUNTS = slice(OWN + 1, OWN + 5), slice(OWN + 5, OWN + 9)
SATURATION_AND_HUE = slice(OWN + 7, OWN + 9)  # columns of the amounts
NUMBERS = OWN + 9


@dataclass(frozen=True)
class StoredImages:
    """Copies of the images in memory, from which the device cuts the views.

    images: (B, H, W, C) uint8 or float in [0, 255].
    boxes: (V, B, 4) float32 on the same device, the crops of each view, see `copy_boxes`.
    sizes: (B, 2) height and width of the originals; empty where they are not needed.
    """

    images: Tensor
    boxes: Tensor
    sizes: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))

    def __len__(self) -> int:
        return len(self.images)

    def part(self, start: int, end: int) -> StoredImages:
        """Return the images from `start` to `end`."""
        return StoredImages(self.images[start:end], self.boxes[:, start:end])

    def crop(self, number: int, view: View, numbers: Tensor) -> Tensor:
        """Return the crops of a view, given by its number: (B, C, S, S) float32 in [0, 1], mirrored by `numbers`."""
        flip = (numbers[:, FLIP] < view.flip).to(self.images.device, non_blocking=True)
        return resized_crop(_in_lines(self.images), self.boxes[number], flip, view.size)


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
        """Return the images from `start` to `end`."""
        return CutViews(tuple(one[start:end] for one in self.crops), self.sizes[start:end])

    def crop(self, number: int, view: View, numbers: Tensor) -> Tensor:
        """Return the crops of a view, given by its number, in the form of those of `StoredImages`."""
        return _in_lines(self.crops[number]).permute(0, 3, 1, 2).div_(255)  # a copy, since the crops are uint8


Pixels = StoredImages | CutViews  # of a batch


def copy_boxes(sizes: np.ndarray, filled: np.ndarray, view: View, numbers: Tensor) -> Tensor:
    """Sample the crops of a view in pixels of the copies: (B, 4) float32 on the CPU, top, left, height and width.

    Args:
        sizes: (B, 2) height and width of the originals, in whose coordinates crops are sampled.
        filled: (B, 2) height and width of the copies.
        numbers: (B, NUMBERS) on the CPU.
    """
    boxes = crop_boxes(sizes, np.array(view.scale), np.array(view.ratio), numbers.numpy()[:, :CROP_NUMBERS])
    boxes *= np.tile(filled / sizes, 2)
    # in a copy of extreme proportions a crop may have no pixels, hence the minimum side
    length = np.minimum(filled, np.maximum(LEAST, boxes[:, 2:]))
    boxes = np.concatenate([np.maximum(0, np.minimum(boxes[:, :2], filled - length)), length], axis=1)
    return torch.from_numpy(boxes.astype(np.float32))


def sample_numbers(views: int, batch: int, generator: Generator) -> Tensor:
    """Sample the random numbers of a batch: (views, batch, NUMBERS) float32 in [0, 1)."""
    return torch.rand(views, batch, NUMBERS, generator=generator)


# finishes crops (B, C, S, S) of a view with numbers (B, NUMBERS); it may overwrite them
Change = Callable[[Tensor, View, Tensor], Tensor]


def make_views(
    pixels: Pixels, views: Sequence[View], numbers: Tensor, at_once: int = 0, change: Change | None = None
) -> list[Tensor]:
    """Make the views of a batch of images, in order.

    Args:
        numbers: (V, B, NUMBERS) on the CPU or on the device of the images; see `sample_numbers`.
        at_once: images to process at a time, to save memory; 0: all.
        change: default `change_rows` on a CPU and `change_all` on other devices.

    Returns:
        (B, C, view.size, view.size) float32 for each view, normalized, channels last.
    """
    if 0 < at_once < len(pixels):
        return _make_in_parts(pixels, views, numbers, at_once, change)
    if isinstance(pixels, StoredImages):
        pixels = StoredImages(_in_lines(pixels.images), pixels.boxes)
    made: dict[int, Tensor] = {}
    for places in _groups(views):
        view = views[places[0]]
        crops = [pixels.crop(place, view, numbers[place]) for place in places]
        x = torch.cat(crops) if len(crops) > 1 else crops[0]
        joined_numbers = torch.cat([numbers[place] for place in places])
        form = change or (change_rows if x.device.type == "cpu" else change_all)
        made.update(zip(places, form(x, view, joined_numbers).chunk(len(places)), strict=True))
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
    pixels: Pixels, views: Sequence[View], numbers: Tensor, at_once: int, change: Change | None
) -> list[Tensor]:
    whole: list[Tensor] = []
    for start in range(0, len(pixels), at_once):
        end = min(start + at_once, len(pixels))
        parts = make_views(pixels.part(start, end), views, numbers[:, start:end], change=change)
        if not whole:
            shapes = [(len(pixels), *part.shape[1:]) for part in parts]
            form = {"device": parts[0].device, "memory_format": torch.channels_last}
            whole = [torch.empty(shape, **form) for shape in shapes]  # type: ignore[call-overload]
        for all_images, part in zip(whole, parts, strict=True):
            all_images[start:end] = part
    return whole


def blur_taps(size: int) -> int:
    """Return the length of the blur kernel: 23 at 224 pixels, the odd number nearest to that share at other sizes."""
    return max(3, 2 * round((23 * size / 224 - 1) / 2) + 1)


def change_rows(x: Tensor, view: View, numbers: Tensor) -> Tensor:
    """Change colors and sharpness of crops (B, C, S, S) on a CPU, and normalize them; `x` may be overwritten."""
    if view.jitter:
        x = jitter_rows(x, *_turns_and_amounts(view, numbers))
    x = _some(x, numbers[:, GRAY] < view.gray, lambda part, _: grayscale(part))
    sigma, taps = _sigma(view, numbers), blur_taps(view.size)
    x = _some(x, numbers[:, BLUR] < view.blur, lambda part, rows: gaussian_blur(part, sigma[rows], taps))
    x = _some(x, numbers[:, SOLARIZE] < view.solarize, lambda part, _: solarize(part))
    return _normalize(_of_plugin(x, view, numbers), view)


def change_all(x: Tensor, view: View, numbers: Tensor, change: Change | None = None) -> Tensor:
    """Return the result of `change_rows` with the same operations and shapes for any numbers, on any device.

    Args:
        change: `colors_and_blur`, or a compiled form of it.
    """
    on_device = numbers.to(x.device, non_blocking=True)
    x = (change or colors_and_blur)(x, view, on_device)
    return _normalize(_of_plugin(x, view, numbers), view)


def colors_and_blur(x: Tensor, view: View, numbers: Tensor) -> Tensor:
    """Jitter, blur and solarize crops (B, C, S, S), with all arguments on one device."""

    def where(column: int, probability: float) -> Tensor:
        return (numbers[:, column] < probability)[:, None, None, None]

    if view.jitter:
        x = jitter_all(x, *_turns_and_amounts(view, numbers))
    if view.gray:
        x = torch.where(where(GRAY, view.gray), gray(x), x)
    if view.blur:
        matrix = blur_matrix(_sigma(view, numbers), blur_taps(view.size), view.size, numbers[:, BLUR] < view.blur)
        x = products(x, matrix, matrix)
    if view.solarize:
        x = torch.where(where(SOLARIZE, view.solarize), solarize(x), x)
    return x


def _sigma(view: View, numbers: Tensor) -> Tensor:
    least, most = view.sigma
    return least + (most - least) * numbers[:, SIGMA]


def _turns_and_amounts(view: View, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the turn of each operation of the color jitter, -1 for images without it, and its amount: (B, 4) each."""
    order, operation = numbers[:, ORDER], torch.arange(4, device=numbers.device)
    before = (order[:, None] < order[:, :, None]) | (
        (order[:, None] == order[:, :, None]) & (operation[None] < operation[:, None])
    )  # (B, 4, 4): whether the last operation comes before the one in the middle; a comparison is static, a sort is not
    turns = torch.where((numbers[:, JITTER] < view.jitter)[:, None], before.sum(dim=2), -1)
    spread = (view.brightness, view.contrast, view.saturation, view.hue)
    amounts = [(numbers[:, AMOUNTS.start + i] * 2 - 1) * by for i, by in enumerate(spread)]
    return turns, torch.stack([*((one + 1).clamp(min=0) for one in amounts[:3]), amounts[3]], dim=1)


def _of_plugin(x: Tensor, view: View, numbers: Tensor) -> Tensor:
    if view.operation is None:
        return x
    return view.operation(x, Generator().manual_seed(int(numbers[0, OWN].double() * 2**24)))


def _in_lines(images: Tensor) -> Tensor:
    """Convert (B, H, W, C) to float32 with the memory layout (B, H, C, W), once for all views, as `products` needs."""
    # `to` copies uint8 images; for float32 images it does nothing, and `contiguous` copies them
    lines = images.transpose(2, 3).to(torch.float32, memory_format=torch.contiguous_format).contiguous()
    return lines.transpose(2, 3)


def _normalize(x: Tensor, view: View) -> Tensor:
    shift, scale = _normalization(view.mean, view.std, x.device)
    return torch.addcmul(shift, x, scale, out=torch.empty_like(x, memory_format=torch.channels_last))


@cache
def _normalization(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (C, 1, 1) float32 each: -mean / std, and 1 / std. A graph must not copy them from the host."""
    at, by = (torch.tensor(one)[:, None, None] for one in (mean, std))
    return (-at / by).to(device, non_blocking=True), (1 / by).to(device, non_blocking=True)


def _some(x: Tensor, chosen: Tensor, operation: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Apply operation(images, their rows) to the images `chosen`, (B,) bool; in place unless all are chosen."""
    rows = chosen.nonzero().squeeze(1)
    if len(rows) == len(x):
        return operation(x, rows)
    if len(rows):
        x[rows] = operation(x[rows], rows)
    return x
