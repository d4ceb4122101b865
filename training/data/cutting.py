"""Random resized crops, and what a decoding process does for training: cut views of an image, or make its copy.

Crops are in the coordinates of the original image, as torchvision samples them. A crop is a function of the image's
size and of CROP_NUMBERS uniform random numbers. So the decoding processes, which do not import torch, cut the same box
as a program that has the pixels in memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.images.channels import AnyImage
from nnclr_hub.images.decode import DecodedImage, decode_scaled
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.images.source import Source

from .views import View

ATTEMPTS = 10  # to sample a crop that fits, before a central crop is used
CROP_NUMBERS = 2 * ATTEMPTS + 2
REDUCING_GAP = 3.0  # Pillow: nearly as exact as resampling all pixels, for crops of more than six times the view


def crop_boxes(sizes: np.ndarray, scale: np.ndarray, ratio: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Sample boxes: uniform area, log-uniform ratio, ten attempts, then a central crop.

    Args:
        sizes: (B, 2) height and width of each image in pixels.
        scale: (B, 2) or (2,), least and largest share of the image's area.
        ratio: (B, 2) or (2,), least and largest width / height.
        numbers: (B, CROP_NUMBERS) in [0, 1).

    Returns:
        (B, 4) float64: top, left, height, width in whole pixels.
    """
    high, wide = np.asarray(sizes, np.float64).T[..., None]  # (B, 1)
    least, most = np.asarray(scale, np.float64).T[..., None]
    low, top = np.asarray(ratio, np.float64).T[..., None]
    numbers = np.asarray(numbers, np.float64)
    area = (least + (most - least) * numbers[:, :ATTEMPTS]) * high * wide  # (B, ATTEMPTS)
    shape = np.exp(np.log(low) + np.log(top / low) * numbers[:, ATTEMPTS : 2 * ATTEMPTS])
    w, h = np.round(np.sqrt(area * shape)), np.round(np.sqrt(area / shape))
    fits = (w <= wide) & (h <= high) & (w > 0) & (h > 0)
    first, any_fits = fits.argmax(axis=1)[:, None], fits.any(axis=1)[:, None]
    nearest = np.clip(wide / high, low, top)  # the ratio of the largest central crop
    w = np.where(any_fits, np.take_along_axis(w, first, 1), np.maximum(1, np.minimum(wide, np.round(high * nearest))))
    h = np.where(any_fits, np.take_along_axis(h, first, 1), np.maximum(1, np.minimum(high, np.round(wide / nearest))))
    y, x = numbers[:, -2:-1], numbers[:, -1:]
    y = np.where(any_fits, np.floor(y * (high - h + 1)), np.floor((high - h) / 2))
    x = np.where(any_fits, np.floor(x * (wide - w + 1)), np.floor((wide - w) / 2))
    return np.concatenate([y, x, h, w], axis=1)


def enlarged_share(sizes: np.ndarray, stored: np.ndarray, side: int, scale: tuple[float, ...]) -> float:
    """Return the share of crops with fewer pixels than the view, by sampling.

    Args:
        sizes: (N, 2) height and width of the originals, by which crops are sampled.
        stored: (N, 2) height and width of the copies from which crops are cut.
        side: pixels of a side of the view.
        scale: least and largest share of the image's area.
    """
    sizes, stored = (np.repeat(np.asarray(one, np.float64), -(-2000 // len(sizes)), axis=0) for one in (sizes, stored))
    numbers = np.random.default_rng(0).random((len(sizes), CROP_NUMBERS))
    boxes = crop_boxes(sizes, np.array(scale), np.array((3 / 4, 4 / 3)), numbers)
    return float(((boxes[:, 2:] * stored / sizes).prod(axis=1) < side * side).mean())


@dataclass(frozen=True)
class CutRequest:
    """An image to cut views from.

    source: a path, the bytes, or what reads them.
    slot: its place in the batch.
    numbers: (V, CROP_NUMBERS + 1) random numbers of each view: those of the crop, and one for mirroring.
    """

    source: str | bytes | Source
    slot: int
    numbers: np.ndarray

    def absolute(self) -> CutRequest:
        """Return the request with an absolute path, for a process with another working directory."""
        return replace(self, source=os.path.abspath(self.source)) if isinstance(self.source, str) else self


def cut_views(request: CutRequest, views: Sequence[View], reading: ImageReading, bands: int) -> tuple[Any, ...]:
    """Decode an image once and cut all views from it.

    A JPEG is scaled down by its decoder as long as each crop has as many pixels as its view along each side.

    Returns:
        Height and width of the original, and for each view an image of (size, size), mirrored if its number is below
        `flip`.
    """
    scale, ratio = (np.array([getattr(one, name) for one in views]) for name in ("scale", "ratio"))

    @cache
    def boxes_of(width: int, height: int) -> np.ndarray:
        sizes = np.broadcast_to(np.array([height, width]), (len(views), 2))
        return crop_boxes(sizes, scale, ratio, request.numbers[:, :CROP_NUMBERS])

    def factor(width: int, height: int) -> float:
        boxes = boxes_of(width, height)
        return min(float(box[2:].min()) / view.size for box, view in zip(boxes, views, strict=True))

    decoded = decode_scaled(request.source, factor, reading, bands)
    width, height = decoded.size
    crops = []
    for box, view, number in zip(boxes_of(width, height), views, request.numbers[:, -1], strict=True):
        crop = _crop(decoded, box, view.size)
        crops.append(np.asarray(crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if number < view.flip else crop))
    return height, width, *crops


def decode_reduced(
    source: str | Path | bytes, short: int, long: int, reading: ImageReading, bands: int
) -> tuple[np.ndarray, int, int]:
    """Return a copy of an image (H, W, bands) uint8 for `run_isolated`, and height and width of the original.

    Args:
        short: most pixels of the short side of the copy, which has the proportions of the image.
        long: most pixels of the long side; longer images are squashed along it.
    """
    decoded = decode_scaled(source, short, reading, bands)
    width, height = decoded.size
    factor = min(1.0, short / min(decoded.size))
    size = (max(1, min(long, round(width * factor))), max(1, min(long, round(height * factor))))
    image = decoded.image
    if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC, reducing_gap=REDUCING_GAP)
    return np.asarray(image).reshape(size[1], size[0], bands), height, width


def _crop(decoded: DecodedImage, box: np.ndarray, size: int) -> AnyImage:
    image = decoded.image
    top, left, height, width = (float(one) / decoded.scale for one in box)
    top, left = top + decoded.corner[1], left + decoded.corner[0]
    right, bottom = min(left + width, image.width), min(top + height, image.height)
    x, y = math.floor(left), math.floor(top)
    part = image.crop((x, y, math.ceil(right), math.ceil(bottom)))
    inner = (left - x, top - y, right - x, bottom - y)
    return part.resize((size, size), Image.Resampling.BICUBIC, inner, REDUCING_GAP)
