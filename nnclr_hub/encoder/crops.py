"""Several crops of an image, whose vectors are averaged.

    encoder.embed(["a.jpg"], crops=10)

An average over parts of the image is often a better vector than one of its center, at N times the cost (BagSSL, TMLR
2023; EMP-SSL, arXiv 2304.03977). docs/results/starter.md has both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.inputs import ImageLike, as_source
from nnclr_hub.encoder.preprocessing import Transform
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.images.channels import AnyImage
from nnclr_hub.read_ahead import batches, read_ahead

MAX_CROPS = 128
TINY = 1e-12
MIRROR = Image.Transpose.FLIP_LEFT_RIGHT
MIN_SHARE = 0.3  # of the image's area
BASES = (2, 3, 5)  # of the Halton sequence: area, position across, position down


@dataclass(frozen=True)
class CropMean:
    """A feature source with the means over several crops of an encoder, for evaluations with and without."""

    encoder: Any
    crops: int

    @property
    def name(self) -> str:
        """The encoder's name."""
        return self.encoder.name

    @property
    def fingerprint(self) -> str:
        """Identity of the vectors in caches; they are not stored in collections under it."""
        return f"{self.encoder.fingerprint}-{self.crops}-crops"

    @property
    def precision(self) -> str:
        """Precision of the encoder's backend: "fp32" or "bf16"."""
        return self.encoder.precision

    @property
    def embed_dim(self) -> int:
        """D."""
        return self.encoder.embed_dim

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """Return (D,) float32 per image, or its ImageError."""
        return list(self.encoder.embed_in_order(images, unit=False, crops=self.crops))


def embed_crops(
    transform: Transform,
    forward: Callable[..., np.ndarray],
    images: Iterable[ImageLike],
    crops: int,
    unit: bool,
    size: int,
) -> Iterator[np.ndarray | ImageError]:
    """Yield the mean of the unit vectors of several crops of each image, or the ImageError of an image.

    Args:
        transform: reads images and cuts crops.
        forward: (N, S, S, C) -> (N, D) unit vectors.
        images: see `Encoder.embed_in_order`; not a tensor.
        crops: per image, 1 to 128.
        unit: whether the mean is normalized.
        size: crops per forward pass.

    Raises:
        InvalidRequest: `crops` is out of range.
    """
    if not 1 <= crops <= MAX_CROPS:
        raise InvalidRequest(f"crops must be between 1 and {MAX_CROPS}, got {crops}.")

    def views(image: ImageLike) -> np.ndarray | ImageError:
        try:
            decoded = transform.read_image(as_source(image))
        except ImageError as error:
            return error
        return np.stack([transform.crop(view) for view in crop_views(decoded, crops)])

    for _, prepared in read_ahead(batches(images, max(1, size // crops)), views, usable_cores()):
        good = [one for one in prepared if isinstance(one, np.ndarray)]
        rows = np.concatenate(good) if good else np.zeros((0, 0))
        vectors = [forward(rows[start : start + size]) for start in range(0, len(rows), size)]
        means = iter(np.concatenate(vectors).reshape(len(good), crops, -1).mean(axis=1) if good else ())
        for one in prepared:
            if isinstance(one, ImageError):
                yield one
            else:
                mean = next(means)
                yield mean / max(float(np.linalg.norm(mean)), TINY) if unit else mean


def crop_views(image: AnyImage, crops: int) -> Iterator[AnyImage]:
    """Yield views of an upright image: itself, its mirror image, and then squares of 0.3 to 1 of its area.

    The squares follow a Halton sequence, so they are the same for each call and cover position and size evenly; every
    second one is mirrored. The first N of more crops are the crops of N.

    Args:
        image: upright.
        crops: N >= 1.
    """
    yield image
    if crops > 1:
        yield image.transpose(MIRROR)
    for number in range(1, crops - 1):
        area, across, down = (_halton(number, base) for base in BASES)
        side = (MIN_SHARE + (1 - MIN_SHARE) * area) ** 0.5
        # a square of that share of the largest one in the image
        length = max(1, round(side * min(image.size)))
        left, top = round(across * (image.width - length)), round(down * (image.height - length))
        view = image.crop((left, top, left + length, top + length))
        yield view.transpose(MIRROR) if number % 2 else view


def _halton(index: int, base: int) -> float:
    """Return element `index` of the van der Corput sequence in a base, in [0, 1)."""
    value, fraction = 0.0, 1.0
    while index:
        fraction /= base
        index, digit = divmod(index, base)
        value += digit * fraction
    return value
