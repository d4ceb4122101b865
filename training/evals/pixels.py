"""Raw pixels as an encoder: the baseline that learned features must exceed."""

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
    """An encoder whose vector is the image at 16 x 16 RGB minus its mean: 768 numbers."""

    name = "pixels"
    fingerprint = f"pixels-{SIDE}-mean-removed"
    embed_dim = SIDE * SIDE * 3
    device = "cpu"

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """Return (768,) float32 for each image, or the error that prevented reading it."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(_small, images))

    def forward_crops(self, crops: np.ndarray) -> np.ndarray:
        """Return (N, 768) float32 for (N, S, S, 3) uint8."""
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
