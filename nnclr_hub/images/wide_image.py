"""Images of 16 bits per channel that Pillow opens in a mode of 8 bits, with the high byte of each value.

Pillow decodes such a file a second time for the low bytes. So all values are known, and are scaled as those of other
16-bit images. Strips of rows keep the memory low.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from nnclr_hub.images.color import LOST, STRIP, black_and_white, scaled

_ORIENTATION = 0x0112  # EXIF tag
_NATIVE_LOW = ";16B" if sys.byteorder == "little" else ";16L"  # as if the order were the other one
_LOW = {";16B": ";16L", ";16L": ";16B", ";16N": _NATIVE_LOW}  # raw mode of the high bytes: that of the low ones
_WHITE = 65535

Rows = Callable[[int, int], np.ndarray]  # (top, bottom) -> (rows, W, C) uint16


class _Layout(NamedTuple):
    """colors: number of channels that are colors; the next one, if any, is alpha. mode: of the 8-bit image."""

    colors: int
    mode: str


_LAYOUTS = {
    "RGB": _Layout(3, "RGB"),
    "RGBA": _Layout(3, "RGBA"),
    "RGBa": _Layout(3, "RGBa"),
    "CMYK": _Layout(4, "CMYK"),
}


def is_wide(image: Image.Image) -> bool:
    """Return whether an image that is opened and not yet loaded has 16 bits per channel in a mode of 8 bits."""
    return image.mode in ("RGB", "RGBA", "CMYK") and (
        _raw_mode(image)[-4:] in _LOW or (image.format == "PPM" and _ppm_white(image) == _WHITE)
    )


def eight_bits(image: Image.Image, file: BinaryIO) -> Image.Image:
    """Return a wide image in 8 bits, with the brightest value as `black_and_white` says; colors and alpha apart.

    Args:
        image: see `is_wide`.
        file: from which it was opened.
    """
    rows, layout, size = _rows(image, file)
    key = image.info.get("transparency")  # of a PNG in RGB: the color of transparent pixels
    key = key if isinstance(key, tuple) and layout.mode == "RGB" else None
    most = np.zeros(2)
    for top in _tops(size):
        values = rows(top, _bottom(top, size))
        most = np.maximum(most, [values[..., part].max(initial=0) for part in _parts(layout)])
    limits = [black_and_white(0, high, floats=False) for high in most]
    digest = hashlib.sha256()
    mode = "RGBA" if key else layout.mode
    whole = np.empty((size[1], size[0], len(Image.getmodebands(mode) * "x")), np.uint8)
    for top in _tops(size):
        values, part = rows(top, _bottom(top, size)), slice(top, _bottom(top, size))
        digest.update(np.ascontiguousarray(values).data)
        for channels, limit in zip(_parts(layout), limits, strict=True):
            if values[..., channels].size:
                whole[part, :, channels] = scaled(values[..., channels].astype(np.float64), *limit)
        if key is not None:
            whole[part, :, 3] = np.where((values == np.array(key)).all(axis=2), 0, 255)
    narrow = Image.frombuffer(mode.upper(), size, whole, "raw", mode, 0, 1)
    narrow.info[LOST] = digest.digest()
    orientation = image.getexif().get(_ORIENTATION, 1)
    if image.format != "TIFF" and orientation != 1:  # Pillow has turned those of TIFF
        exif = Image.Exif()
        exif[_ORIENTATION] = orientation
        narrow.info["exif"] = exif.tobytes()
    return narrow


def _parts(layout: _Layout) -> tuple[slice, slice]:
    return slice(0, layout.colors), slice(layout.colors, None)


def _tops(size: tuple[int, int]) -> range:
    return range(0, size[1], max(1, STRIP // size[0]))


def _bottom(top: int, size: tuple[int, int]) -> int:
    return min(size[1], top + max(1, STRIP // size[0]))


def _rows(image: Image.Image, file: BinaryIO) -> tuple[Rows, _Layout, tuple[int, int]]:
    if image.format == "PPM":
        file.seek(image.tile[0].offset)  # type: ignore[attr-defined]
        width, height = image.size
        data = file.read(width * height * 6)
        if len(data) < width * height * 6:
            raise OSError("image file is truncated")
        values = np.frombuffer(data, ">u2").reshape(height, width, 3)
        return lambda top, bottom: values[top:bottom], _LAYOUTS["RGB"], image.size
    raw = _raw_mode(image)
    if raw == "LA;16B":  # both bytes of gray and alpha, read as four channels
        both = _loaded(image, file, lambda mode: "RGBA")

        def gray(top: int, bottom: int) -> np.ndarray:
            parts = _crop(both, top, bottom).astype(np.uint16)
            values = parts[..., ::2] << 8 | parts[..., 1::2]
            return values[..., [0, 0, 0, 1]]

        return gray, _LAYOUTS["RGBA"], both.size

    # as RGBa, Pillow would divide the bytes by alpha
    high = _loaded(image, file, lambda mode: mode.replace("RGBa", "RGBA"))
    low = _loaded(image, file, lambda mode: mode.replace("RGBa", "RGBA")[:-4] + _LOW[mode[-4:]])

    def read(top: int, bottom: int) -> np.ndarray:
        return _crop(high, top, bottom).astype(np.uint16) << 8 | _crop(low, top, bottom)

    return read, _LAYOUTS["RGBa" if raw.startswith("RGBa") else image.mode], high.size


def _crop(image: Image.Image, top: int, bottom: int) -> np.ndarray:
    return np.asarray(image.crop((0, top, image.width, bottom)))


def _loaded(image: Image.Image, file: BinaryIO, change: Callable[[str], str]) -> Image.Image:
    """Decode a file with other raw modes."""
    file.seek(0)
    again: Any = Image.open(file, formats=[image.format or ""])
    again.tile = [
        one._replace(args=(change(one.args[0]), *one.args[1:]) if isinstance(one.args, tuple) else change(one.args))
        for one in again.tile
    ]
    again.load()
    return again


def _raw_mode(image: Any) -> str:
    """Return the raw mode of the first part of an opened image; "" if it has none."""
    tile = getattr(image, "tile", None)
    arguments = tile[0].args if tile else ""
    mode = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return mode if isinstance(mode, str) else ""


def _ppm_white(image: Any) -> int:
    """Return the value of white of a binary PPM whose values are not bytes; 0 for another one."""
    tile = image.tile[0] if image.tile else None
    return tile.args[1] if tile is not None and tile.codec_name == "ppm" else 0
