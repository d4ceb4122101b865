"""Vectors of images that nobody trained, in numpy: histograms of oriented gradients (HOG) and of colors.

Both take a batch of square RGB images (N, S, S, 3) uint8, and return (N, D) float32. Sources: Dalal and Triggs, CVPR
2005, with the definitions of scikit-image's `hog`, which the tests compare with; Swain and Ballard, IJCV 1991, for
histograms of colors.

    encoder = load_encoder("nnclr_resnet18_starter+shape")
    encoder.embed(["cat.jpg"])      # (1, 512 + 324) float32, unit rows

A network that saw few images does not describe everything that separates yours. Shapes help with clothing, for example,
and colors with groceries; docs/results/starter.md has the numbers. Feature maps and attention remain those of the
network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from PIL import Image

from nnclr_hub.encoder.preprocessing import unit_rows

SIDE = 64  # pixels of a side of the images that are described
ANGLES = 9  # bins of 20 degrees; opposite directions count as one
BLOCK = 2  # cells of a side of a block, in which contrast is normalized
CLIP = 0.2  # largest bin of a normalized histogram, so that one strong edge does not hide the others (L2-Hys)
TINY = 1e-5


def resized(images: np.ndarray) -> np.ndarray:
    """Return (N, SIDE, SIDE, 3) uint8 from (N, S, S, 3) uint8."""
    if images.shape[1:3] == (SIDE, SIDE):
        return images
    scaled = [Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR) for image in images]
    return np.stack([np.asarray(one) for one in scaled]) if scaled else np.zeros((0, SIDE, SIDE, 3), np.uint8)


def hog(images: np.ndarray, cell: int) -> np.ndarray:
    """Describe shapes without colors: (N, D), D = 36 x (S / cell - 1)^2.

    Args:
        images: (N, S, S, 3) uint8.
        cell: pixels of a side of a cell, which has one histogram of ANGLES bins.
    """
    gray = _luma(images)
    count, side = gray.shape[:2]
    down, right = np.zeros_like(gray), np.zeros_like(gray)
    down[:, 1:-1] = gray[:, 2:] - gray[:, :-2]
    right[:, :, 1:-1] = gray[:, :, 2:] - gray[:, :, :-2]
    angle = np.rad2deg(np.arctan2(down, right)) % 180
    bins = np.minimum((angle * (ANGLES / 180)).astype(np.int64), ANGLES - 1)
    cells = side // cell
    place = np.minimum(np.arange(side) // cell, cells)  # the last one has the pixels beyond the last whole cell
    where = (place[:, None] * (cells + 1) + place)[None] + np.arange(count)[:, None, None] * (cells + 1) ** 2
    sums = np.bincount(
        (where * ANGLES + bins).ravel(), np.hypot(down, right).ravel(), count * (cells + 1) ** 2 * ANGLES
    )
    histograms = sums.reshape(count, cells + 1, cells + 1, ANGLES)[:, :cells, :cells] / cell**2
    windows = np.lib.stride_tricks.sliding_window_view(histograms, (BLOCK, BLOCK), axis=(1, 2))
    blocks = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, BLOCK * BLOCK * ANGLES)
    blocks = _normalized(np.minimum(_normalized(blocks), CLIP))
    return blocks.reshape(count, (cells - BLOCK + 1) ** 2 * BLOCK * BLOCK * ANGLES).astype(np.float32)


def colors(images: np.ndarray, bins: tuple[int, int, int]) -> np.ndarray:
    """Describe colors without shapes: (N, D), the square roots of a histogram, of length 1.

    The cosine of two such vectors is the Bhattacharyya coefficient of the histograms.

    Args:
        images: (N, S, S, 3) uint8.
        bins: of hue, saturation and value; D is their product.
    """
    pixels = images.reshape(len(images), -1, 3).astype(np.int32)
    red, green, blue = np.moveaxis(pixels, -1, 0)
    most, spread = pixels.max(axis=-1), np.ptp(pixels, axis=-1)
    sixth = np.where(most == green, 2 * spread + blue - red, 4 * spread + red - green)
    sixth = np.where(most == red, green - blue, sixth)  # times the spread, so that all of it is exact
    hue = sixth * bins[0] // np.maximum(6 * spread, 1) % bins[0]
    saturation = np.minimum(spread * bins[1] // np.maximum(most, 1), bins[1] - 1)
    value = np.minimum(most * bins[2] // 255, bins[2] - 1)
    size = bins[0] * bins[1] * bins[2]
    where = (hue * bins[1] + saturation) * bins[2] + value + np.arange(len(images))[:, None] * size
    counts = np.bincount(where.ravel(), minlength=len(images) * size)
    return np.sqrt(counts.reshape(len(images), size) / pixels.shape[1]).astype(np.float32)


def _luma(images: np.ndarray) -> np.ndarray:
    # Pillow's mode L rounds like this
    weights = np.array([19595, 38470, 7471], np.uint32)
    return ((images.astype(np.uint32) @ weights + 0x8000) >> 16).astype(np.float32)


def _normalized(rows: np.ndarray) -> np.ndarray:
    return rows / np.sqrt((rows**2).sum(axis=1, keepdims=True) + TINY**2)


@dataclass(frozen=True)
class Part:
    """A descriptor with its parameters.

    dim: D.
    describe: (N, SIDE, SIDE, 3) uint8 -> (N, D) float32.
    version: raised with every change of the vectors.
    length: of the part next to vectors of length 1 to which it is appended; docs/decisions/0030-appended.md has why.
    """

    dim: int
    describe: Callable[[np.ndarray], np.ndarray]
    version: int
    length: float = 1.0


FINE, COARSE = 8, 16  # pixels of a side of a cell
BINS = (16, 4, 4)  # for hue, saturation and value

# that can be appended to the vectors of an encoder
PARTS = {
    "shape": Part(ANGLES * BLOCK**2 * (SIDE // COARSE - BLOCK + 1) ** 2, partial(hog, cell=COARSE), 1),
    "color": Part(BINS[0] * BINS[1] * BINS[2], partial(colors, bins=BINS), 2, 0.15),
}
HOG = Part(ANGLES * BLOCK**2 * (SIDE // FINE - BLOCK + 1) ** 2, partial(hog, cell=FINE), 1)


@dataclass(frozen=True)
class Appended:
    """Parts that are appended to the vectors of a network.

    names: keys of PARTS, in their order there; see `nnclr_hub.hub.sources.split_appended`.
    """

    names: tuple[str, ...]

    @property
    def dim(self) -> int:
        """Number of elements that a vector gains."""
        return sum(PARTS[name].dim for name in self.names)

    def joined_fingerprint(self, fingerprint: str) -> str:
        """Return the fingerprint of the joined vectors, from that of the network."""
        parts = [f"{name}-{PARTS[name].version}" for name in self.names]
        parts += [f"{name}:{PARTS[name].length:g}" for name in self.names if PARTS[name].length != 1]
        return hashlib.sha256("+".join([fingerprint, *parts]).encode()).hexdigest()[:32]

    def join(self, vectors: np.ndarray, crops: np.ndarray, *, unit: bool) -> np.ndarray:
        """Return (N, D + dim) float32 from the network's unit vectors (N, D) and its crops (N, S, S, 3) uint8."""
        images = resized(crops)
        parts = [PARTS[name] for name in self.names]
        joined = np.hstack([vectors, *(unit_rows(part.describe(images)) * part.length for part in parts)])
        return unit_rows(joined) if unit else joined
