"""Vectors that nobody trained: the floors that learned features must exceed.

| source | vector of an image | numbers |
|---|---|---|
| `pixels` | 16 x 16 RGB minus its mean | 768 |
| `hog` | histograms of oriented gradients of cells of 8 x 8 in an image of 64 x 64: shapes without colors | 1764 |
| `shape` | the same of cells of 16 x 16 | 324 |
| `color` | square roots of an HSV histogram of 16 x 4 x 4 bins: colors without shapes | 256 |
| `hog+color` | both, each of length 1 | 2020 |

On clothing and groceries, shapes and colors separate classes better than a weak encoder does, so a score says little
without them. `shape` and `color` can also be appended to the vectors of an encoder (`descriptors`).
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image

from nnclr_hub.encoder.descriptors import HOG, PARTS, SIDE, Part
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.fingerprint import with_reading
from nnclr_hub.encoder.preprocessing import as_source, unit_rows
from nnclr_hub.errors import ImageError
from nnclr_hub.images.channels import for_people
from nnclr_hub.images.decode import decode_any
from nnclr_hub.images.readers.stack import as_image
from nnclr_hub.images.reading import PLAIN, ImageReading

PIXELS_SIDE = 16


@dataclass(frozen=True)
class HandCrafted:
    """A feature source without a network; it works wherever `nnclr eval` takes an encoder.

    name: a key of FLOORS.
    parts: that describe an image, each of length 1 if there are several; () for its pixels.
    reading: the page and the channels that are read of a file; of several channels, the first three are described.
    """

    name: str
    parts: tuple[Part, ...] = ()
    reading: ImageReading = PLAIN
    device = "cpu"

    @property
    def embed_dim(self) -> int:
        """D."""
        return sum(part.dim for part in self.parts) or 3 * PIXELS_SIDE**2

    @property
    def fingerprint(self) -> str:
        """Identity of the vectors; a changed definition needs another one."""
        versions = [part.version for part in self.parts]
        identity = f"{self.name}-{SIDE}-{max(versions)}" if versions else f"pixels-{PIXELS_SIDE}-mean-removed"
        return with_reading(identity, self.reading)

    def describe(self, image: Image.Image) -> np.ndarray:
        """Return (D,) float32 of an RGB image."""
        if not self.parts:
            flat = np.asarray(image.resize((PIXELS_SIDE, PIXELS_SIDE), Image.Resampling.BOX), np.float32).ravel() / 255
            return flat - flat.mean()
        pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))[None]
        found = [part.describe(pixels) for part in self.parts]
        return np.hstack([unit_rows(one) for one in found] if len(found) > 1 else found)[0]

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """Return (D,) float32 for each image, or the error that prevented reading it."""

        def attempt(image: ImageLike) -> np.ndarray | ImageError:
            try:
                return self.describe(for_people(decode_any(as_source(image), self.reading)))
            except ImageError as error:
                return error

        with ThreadPoolExecutor() as pool:
            return list(pool.map(attempt, images))

    def forward_crops(self, crops: np.ndarray) -> np.ndarray:
        """Return (N, D) float32 for (N, S, S, C) uint8."""
        return np.stack([self.describe(for_people(as_image(crop))) for crop in crops])


_PARTS = {
    "pixels": (),
    "hog": (HOG,),
    "shape": (PARTS["shape"],),
    "color": (PARTS["color"],),
    "hog+color": (HOG, PARTS["color"]),
}
FLOORS = {name: HandCrafted(name, parts) for name, parts in _PARTS.items()}
