"""Batches of images in memory, for tests of steps."""

from collections.abc import Sequence

import numpy as np
import torch

from training.data.batches import Batches, Order, Views
from training.data.image_pack import ImagePack, PackedPixels

CPU = torch.device("cpu")


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
        PackedPixels(ImagePack.of_squares(squares), where, residency),
        np.full(len(squares), -1) if labels is None else labels,
        order,
        views=views,
        batch_size=batch_size,
        seed=0,
        where=where,
        rank=rank,
        world=world,
    )
