"""ChannelImage: an 8-bit image with a number of channels for which Pillow has no mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image


class ChannelImage:
    """An upright image of C channels, with the methods of a PIL image that the library uses.

    Args:
        pixels: (H, W, C) uint8.
    """

    mode = "channels"

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.pixels, dtype) if dtype is not None or copy else self.pixels

    height = property(lambda self: self.pixels.shape[0])
    width = property(lambda self: self.pixels.shape[1])
    channels = property(lambda self: self.pixels.shape[2])

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.width, self.height

    def resize(self, size: tuple[int, int], *arguments: Any, **options: Any) -> ChannelImage:
        """Resize each channel as Pillow resizes a gray image; for the arguments see `PIL.Image.Image.resize`."""
        return self._by_channel(lambda one: one.resize(size, *arguments, **options))

    def crop(self, box: Sequence[float]) -> ChannelImage:
        """Cut out a box; what is outside the image is 0."""
        return self._by_channel(lambda one: one.crop(tuple(box)))  # type: ignore[arg-type]

    def transpose(self, method: Any) -> ChannelImage:
        """Mirror or rotate by 90 degrees."""
        return self._by_channel(lambda one: one.transpose(method))

    def tobytes(self) -> bytes:
        """Return the pixels row by row."""
        return self.pixels.tobytes()

    def convert(self, mode: str) -> Image.Image:
        """Return an image for people in a mode of Pillow: the first three channels as red, green and blue."""
        shown = self.pixels[:, :, :3]
        if shown.shape[2] == 1:
            return Image.fromarray(shown[:, :, 0]).convert(mode)
        if shown.shape[2] == 2:
            shown = np.concatenate([shown, np.zeros_like(shown[:, :, :1])], axis=2)
        return Image.fromarray(np.ascontiguousarray(shown)).convert(mode)

    def _by_channel(self, change: Callable[[Image.Image], Image.Image]) -> ChannelImage:
        channels = (Image.fromarray(np.ascontiguousarray(self.pixels[:, :, i])) for i in range(self.channels))
        return ChannelImage(np.stack([np.asarray(change(one)) for one in channels], axis=2))


AnyImage = Image.Image | ChannelImage


def for_people(image: AnyImage) -> Image.Image:
    """Return an image as RGB, for thumbnails and reports."""
    return image if isinstance(image, Image.Image) and image.mode == "RGB" else image.convert("RGB")
