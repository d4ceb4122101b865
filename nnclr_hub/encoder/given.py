"""What callers give as images, made readable."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from PIL import Image

from nnclr_hub.encoder.decoding import Source
from nnclr_hub.errors import InvalidRequest

_GRAY = (np.uint8, np.uint16, np.int32, np.float32)  # numbers that Pillow has a mode for

ImageLike = Source | np.ndarray


@runtime_checkable
class Stored(Protocol):
    """An image that lies somewhere else; its bytes are read by the thread that decodes them."""

    def read(self) -> bytes: ...


def as_list(images: Iterable[ImageLike]) -> list[ImageLike]:
    """Several images as a list.

    Raises:
        InvalidRequest: it is one image.
    """
    one = isinstance(images, str | bytes | Path | Image.Image) or (isinstance(images, np.ndarray) and images.ndim < 4)
    if one or not isinstance(images, Iterable):
        raise InvalidRequest("Give a list of images, even for one: encoder.embed([image]).")
    return list(images)


def readable(image: ImageLike | Stored) -> Source:
    """One image as `decoding` takes it.

    Raises:
        InvalidRequest: an array that is no image.
    """
    if isinstance(image, Stored):
        return image.read()
    if not isinstance(image, np.ndarray):
        return image
    if image.ndim == 2 and image.dtype.kind in "uif" and image.size:  # gray, as a TIFF of such numbers
        return Image.fromarray(image if image.dtype in _GRAY else image.astype(_wider(image.dtype)))
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise InvalidRequest(
            f"An array is one image of (H, W, 3) uint8, or of (H, W) gray; this one is {image.shape} {image.dtype}."
        )
    return Image.fromarray(image)


def _wider(dtype: np.dtype) -> type[np.generic]:
    return np.int32 if np.can_cast(dtype, np.int32) else np.float32
