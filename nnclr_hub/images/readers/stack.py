"""ImageStack: an opened image file of several pages and channels, and the selection of what becomes pixels."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.errors import ImageError, ImageTooLarge, UnsupportedImage
from nnclr_hub.images.channels import AnyImage, ChannelImage
from nnclr_hub.images.color import LOST, to_8_bits
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.images.source import Box

MAX_BYTES = 1_000_000_000  # most bytes of the selected channels of one page, before they become 8 bits


@dataclass(frozen=True)
class ImageStack:
    """An opened file: pages of equal size, each with the same channels. Nothing is decoded until `read` is called.

    pages, channels: their numbers.
    size: width and height in pixels.
    dtype: type of the values.
    read: (page, channels, box) -> (h, w, C) of dtype; the box is inside the page, None: the whole page.
    window: the values that become black and white, if the file names them: numbers, or one for each channel.
    regions: whether `read` needs no more memory for a box than for its pixels and a few blocks of the file.
    unselected: the channels that are read if the caller selects none; None: all.
    inverted: whether black and white change places after the values became 8 bits.
    """

    pages: int
    channels: int
    size: tuple[int, int]
    dtype: np.dtype
    read: Callable[[int, Sequence[int], Box | None], np.ndarray]
    window: tuple[Any, Any] | None = None
    regions: bool = False
    unselected: tuple[int, ...] | None = None
    inverted: bool = False


def check_fit(channels: int, bands: int | None, *, chosen: bool = False) -> None:
    """Check that a number of channels becomes an image of so many bands; None: any.

    Args:
        chosen: whether a reading names the channels, so the image may have others.

    Raises:
        UnsupportedImage: it does not.
    """
    if bands is None or channels == bands or (channels == 1 and bands == 3) or (channels == 3 and bands == 1):
        return
    if chosen:
        wanted = "one as gray or three as red, green and blue" if bands in (1, 3) else f"{bands}"
        raise UnsupportedImage(f"--channels names {channels}, and the encoder takes {bands}; choose {wanted}.")
    if bands in (1, 3):
        raise UnsupportedImage(
            f"The image has {channels} channels, and the encoder takes {bands}; choose one as gray or three as red, "
            "green and blue, such as --channels 0,1,2."
            if channels > 3
            else f"The image has {channels} channels, and the encoder takes {bands}; choose one, such as --channels 0."
        )
    raise UnsupportedImage(
        f"The image has {channels} channel{'s' * (channels != 1)}, and the encoder takes {bands}; use images with "
        f"{bands} channels, or choose {bands} with --channels."
    )


def selected_pages(stack: ImageStack, reading: ImageReading) -> range:
    """Return the pages that a reading selects.

    Raises:
        UnsupportedImage: the file has fewer pages.
    """
    if reading.project:
        return range(stack.pages)
    page = reading.page or 0
    if page >= stack.pages:
        raise UnsupportedImage(
            f"The image has {stack.pages} page{'s' * (stack.pages != 1)}, numbered from 0; page {page} does not exist."
        )
    return range(page, page + 1)


def selected_channels(stack: ImageStack, reading: ImageReading) -> tuple[int, ...]:
    """Return the channels that a reading selects.

    Raises:
        UnsupportedImage: the file has fewer channels.
    """
    if reading.channels and max(reading.channels) >= stack.channels:
        raise UnsupportedImage(
            f"The image has {stack.channels} channel{'s' * (stack.channels != 1)}, numbered from 0; channel "
            f"{max(reading.channels)} does not exist."
        )
    return reading.channels or stack.unselected or tuple(range(stack.channels))


def read_selected(
    stack: ImageStack,
    reading: ImageReading,
    bands: int | None,
    check_size: Callable[[int, int], None],
    box: Box | None = None,
) -> AnyImage:
    """Read the selected channels of the selected pages as 8 bits.

    Args:
        bands: number of channels that the caller takes; None: any.
        check_size: called with width and height before anything is decoded.
        box: part of the page.

    Returns:
        One channel and three channels as RGB, other numbers as a ChannelImage.

    Raises:
        UnsupportedImage: the selection does not exist, or does not fit.
        ImageTooLarge: it is too large.
        ImageError: the file is broken.
    """
    channels, pages = selected_channels(stack, reading), selected_pages(stack, reading)
    check_fit(len(channels), bands, chosen=bool(reading.channels))
    width, height = stack.size if box is None else (box[2] - box[0], box[3] - box[1])
    if width < 1 or height < 1:
        raise ImageError("The image has no pixels.")
    if stack.dtype.kind == "c":
        raise UnsupportedImage("The image has complex numbers; save their magnitude, or real and imaginary channels.")
    check_size(width, height)
    if width * height * len(channels) * stack.dtype.itemsize > MAX_BYTES:
        raise ImageTooLarge(
            f"{len(channels)} channels of {width} x {height} pixels exceed the limit of {MAX_BYTES // 10**6} MB; "
            "choose fewer with --channels."
        )
    values = stack.read(pages[0], channels, box)
    for page in pages[1:]:
        values = np.maximum(values, stack.read(page, channels, box))
    pixels = to_8_bits(values, reading.scale, stack.window)
    image = as_image(np.invert(pixels) if stack.inverted else pixels)
    if isinstance(image, Image.Image) and values.dtype.itemsize > 1:
        image.info[LOST] = hashlib.sha256(np.ascontiguousarray(values).data).digest()
    return image


def as_image(pixels: np.ndarray) -> AnyImage:
    """Return (H, W, C) uint8 as RGB if it has one channel or three, or else as a ChannelImage."""
    if pixels.shape[2] == 1:
        return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0])).convert("RGB")
    if pixels.shape[2] == 3:
        return Image.fromarray(np.ascontiguousarray(pixels))
    return ChannelImage(np.ascontiguousarray(pixels))


def paste(result: np.ndarray, block: np.ndarray, corner: tuple[int, int]) -> None:
    """Copy a block (h, w, C) to its place (x, y), as far as it is inside the result."""
    x, y = corner
    height, width = result.shape[:2]
    inside = result[max(0, y) : min(height, y + block.shape[0]), max(0, x) : min(width, x + block.shape[1])]
    inside[:] = block[max(0, -y) :, max(0, -x) :][: inside.shape[0], : inside.shape[1]]


def load(module: str) -> Any:
    """Import a package. Its CPU seconds do not count against the limit of the image that needs it first.

    Raises:
        ImportError: it is not installed.
    """
    remaining = signal.setitimer(signal.ITIMER_PROF, 0)
    try:
        return import_module(module)
    finally:
        signal.setitimer(signal.ITIMER_PROF, *remaining)
