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
    """A picture as 16 x 16 RGB, its mean taken out: 768 numbers."""

    name = "pixels"
    fingerprint = f"pixels-{SIDE}-mean-removed"
    embed_dim = SIDE * SIDE * 3

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """(768,) float32 of each picture, or why it has none."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(_small, images))


def _small(image: ImageLike) -> np.ndarray | ImageError:
    try:
        decoded = Image.fromarray(image) if isinstance(image, np.ndarray) else decode_image(image)
    except ImageError as error:
        return error
    flat = np.asarray(decoded.resize((SIDE, SIDE), Image.Resampling.BOX), np.float32).ravel() / 255
    return flat - flat.mean()
