"""Vectors that nobody trained: the floors that learned features must exceed.

| source | vector of an image | numbers |
|---|---|---|
| `pixels` | 16 x 16 RGB minus its mean | 768 |
| `hog` | histograms of oriented gradients at 64 x 64: shapes without colors | 1764 |
| `color` | square roots of an HSV histogram of 16 x 4 x 4 bins: colors without shapes | 256 |
| `hog+color` | both, each of length 1 | 2020 |

On clothing and groceries, `hog` and `color` separate classes better than a weak encoder does, so a score says little
without them. Source of HOG: Dalal and Triggs, CVPR 2005, as scikit-image computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image

from nnclr_hub.encoder.channel_image import for_people
from nnclr_hub.encoder.decoding import decode_any
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.features import unit_rows
from nnclr_hub.encoder.fingerprint import with_reading
from nnclr_hub.encoder.image_reading import PLAIN, ImageReading
from nnclr_hub.encoder.inputs import as_source
from nnclr_hub.encoder.readers.stack import as_image
from nnclr_hub.errors import ImageError, MissingDependency

PIXELS_SIDE = 16
SIDE = 64  # of the image that `hog` and `color` describe
CELL = 8  # pixels of a side of a cell of HOG
BINS = (16, 4, 4)  # of hue, saturation and value


@dataclass(frozen=True)
class HandCrafted:
    """A feature source without a network; it works wherever `nnclr eval` takes an encoder.

    name: a key of FLOORS.
    embed_dim: D.
    describe: an RGB image -> (D,) float32.
    reading: the page and the channels that are read of a file; of several channels, the first three are described.
    """

    name: str
    embed_dim: int
    describe: Callable[[Image.Image], np.ndarray]
    reading: ImageReading = PLAIN
    device = "cpu"

    @property
    def fingerprint(self) -> str:
        """Identity of the vectors; a changed definition needs another one."""
        plain = {"pixels": f"pixels-{PIXELS_SIDE}-mean-removed"}.get(self.name, f"{self.name}-{SIDE}-1")
        return with_reading(plain, self.reading)

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """Return (D,) float32 for each image, or the error that prevented reading it.

        Raises:
            MissingDependency: scikit-image is not installed.
        """
        with ThreadPoolExecutor() as pool:
            return list(pool.map(self._describe_each, images))

    def forward_crops(self, crops: np.ndarray) -> np.ndarray:
        """Return (N, D) float32 for (N, S, S, C) uint8."""
        return np.stack([self.describe(for_people(as_image(crop))) for crop in crops])

    def _describe_each(self, image: ImageLike) -> np.ndarray | ImageError:
        try:
            return self.describe(for_people(decode_any(as_source(image), self.reading)))
        except ImageError as error:
            return error


def _pixels(image: Image.Image) -> np.ndarray:
    resized = image.resize((PIXELS_SIDE, PIXELS_SIDE), Image.Resampling.BOX)
    flat = np.asarray(resized, np.float32).ravel() / 255
    return flat - flat.mean()


def _hog(image: Image.Image) -> np.ndarray:
    gray = np.asarray(_resized(image).convert("L"))
    found = _skimage("feature").hog(
        gray, orientations=9, pixels_per_cell=(CELL, CELL), cells_per_block=(2, 2), block_norm="L2-Hys"
    )
    return found.astype(np.float32)


def _color(image: Image.Image) -> np.ndarray:
    values = _skimage("color").rgb2hsv(np.asarray(_resized(image)))  # (S, S, 3) in [0, 1]
    index = np.minimum((values * BINS).astype(int), np.array(BINS) - 1).reshape(-1, 3)
    counts = np.bincount(np.ravel_multi_index(tuple(index.T), BINS), minlength=int(np.prod(BINS)))
    # square roots, because the cosine of two histograms is then their Bhattacharyya coefficient
    return np.sqrt(counts / counts.sum()).astype(np.float32)


def _hog_and_color(image: Image.Image) -> np.ndarray:
    return np.concatenate([unit_rows(part(image)[None])[0] for part in (_hog, _color)])


def _resized(image: Image.Image) -> Image.Image:
    return image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)


def _skimage(module: str):
    try:
        import skimage.color
        import skimage.feature
    except ImportError as error:
        raise MissingDependency(
            "The sources hog, color and hog+color need scikit-image; pip install 'nnclr_hub[train]'."
        ) from error
    return getattr(skimage, module)


FLOORS = {
    one.name: one
    for one in (
        HandCrafted("pixels", 3 * PIXELS_SIDE**2, _pixels),
        HandCrafted("hog", 9 * 4 * (SIDE // CELL - 1) ** 2, _hog),
        HandCrafted("color", int(np.prod(BINS)), _color),
        HandCrafted("hog+color", 9 * 4 * (SIDE // CELL - 1) ** 2 + int(np.prod(BINS)), _hog_and_color),
    )
}
