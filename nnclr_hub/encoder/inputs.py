"""Images as callers pass them: single images as a source for decoding, tensors as checked batches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from PIL import Image

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.channels import ChannelImage
from nnclr_hub.images.decode import DecodableImage
from nnclr_hub.images.pool import LIGHT, TOGETHER, read_packed
from nnclr_hub.images.reading import MAX_CHANNELS
from nnclr_hub.images.source import Source

if TYPE_CHECKING:  # only the functions for tensors need torch, and importing it takes seconds
    from torch import Tensor
    from typing_extensions import TypeIs

    from nnclr_hub.encoder.preprocessing import Transform

T = TypeVar("T")
ImageLike = DecodableImage | np.ndarray
_GRAY = (np.uint8, np.uint16, np.int32, np.float32)  # types for which Pillow has a mode


def as_list(images: Iterable[ImageLike]) -> list[ImageLike]:
    """Return several images as a list; raise InvalidRequest for a single image."""
    one = isinstance(images, str | bytes | Path | Source | Image.Image | ChannelImage) or (
        isinstance(images, np.ndarray) and images.ndim < 4
    )
    if one or not isinstance(images, Iterable):
        raise InvalidRequest("images must be a list, even for a single image: encoder.embed([image]).")
    return list(images)


def as_source(image: ImageLike) -> DecodableImage:
    """Return one image in a form that `decode_image` takes; raise InvalidRequest for an array that is not one."""
    if not isinstance(image, np.ndarray):
        return read_packed(image)
    if image.ndim == 2 and image.dtype.kind in "uif" and image.size:  # gray, like a TIFF of that type
        wider = np.int32 if np.can_cast(image.dtype, np.int32) else np.float32
        return Image.fromarray(image if image.dtype in _GRAY else image.astype(wider))
    if image.dtype != np.uint8 or image.ndim != 3 or not 1 <= image.shape[2] <= MAX_CHANNELS or not image.size:
        raise InvalidRequest(
            f"An array must be (H, W, C) uint8, or (H, W) gray, got shape {image.shape} of {image.dtype}."
        )
    return Image.fromarray(image) if image.shape[2] == 3 else ChannelImage(image)


def weigh(image: ImageLike) -> int:
    """Return the bytes of an image that a decoding process may take with others; otherwise more than LIGHT."""
    if isinstance(image, Source):
        return LIGHT + 1 if image.box is not None else image.size or LIGHT // TOGETHER
    try:
        if isinstance(image, bytes | str | Path):
            return len(image) if isinstance(image, bytes) else os.path.getsize(image)
    except (OSError, ValueError):  # decoding reports the error
        return 0
    return LIGHT // TOGETHER if hasattr(image, "read") else LIGHT + 1


# ---- tensors ---------------------------------------------------------------------------------------------------------


def is_tensor(images: object) -> TypeIs[Tensor]:
    """Return whether it is a tensor of torch; before torch is imported, nobody has one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(images, torch.Tensor)


def as_tensor(images: T, channels: int = 3) -> T | Tensor:
    """Return a numpy array (N, C, H, W) as a tensor; anything else unchanged, also (N, H, W, C), which is N images.

    Raises:
        InvalidRequest: its type is neither uint8 nor a float type.
    """
    if not (isinstance(images, np.ndarray) and images.ndim == 4 and images.shape[1] == channels != images.shape[3]):
        return images
    _check_type(images.dtype == np.uint8 or images.dtype.kind == "f", images.dtype)
    import torch

    native = images.dtype.newbyteorder("=")
    return torch.from_numpy(np.require(images, native if native.itemsize <= 8 else np.float64, ["C", "W"]))


def crops_of(images: Tensor, transform: Transform, batch: int) -> Iterator[np.ndarray]:
    """Resize and crop (N, C, H, W) uint8; yield batches (B, S, S, C) uint8; raise InvalidRequest for other tensors."""
    import torch

    channels, size = transform.preprocessing.in_chans, transform.preprocessing.input_size
    _check_type(images.dtype == torch.uint8, images.dtype)
    _check_shape(images, channels)
    for part in images.split(batch):
        crops = np.zeros((len(part), size, size, channels), np.uint8)
        for crop, pixels in zip(crops, part.permute(0, 2, 3, 1).cpu().numpy(), strict=True):
            pixels = np.ascontiguousarray(pixels)
            crop[:] = transform.crop(Image.fromarray(pixels) if channels == 3 else ChannelImage(pixels))
        if len(crops):
            yield crops


def transformed_batches(images: Tensor, side: int | None, name: str, batch: int, channels: int) -> Iterator[Tensor]:
    """Check (N, C, H, W) float that is transformed already; return batches (B, C, H, W) float32.

    Args:
        channels: C.
        side: the only input size that the network takes, in pixels; None: any.

    Raises:
        InvalidRequest: another shape or size, or values that are not finite.
    """
    _check_shape(images, channels)
    if side is not None and tuple(images.shape[2:]) != (side, side):
        raise InvalidRequest(
            f"Transformed images for {name} must be {side} x {side} pixels, got {images.shape[3]} x {images.shape[2]}; "
            "pass uint8 RGB instead, or use encoder.transform."
        )
    if not images.isfinite().all():
        raise InvalidRequest("The tensor of images contains NaN or infinity; check how it was computed.")
    return (x.float() for x in images.split(batch))


def _check_type(allowed: bool, dtype: object) -> None:
    if not allowed:
        raise InvalidRequest(f"An array or tensor of images must be uint8 RGB or transformed float, got {dtype}.")


def _check_shape(images: Tensor, channels: int) -> None:
    if images.ndim != 4 or images.shape[1] != channels or 0 in images.shape[2:]:
        raise InvalidRequest(f"A tensor of images must be (N, {channels}, H, W), got {tuple(images.shape)}.")
