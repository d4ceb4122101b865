"""Make gray or RGB of the values of a TIFF page, and turn it upright, as Pillow does for a whole image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from PIL import Image

from nnclr_hub.errors import UnsupportedImage
from nnclr_hub.images.color import to_8_bits, to_rgb
from nnclr_hub.images.readers.stack import Box, ImageStack

_ORIENTATION = 274  # tag
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _CMYK, _YCBCR = 0, 1, 2, 3, 5, 6  # photometric interpretations
_LAB = (8, 9, 10)
_LOSSLESS = (1, 5, 8, 32773, 32946, 34925, 50000)  # compressions that keep the stored color space
_ASSOCIATED, _UNASSOCIATED = 1, 2  # alpha, with which the colors are multiplied or not
_STEPS = {2: 85, 4: 17}  # bits of gray: the factor to 255


def in_gray_or_rgb(stack: ImageStack, page: Any) -> ImageStack:
    """Return the stack of a file with the channels that its photometric interpretation means.

    White that is 0 is inverted, a palette and CMYK become RGB. Alpha is a channel only if it is selected; without it
    transparent pixels are blended with white. Other numbers of channels and other types stay as they are.

    Args:
        page: of tifffile, the first one of the series.
    """
    kind, bits, channels = int(page.photometric), page.bitspersample, stack.channels
    extra = tuple(map(int, page.extrasamples))
    if channels == 3 and (kind in _LAB or (kind == _YCBCR and page.compression in _LOSSLESS)):
        return _refusing(stack, "CIELab" if kind in _LAB else "YCbCr without JPEG")
    if kind == _WHITE_IS_ZERO and channels == 1 and stack.dtype == np.uint16:
        return replace(stack, inverted=True)  # after the scale is found, as the file may have 12 bits
    if kind == _RGB and channels == 4 and stack.dtype == np.uint16 and extra in ((_ASSOCIATED,), (_UNASSOCIATED,)):
        return _blended_wide(stack, multiplied=extra == (_ASSOCIATED,))
    if stack.dtype not in (np.uint8, np.bool_):
        return stack
    if kind == _CMYK and channels == 4 and not extra:
        if page.compression not in _LOSSLESS:
            return _refusing(stack, "CMYK with JPEG")
        return _converted(stack, 3, lambda values: np.asarray(Image.fromarray(values, "CMYK").convert("RGB")))
    if kind == _PALETTE and channels == 1 and page.colormap is not None:
        palette = (np.asarray(page.colormap) >> 8).astype(np.uint8).T
        return _converted(stack, 3, lambda values: palette[values[:, :, 0].astype(np.uint8)])
    if kind == _RGB and channels == 4 and extra in ((_ASSOCIATED,), (_UNASSOCIATED,)):
        return _blended(stack, "RGBa" if extra == (_ASSOCIATED,) else "RGBA")
    if kind == _BLACK_IS_ZERO and channels == 2 and extra == (_UNASSOCIATED,):
        return _blended(stack, "LA")
    if kind in (_WHITE_IS_ZERO, _BLACK_IS_ZERO) and channels == 1:
        if stack.dtype == np.uint8 and (step := _STEPS.get(bits)):
            stack = _converted(stack, 1, lambda values: values * np.uint8(step))
        return _converted(stack, 1, np.invert) if kind == _WHITE_IS_ZERO else stack
    return stack


def _converted(stack: ImageStack, channels: int, convert: Callable[[np.ndarray], np.ndarray]) -> ImageStack:
    """Return a stack whose pixels (h, w, C) are converted together."""
    every = range(stack.channels)

    def read(page: int, wanted: Sequence[int], box: Box | None) -> np.ndarray:
        return convert(stack.read(page, every, box))[:, :, list(wanted)]

    return replace(stack, channels=channels, read=read, dtype=stack.dtype if channels == 1 else np.dtype(np.uint8))


def _blended(stack: ImageStack, mode: str) -> ImageStack:
    """Return a stack whose last channel, alpha, is read only if it is selected."""
    alpha = stack.channels - 1
    every = range(stack.channels)

    def read(page: int, wanted: Sequence[int], box: Box | None) -> np.ndarray:
        if alpha in wanted:
            return stack.read(page, wanted, box)
        values = np.ascontiguousarray(stack.read(page, every, box))
        image = Image.frombytes(mode.upper(), values.shape[1::-1], values.tobytes(), "raw", mode)
        return np.asarray(to_rgb(image))[:, :, list(wanted)]

    return replace(stack, read=read, unselected=tuple(range(alpha)))


def _blended_wide(stack: ImageStack, *, multiplied: bool) -> ImageStack:
    """Return a stack of 16 bits whose last channel, alpha, is read only if it is selected.

    Args:
        multiplied: whether the colors are multiplied with alpha already.
    """
    mode = "RGBa" if multiplied else "RGBA"

    def read(page: int, wanted: Sequence[int], box: Box | None) -> np.ndarray:
        if 3 in wanted:
            return stack.read(page, wanted, box)
        values = stack.read(page, range(4), box)
        parts = (values[:, :, :3], values[:, :, 3:])  # apart: the colors of 12 bits may have an alpha of 16
        narrow = np.concatenate([to_8_bits(part, "depth") for part in parts], axis=2)
        image = Image.frombytes("RGBA", narrow.shape[1::-1], narrow.tobytes(), "raw", mode)
        return np.asarray(to_rgb(image))[:, :, list(wanted)]

    return replace(stack, read=read, unselected=(0, 1, 2))


def _refusing(stack: ImageStack, colors: str) -> ImageStack:
    """Return a stack that is not read in parts; Pillow reads the whole file."""

    def read(page: int, wanted: Sequence[int], box: Box | None) -> NoReturn:
        raise UnsupportedImage(
            f"The TIFF file has colors in {colors}, of which no page or channel can be chosen; save it as RGB."
        )

    return replace(stack, read=read, regions=False)


def upright(stack: ImageStack, page: Any) -> ImageStack:
    """Return a stack that is turned and mirrored by its orientation, which has the values of EXIF."""
    orientation = page.tags.valueof(_ORIENTATION, default=1)
    if orientation not in range(2, 9):
        return stack
    rows, columns, swapped = orientation in (3, 4, 6, 7), orientation in (2, 3, 7, 8), orientation >= 5
    width, height = stack.size
    turned = slice(None, None, -1)

    def read(page: int, wanted: Sequence[int], box: Box | None) -> np.ndarray:
        if box is not None:
            left, top, right, bottom = (box[1], box[0], box[3], box[2]) if swapped else box
            left, right = (width - right, width - left) if columns else (left, right)
            top, bottom = (height - bottom, height - top) if rows else (top, bottom)
            box = (left, top, right, bottom)
        values = stack.read(page, wanted, box)
        values = values[turned if rows else slice(None), turned if columns else slice(None)]
        return values.transpose(1, 0, 2) if swapped else values

    return replace(stack, size=(height, width) if swapped else (width, height), read=read)
