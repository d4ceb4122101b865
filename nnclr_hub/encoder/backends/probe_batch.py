"""Synthetic images for comparing backends without photographs."""

from __future__ import annotations

import numpy as np
from PIL import Image

IMAGES = 8


def probe_images(side: int, count: int = IMAGES, channels: int = 3) -> np.ndarray:
    """Return (count, side, side, channels) uint8, the same on every machine; beyond RGB the colors are repeated.

    Noise alone is not enough, because a network returns similar vectors for all of it. So each image is a sum of noise
    of several sizes, coarse noise with the most contrast, as in photographs.
    """
    images = np.zeros((count, side, side, 3), np.uint8)
    for seed, image in enumerate(images):
        rng, total = np.random.default_rng(seed), np.zeros((side, side, 3))
        for cells in (2, 4, 8, 16, 32):
            noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8))
            total += np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC), float) / cells
        total -= total.min()
        image[:] = total / total.max() * 255
    return images if channels == 3 else images[..., np.arange(channels) % 3]


def worst_cosine(got: np.ndarray, wanted: np.ndarray) -> float:
    """Return the lowest cosine between rows of two (N, D) arrays; -1 if a value is not finite.

    A row of zeros in both, as a collapsed network gives it, counts as equal.
    """
    lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(wanted, axis=1)
    cosines = (got * wanted).sum(axis=1) / np.maximum(lengths, 1e-12)
    equal = (got == wanted).all(axis=1)
    return float(np.where(equal, 1.0, np.nan_to_num(cosines, nan=-1.0)).min())
