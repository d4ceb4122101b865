"""Tensors of images, checked and cut into batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nnclr_hub.encoder.preprocess import EvalTransform
from nnclr_hub.errors import InvalidRequest

T = TypeVar("T")


def as_tensor(images: T) -> T | Tensor:
    """numpy's (N, 3, H, W) as a tensor; whatever else as it is, an (N, H, W, 3) too: N images.

    Raises:
        InvalidRequest: its numbers are neither uint8 nor floats.
    """
    if not (isinstance(images, np.ndarray) and images.ndim == 4 and images.shape[1] == 3 and images.shape[3] != 3):
        return images
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise InvalidRequest(f"An array of images is uint8 RGB or transformed float; this one is {images.dtype}.")
    native = images.dtype.newbyteorder("=")
    return torch.from_numpy(np.require(images, native if native.itemsize <= 8 else np.float64, ["C", "W"]))


def crops_of(images: Tensor, transform: EvalTransform, batch: int) -> Iterator[np.ndarray]:
    """(N, 3, H, W) uint8 RGB through resize and crop: batches (B, S, S, 3) uint8.

    Raises:
        InvalidRequest: another shape.
    """
    _check_shape(images)
    size = transform.preprocessing.input_size
    for part in images.split(batch):
        crops = np.zeros((len(part), size, size, 3), np.uint8)
        for crop, pixels in zip(crops, part.permute(0, 2, 3, 1).cpu().numpy(), strict=True):
            crop[:] = transform.crop(Image.fromarray(np.ascontiguousarray(pixels)))
        if len(crops):
            yield crops


def transformed_batches(images: Tensor, side: int | None, name: str, batch: int) -> Iterator[Tensor]:
    """(N, 3, H, W) float, transformed already: batches (B, 3, H, W) float32.

    Args:
        side: the one input size that the network takes, in pixels; None: any.
        name: of the encoder, for the sentence.

    Raises:
        InvalidRequest: another shape or type, another size than the network takes, or values that are not finite.
    """
    _check_shape(images)
    if not images.is_floating_point():
        raise InvalidRequest(f"A tensor of images is uint8 RGB or transformed float; this one is {images.dtype}.")
    if side is not None and tuple(images.shape[2:]) != (side, side):
        raise InvalidRequest(
            f"{name} takes transformed images of {side} x {side} pixels; these are "
            f"{images.shape[3]} x {images.shape[2]}: give them as uint8 RGB, or through encoder.transform."
        )
    if not images.isfinite().all():
        raise InvalidRequest("The tensor of images holds NaN or infinity: check how it was made.")
    return (x.float() for x in images.split(batch))


def _check_shape(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise InvalidRequest(f"A tensor of images is (N, 3, H, W); this one is {tuple(images.shape)}.")
