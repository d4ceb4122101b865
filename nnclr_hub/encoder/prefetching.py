"""Images decoded by several threads while the network is busy with those before them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np

from nnclr_hub.encoder.given import ImageLike, Stored
from nnclr_hub.errors import ImageError


def prepared_ahead(
    images: Iterable[ImageLike | Stored], prepare: Callable[[ImageLike | Stored], np.ndarray], batch: int
) -> Iterator[list[np.ndarray | ImageError]]:
    """Batches of crops, in order; the next batch is prepared while the caller has this one.

    Args:
        images: any number.
        prepare: one image to its crop; an ImageError of its takes the crop's place.
        batch: images a batch.
    """

    def attempt(image: ImageLike | Stored) -> np.ndarray | ImageError:
        try:
            return prepare(image)
        except ImageError as error:
            return error

    rest = iter(images)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ahead = [pool.submit(attempt, image) for image in islice(rest, batch)]
        while ahead:
            current, ahead = ahead, [pool.submit(attempt, image) for image in islice(rest, batch)]
            yield [future.result() for future in current]
