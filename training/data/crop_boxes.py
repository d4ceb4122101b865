"""Random resized crops in the coordinates of the original image, as torchvision samples them.

A crop is a function of the image's size and of CROP_NUMBERS uniform random numbers. So the decoding processes, which
do not import torch, cut the same box as a program that has the pixels in memory.
"""

from __future__ import annotations

import numpy as np

ATTEMPTS = 10  # to sample a crop that fits, before a central crop is used
CROP_NUMBERS = 2 * ATTEMPTS + 2


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
        side: of the view in pixels.
        scale: least and largest share of the image's area.
    """
    sizes, stored = (np.repeat(np.asarray(one, np.float64), -(-2000 // len(sizes)), axis=0) for one in (sizes, stored))
    numbers = np.random.default_rng(0).random((len(sizes), CROP_NUMBERS))
    boxes = crop_boxes(sizes, np.array(scale), np.array((3 / 4, 4 / 3)), numbers)
    return float(((boxes[:, 2:] * stored / sizes).prod(axis=1) < side * side).mean())
