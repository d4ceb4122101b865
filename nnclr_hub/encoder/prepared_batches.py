"""Batches of crops, prepared in other threads ahead of the network that takes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np

from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.inputs import ImageLike
from nnclr_hub.errors import ImageError
from nnclr_hub.images.pool import LIGHT, TOGETHER, active_pool
from nnclr_hub.read_ahead import batches, read_ahead


def prepared_batches(
    prepare_each: Callable[[Sequence[ImageLike]], list[np.ndarray | Exception]],
    images: Iterable[ImageLike],
    batch_size: int,
) -> Iterator[list[np.ndarray | ImageError]]:
    """Yield batches of crops, in order; other threads prepare the next batch while the caller uses this one.

    Args:
        prepare_each: see `Encoder.prepare_each`; exceptions other than ImageError are raised here.
        images: any number; consumed two batches ahead.
        batch_size: crops per batch.
    """

    def attempt(images: Sequence[ImageLike]) -> list[np.ndarray | ImageError]:
        crops = prepare_each(images)
        for crop in crops:
            if not isinstance(crop, np.ndarray | ImageError):
                raise crop
        return cast(list[np.ndarray | ImageError], crops)

    # processes take several small images at a time, which saves messages
    most = TOGETHER if active_pool() is not None else 1
    parts = (list(batches(batch, most, _weight, LIGHT)) for batch in batches(images, batch_size))
    for _, results in read_ahead(parts, attempt, usable_cores()):
        yield list(chain.from_iterable(results))


def readable_batches(
    prepare_each: Callable[[Sequence[ImageLike]], list[np.ndarray | Exception]],
    images: Sequence[ImageLike],
    batch_size: int,
) -> Iterator[np.ndarray]:
    """Yield batches of crops (B, S, S, C); for the arguments see `prepared_batches`.

    Raises:
        ImageError: of the first image that cannot be read; the message names it.
    """
    seen = 0
    for crops in prepared_batches(prepare_each, images, batch_size):
        for index, crop in enumerate(crops, seen):
            if isinstance(crop, ImageError):
                raise crop.for_image(images[index], index) from crop
        seen += len(crops)
        yield np.stack(crops)  # type: ignore[arg-type]


def _weight(image: ImageLike) -> int:
    """Return the bytes of an image that a decoding process may take with others; otherwise more than LIGHT."""
    try:
        if isinstance(image, bytes | str | Path):
            return len(image) if isinstance(image, bytes) else os.path.getsize(image)
    except (OSError, ValueError):  # decoding reports the error
        return 0
    return LIGHT // TOGETHER if hasattr(image, "read") else LIGHT + 1
