"""Plain pixels as an encoder: the floor that learned features must be above."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import ImageError

SIDE = 16


class Pixels:
    """An image as 16 x 16 RGB, its mean taken out: 768 numbers."""

    name = "pixels"
    fingerprint = f"pixels-{SIDE}-mean-removed"
    embed_dim = SIDE * SIDE * 3
    device = "cpu"

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """(768,) float32 of each image, or why it has none."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(_small, images))

    def forward_crops(self, crops: np.ndarray) -> np.ndarray:
        """(N, 768) float32 of (N, S, S, 3) uint8."""
        return np.stack([_features(Image.fromarray(crop)) for crop in crops])


def _small(image: ImageLike) -> np.ndarray | ImageError:
    try:
        decoded = Image.fromarray(image) if isinstance(image, np.ndarray) else decode_image(image)
    except ImageError as error:
        return error
    return _features(decoded)


def _features(decoded: Image.Image) -> np.ndarray:
    flat = np.asarray(decoded.resize((SIDE, SIDE), Image.Resampling.BOX), np.float32).ravel() / 255
    return flat - flat.mean()
