"""What callers give as pictures, made readable."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from nnclr_hub.encoder.decoding import Source
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import InvalidRequest


def as_list(images: Iterable[ImageLike]) -> list[ImageLike]:
    """Several pictures as a list.

    Raises:
        InvalidRequest: it is one picture.
    """
    if isinstance(images, str | bytes | Path | Image.Image):
        raise InvalidRequest("Give a list of images, even for one: encoder.embed([image]).")
    return list(images)


def readable(image: ImageLike) -> Source:
    """One picture as `decoding` takes it.

    Raises:
        InvalidRequest: an array that is no picture.
    """
    if not isinstance(image, np.ndarray):
        return image
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise InvalidRequest(f"An array is one image of (H, W, 3) uint8; this one is {image.shape} {image.dtype}.")
    return Image.fromarray(image)
