"""Random loss of quality: images are shrunk and enlarged again, and compressed as in JPEG.

Data sets differ in sharpness and compression. If a batch mixes several, InfoNCE can distinguish a positive from most
negatives by quality alone. Degraded views remove this shortcut.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from .pixel_ops import products

SHRINK = (0.35, 1.0)  # side of the small copy, as a share of the image's
QUALITY = (20.0, 90.0)  # of JPEG
DEGRADE_NUMBERS = 3  # random numbers of an image
BLOCK = 8
# JPEG's example table for luminance (ITU-T T.81, table K.1), used here for all channels
LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)


def degraded(images: Tensor, numbers: Tensor) -> Tensor:
    """Degrade each image by a different amount.

    Args:
        images: (B, C, S, S) float32 in [0, 1].
        numbers: (B, DEGRADE_NUMBERS) uniform random numbers in [0, 1); the first one decided that an image is degraded.
    """
    shrink, quality = (
        low + (high - low) * numbers[:, column] for column, (low, high) in enumerate((SHRINK, QUALITY), start=1)
    )
    return jpeg_like(shrink_and_enlarge(images, shrink), quality)


def shrink_and_enlarge(images: Tensor, share: Tensor) -> Tensor:
    """Resize to `share` (B,) of the side by area and back bilinearly. Both are linear: one matrix per image."""
    side = images.shape[-1]
    small = (side * share).round().clamp(min=2)[:, None, None]  # pixels of the small copy
    pixel = torch.arange(side, device=images.device)
    row, column = pixel[None, :, None], pixel[None, None, :]
    # overlap of source pixel `column` with cell `row` of the small copy
    cell = side / small
    down = (torch.minimum((row + 1) * cell, column + 1) - torch.maximum(row * cell, column)).clamp(min=0) / cell
    # position of pixel `row` of the result between the centers of the small copy
    place = ((row + 0.5) / cell - 0.5).clamp(min=0)
    up = (1 - (torch.minimum(place, small - 1) - column).abs()).clamp(min=0)
    matrix = up @ down  # (B, side, side)
    return products(images, matrix, matrix)


def jpeg_like(images: Tensor, quality: Tensor) -> Tensor:
    """Round the cosine transform of 8 x 8 blocks as JPEG does at a quality (B,) from 1 to 100, without subsampling."""
    batch, channels, side, _ = images.shape
    padded = math.ceil(side / BLOCK) * BLOCK
    x = torch.nn.functional.pad(images, (0, padded - side, 0, padded - side), mode="replicate") * 255 - 128
    x = x.unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).transpose(3, 4)  # (B, C, rows, columns, 8, 8)
    transform = _cosines(images.device)
    table = _luminance(images.device)
    scale = torch.where(quality < 50, 50 / quality, 2 - quality / 50)[:, None, None]
    steps = (table * scale).clamp(min=1)[:, None, None, None]  # (B, 1, 1, 1, 8, 8)
    x = ((transform @ x @ transform.T) / steps).round_() * steps
    x = (transform.T @ x @ transform).transpose(3, 4).reshape(batch, channels, padded, padded)
    return ((x + 128) / 255).clamp_(0, 1)[..., :side, :side]


@cache
def _luminance(device: torch.device) -> Tensor:
    return torch.tensor(LUMINANCE).to(device, non_blocking=True)


def _cosines(device: torch.device) -> Tensor:
    """Return the orthonormal cosine transform of 8 samples: (8, 8)."""
    k, n = torch.arange(BLOCK, device=device)[:, None], torch.arange(BLOCK, device=device)[None]
    matrix = (math.pi * (2 * n + 1) * k / (2 * BLOCK)).cos() * math.sqrt(2 / BLOCK)
    matrix[0] /= math.sqrt(2)
    return matrix
