"""What makes maps of boxed images: an encoder at some size, or a place that looks at nothing.

An encoder sees each image once. Its feature maps wait in a file until a query of another image is
looked for in them, which gives what `Encoder.attention` gives.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import BinaryIO, Protocol

import numpy as np
from PIL import Image

from nnclr_hub.encoder.attention import AttentionSettings, Box
from nnclr_hub.encoder.attention.looker import Prepared, Seen
from nnclr_hub.encoder.encoder import Encoder

from .boxed import BoxedImage
from .places import Place

NOTHING = Image.new("RGB", (1, 1))


@dataclass(frozen=True)
class Sight:
    """An image that was seen.

    size: its width and height, in which boxes are given and maps come.
    seen: without pixels and features; None: there is nothing to it but its size.
    start, shape: where the features lie in the file.
    """

    size: tuple[int, int]
    seen: Seen | None = None
    start: int = 0
    shape: tuple[int, ...] = ()


class Eye(Protocol):
    """What looks at images. `asks`: whether its maps depend on what is looked for."""

    asks: bool

    def look(self, picture: BoxedImage) -> tuple[np.ndarray, Sight]:
        """The (H, W) map of an image without a query, and what `find` needs of it.

        Raises:
            ImageError: it cannot be read.
        """
        ...

    def find(self, asked: Sight, box: np.ndarray, target: Sight) -> np.ndarray:
        """The (H, W) map of a target for a box (x0, y0, x1, y1) of the image that was asked about."""
        ...


class PlaceEye:
    """A place, as an eye that is shut."""

    asks = False

    def __init__(self, place: Place) -> None:
        self._place = place

    def look(self, picture: BoxedImage) -> tuple[np.ndarray, Sight]:
        return self._place.draw(*picture.size), Sight(picture.size)

    def find(self, asked: Sight, box: np.ndarray, target: Sight) -> np.ndarray:
        return self._place.draw(*target.size)


class EncoderEye:
    """An encoder that sees images at their own size, or at another.

    Args:
        encoder: a ResNet or a vision transformer.
        short_side: to which the short side of an image is brought, in pixels; 0: as it is.
        similarity: "dot" or "cosine".
        memory: an empty file for its feature maps.

    Raises:
        InvalidRequest: there are no such maps of the encoder.
    """

    asks = True

    def __init__(self, encoder: Encoder, short_side: int, similarity: str, memory: BinaryIO) -> None:
        self._looker, self._short_side, self._file = encoder.looker, short_side, memory
        self._settings = AttentionSettings(similarity=similarity)
        self._looker.check(self._settings)

    def look(self, picture: BoxedImage) -> tuple[np.ndarray, Sight]:
        image = picture.read()
        if self._short_side:
            scale = self._short_side / min(image.size)
            width, height = (max(1, round(scale * side)) for side in image.size)
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        seen = self._looker.forward(self._looker.prepare(image, self._settings))
        # the same cells, in the pixels that boxes are given in
        grid = self._looker.anatomy.grid(seen.features.shape[:2], seen.grid.input_size, picture.size)
        (found,) = self._looker.maps(self._settings, replace(seen, grid=grid))
        start = self._file.seek(0, os.SEEK_END)
        self._file.write(np.ascontiguousarray(seen.features).tobytes())
        self._file.flush()
        empty = np.zeros((0, 0, 0), np.float32)
        light = replace(seen, prepared=Prepared(NOTHING, empty), grid=grid, features=empty, rows=None)
        return grid.upsampled(found.values), Sight(picture.size, light, start, seen.features.shape)

    def find(self, asked: Sight, box: np.ndarray, target: Sight) -> np.ndarray:
        settings = replace(self._settings, query=Box(*map(float, box)))
        (found,) = self._looker.maps(settings, self._recalled(asked), [self._recalled(target)])
        return found.grid.upsampled(found.values)

    def _recalled(self, sight: Sight) -> Seen:
        assert sight.seen is not None
        raw = os.pread(self._file.fileno(), 4 * int(np.prod(sight.shape)), sight.start)
        return replace(sight.seen, features=np.frombuffer(bytearray(raw), np.float32).reshape(sight.shape))
