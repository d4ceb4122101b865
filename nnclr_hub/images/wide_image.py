"""Images of 16 bits per channel that Pillow opens in a mode of 8 bits, with the high byte of each value.

Pillow decodes such a file a second time for the low bytes. So all values are known, and are scaled as those of other
16-bit images. Strips of rows keep the memory low. The numbers of plain PPM are read here. JPEG 2000 of more than 8 bits
is read by imagecodecs: Pillow rounds white up to 256, and stores that as 0.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from nnclr_hub.errors import UnsupportedImage
from nnclr_hub.images.color import LOST, STRIP, black_and_white, scaled
from nnclr_hub.images.readers.stack import load

_ORIENTATION = 0x0112  # EXIF tag
# raw mode of the high bytes: that of the low ones, as if the order of bytes were the other one
_LOW = {";16B": ";16L", ";16L": ";16B", ";16N": ";16B" if sys.byteorder == "little" else ";16L"}
_WHITE = 65535
_CODESTREAM = b"\xff\x4f\xff\x51"  # markers of JPEG 2000 before the sizes
_YCBCR = b"colr\x01\0\0\0\0\0\x12"  # the color space sYCC in JPEG 2000
_COLORS = {"RGB": 3, "RGBA": 3, "RGBa": 3, "CMYK": 4}  # channels of a mode before alpha, if it has any

Rows = Callable[[slice], np.ndarray]  # -> (rows, W, C) uint16


def is_wide(image: Image.Image) -> bool:
    """Return whether an image that is opened and not yet loaded has 16 bits per channel in a mode of 8 bits."""
    if not getattr(image, "tile", None):
        return False
    if image.format == "JPEG2000":
        return image.mode in ("L", "LA", *_COLORS) and max(_depths(image.fp)) > 8  # type: ignore[attr-defined]
    if image.mode not in _COLORS:
        return False
    arguments = image.tile[0].args  # type: ignore[attr-defined]
    return (image.format == "PPM" and arguments[1] == _WHITE) or _raw_mode(image)[-4:] in _LOW


def eight_bits(image: Image.Image, file: BinaryIO) -> Image.Image:
    """Return a wide image in 8 bits, with the brightest value as `black_and_white` says; colors and alpha apart."""
    rows, mode, (width, height) = _rows(image, file)
    key = image.info.get("transparency")  # the color of transparent pixels, in a PNG in RGB
    key = key if isinstance(key, tuple) and mode == "RGB" else None
    parts = slice(0, _COLORS[mode]), slice(_COLORS[mode], None)
    step = max(1, STRIP // width)
    strips = [slice(top, min(height, top + step)) for top in range(0, height, step)]
    most = np.max([[rows(one)[..., part].max(initial=0) for part in parts] for one in strips], axis=0)
    limits = [black_and_white(0, high, floats=False) for high in most]
    digest = hashlib.sha256()
    mode = "RGBA" if key else mode
    whole = np.empty((height, width, len(mode)), np.uint8)
    for strip in strips:
        values = rows(strip)
        digest.update(np.ascontiguousarray(values).data)
        for channels, limit in zip(parts, limits, strict=True):
            if values[..., channels].size:
                whole[strip, :, channels] = scaled(values[..., channels].astype(np.float64), *limit)
        if key is not None:
            whole[strip, :, 3] = np.where((values == np.array(key)).all(axis=2), 0, 255)
    narrow = Image.frombuffer(mode.upper(), (width, height), whole, "raw", mode, 0, 1)
    narrow.info[LOST] = digest.digest()
    orientation = image.getexif().get(_ORIENTATION, 1)
    if image.format != "TIFF" and orientation != 1:  # Pillow has turned those of TIFF
        exif = Image.Exif()
        exif[_ORIENTATION] = orientation
        narrow.info["exif"] = exif.tobytes()
    return narrow


def _rows(image: Image.Image, file: BinaryIO) -> tuple[Rows, str, tuple[int, int]]:
    """Return a function that reads rows, the mode of the image in 8 bits, and its size."""
    if image.format == "JPEG2000":
        return _jpeg2000_rows(image, file)
    if image.format == "PPM":
        file.seek(image.tile[0].offset)  # type: ignore[attr-defined]
        width, height = image.size
        if image.tile[0].codec_name == "ppm_plain":  # type: ignore[attr-defined]
            values = np.fromstring(re.sub(rb"#[^\r\n]*", b"", file.read()), np.uint16, sep=" ")  # type: ignore[arg-type]
        else:
            data = file.read(width * height * 6)
            values = np.frombuffer(data, ">u2", len(data) // 2)
        if len(values) < width * height * 3:
            raise OSError("image file is truncated")
        return values[: width * height * 3].reshape(height, width, 3).__getitem__, "RGB", image.size
    raw = _raw_mode(image)
    if raw == "LA;16B":  # both bytes of gray and alpha, read as four channels
        both = _loaded(image, file, lambda mode: "RGBA")

        def gray_and_alpha(part: slice) -> np.ndarray:
            values = _crop(both, part)
            return _joined(values[..., ::2], values[..., 1::2])[..., [0, 0, 0, 1]]

        return gray_and_alpha, "RGBA", both.size
    # as RGBa, Pillow would divide the bytes by alpha
    high = _loaded(image, file, lambda mode: mode.replace("RGBa", "RGBA"))
    low = _loaded(image, file, lambda mode: mode.replace("RGBa", "RGBA")[:-4] + _LOW[mode[-4:]])
    mode = "RGBa" if raw.startswith("RGBa") else image.mode
    return lambda part: _joined(_crop(high, part), _crop(low, part)), mode, high.size


def _jpeg2000_rows(image: Image.Image, file: BinaryIO) -> tuple[Rows, str, tuple[int, int]]:
    if _YCBCR in _jpeg2000_head(file):
        raise UnsupportedImage("JPEG 2000 of more than 8 bits in YCbCr is not supported; save it as RGB.")
    try:
        imagecodecs = load("imagecodecs")
    except ImportError as error:
        raise UnsupportedImage(
            "JPEG 2000 of more than 8 bits needs the package imagecodecs; pip install 'nnclr_hub[formats]'."
        ) from error
    file.seek(0)
    values = np.atleast_3d(imagecodecs.jpeg2k_decode(file.read()))  # (H, W, C)
    depths = np.array(_depths(file))
    zero = -(2 ** (depths - 1)) if values.dtype.kind == "i" else 0
    order = {"L": [0, 0, 0], "LA": [0, 0, 0, 1]}.get(image.mode, range(len(depths)))

    def rows(part: slice) -> np.ndarray:
        # as Pillow does for gray: values of 12 bits that fill 8 become those of 16 bits that fill 12
        return np.rint((values[part] - zero) * (_WHITE / (2.0**depths - 1))).astype(np.uint16)[..., list(order)]

    return rows, {"L": "RGB", "LA": "RGBA"}.get(image.mode, image.mode), image.size


def _depths(file: BinaryIO) -> list[int]:
    sizes = _jpeg2000_head(file).rpartition(_CODESTREAM)[2]
    return [(bits & 127) + 1 for bits in sizes[38 : 38 + 3 * int.from_bytes(sizes[36:38], "big") : 3]] or [8]


def _jpeg2000_head(file: BinaryIO) -> bytes:
    """Return a file up to the sizes of its first codestream, and keep the position."""
    position = file.tell()
    file.seek(0)
    data = file.read()
    file.seek(position)
    return data[: data.find(_CODESTREAM) + 100]


def _joined(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    return high.astype(np.uint16) << 8 | low


def _crop(image: Image.Image, part: slice) -> np.ndarray:
    return np.asarray(image.crop((0, part.start, image.width, part.stop)))


def _loaded(image: Image.Image, file: BinaryIO, change: Callable[[str], str]) -> Image.Image:
    file.seek(0)
    again: Any = Image.open(file, formats=[image.format or ""])
    again.seek(image.tell())
    again.tile = [
        one._replace(args=(change(one.args[0]), *one.args[1:]) if isinstance(one.args, tuple) else change(one.args))
        for one in again.tile
    ]
    again.load()
    return again


def _raw_mode(image: Any) -> str:
    tile = getattr(image, "tile", None)
    arguments = tile[0].args if tile else ""
    mode = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return mode if isinstance(mode, str) else ""
