"""Batches of images in memory, for tests of steps."""

from collections.abc import Sequence

import numpy as np
import torch

from training.data.batches import Batches, Order, Views
from training.data.image_pack import ImagePack, PackedPixels

CPU = torch.device("cpu")


def pack_of(images: np.ndarray) -> ImagePack:
    """Return a pack of images (N, S, S, C) uint8 in memory."""
    sizes = np.full((len(images), 2), images.shape[1])
    flat = np.append(images.ravel(), np.zeros(images.shape[2] * images.shape[3], np.uint8))
    return ImagePack(flat, sizes, sizes, np.arange(len(images)), channels=images.shape[3])


def copy_in(pack: ImagePack, row: int) -> np.ndarray:
    """Return the copy of an image: (H, W, C) uint8."""
    ends = np.cumsum(pack.stored.prod(axis=1)) * pack.channels
    height, width = pack.stored[row]
    return pack.pixels[: ends[row]][-height * width * pack.channels :].reshape(height, width, pack.channels)


def packed_batches(
    squares: np.ndarray,
    batch_size: int,
    views: Views,
    *,
    where: torch.device = CPU,
    labels: np.ndarray | None = None,
    folders: Sequence[int] = (),
    residency: str = "auto",
    rank: int = 0,
    world: int = 1,
) -> Batches:
    """Return the batches of images (N, S, S, C) uint8 of seed 0; folders: their numbers of images, by default one."""
    order = Order(np.array(folders or [len(squares)]), batch_size, 0)
    return Batches(
        PackedPixels(pack_of(squares), where, residency),
        np.full(len(squares), -1) if labels is None else labels,
        order,
        views=views,
        where=where,
        rank=rank,
        world=world,
    )
