"""Vectors that nobody trained: the floors that learned features must exceed.

| source | vector of an image | numbers |
|---|---|---|
| `pixels` | 16 x 16 RGB minus its mean | 768 |
| `hog` | histograms of oriented gradients of cells of 8 x 8 in an image of 64 x 64: shapes without colors | 1764 |
| `shape` | the same of cells of 16 x 16 | 324 |
| `color` | square roots of an HSV histogram of 16 x 4 x 4 bins: colors without shapes | 256 |
| `hog+color` | both, each of length 1 | 2020 |

On clothing and groceries, shapes and colors separate classes better than a weak encoder does, so a score says little
without them. `shape` and `color` can also be appended to the vectors of an encoder (`appended`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image

from nnclr_hub.encoder.descriptors import HOG, PARTS, SIDE, Part
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.features import unit_rows
from nnclr_hub.encoder.fingerprint import with_reading
from nnclr_hub.encoder.inputs import as_source
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
    embed_dim: D.
    describe: an RGB image -> (D,) float32.
    identity: of the vectors; a changed definition needs another one.
    reading: the page and the channels that are read of a file; of several channels, the first three are described.
    """

    name: str
    embed_dim: int
    describe: Callable[[Image.Image], np.ndarray]
    identity: str
    reading: ImageReading = PLAIN
    device = "cpu"

    @property
    def fingerprint(self) -> str:
        """Identity of the vectors."""
        return with_reading(self.identity, self.reading)

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """Return (D,) float32 for each image, or the error that prevented reading it."""
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


def _described(*parts: Part) -> Callable[[Image.Image], np.ndarray]:
    """Return a function that joins parts, each of length 1 if there are several."""

    def describe(image: Image.Image) -> np.ndarray:
        images = np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))[None]
        found = [part.describe(images) for part in parts]
        return np.hstack([unit_rows(one) for one in found] if len(found) > 1 else found)[0]

    return describe


def _floor(name: str, *parts: Part) -> HandCrafted:
    version = max(part.version for part in parts)
    return HandCrafted(name, sum(part.dim for part in parts), _described(*parts), f"{name}-{SIDE}-{version}")


FLOORS = {
    one.name: one
    for one in (
        HandCrafted("pixels", 3 * PIXELS_SIDE**2, _pixels, f"pixels-{PIXELS_SIDE}-mean-removed"),
        _floor("hog", HOG),
        _floor("shape", PARTS["shape"]),
        _floor("color", PARTS["color"]),
        _floor("hog+color", HOG, PARTS["color"]),
    )
}
