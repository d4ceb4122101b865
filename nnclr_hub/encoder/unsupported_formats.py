"""Recognize images that Pillow does not read, or reads incorrectly, by their headers, and raise a clear error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, BinaryIO, NoReturn, Self

from PIL import Image, TiffImagePlugin

from nnclr_hub.errors import UnsupportedImage

FORMATS_IN_WORDS = "JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF, HEIC, PPM, ICO, QOI or JPEG 2000"
MAX_CHANNELS = 4

_BITS, _CHANNELS, _SAMPLE_FORMAT = 258, 277, 339  # TIFF tags
_KINDS = {1: "unsigned integers", 2: "signed integers", 3: "floats"}  # by the value of _SAMPLE_FORMAT
_UNSIGNED, _SIGNED, _FLOAT = _KINDS
# number of channels -> supported (kind, bits per channel)
_SUPPORTED = {
    1: {*((_UNSIGNED, bits) for bits in (1, 2, 4, 8, 12, 16, 32)), (_SIGNED, 16), (_SIGNED, 32), (_FLOAT, 32)},
    3: {(_UNSIGNED, 8), (_UNSIGNED, 16)},
    4: {(_UNSIGNED, 8), (_UNSIGNED, 16)},
}
_TIFF, _BIG_TIFF = (b"II*\0", b"MM\0*"), (b"II+\0", b"MM\0+")
_HEIF = re.compile(rb"....ftyp(hei[cxms]|hev[cxms]|mif1|msf1)", re.DOTALL)
_JPEG2000_SIZES = b"\xff\x4f\xff\x51"  # the two markers before the image sizes


@dataclass(frozen=True)
class _PixelType:
    """The pixel type in the header of a TIFF file.

    channels: per pixel.
    kind: of the numbers, a key of _KINDS.
    bits: per channel.
    """

    channels: int
    kind: int
    bits: int

    @classmethod
    def of(cls, tags: Mapping[int, Any]) -> Self:
        return cls(*(_first(tags.get(tag), default=1) for tag in (_CHANNELS, _SAMPLE_FORMAT, _BITS)))

    def check(self) -> None:
        """Check that the type is supported; two channels are not, because their meaning is unknown.

        Raises:
            UnsupportedImage: it is not.
        """
        check_channels(self.channels)
        if (self.kind, self.bits) not in _SUPPORTED.get(self.channels, ()):
            raise UnsupportedImage(
                f"TIFF files with {self.channels} channel{'s' * (self.channels != 1)} of {self.bits}-bit "
                f"{_KINDS.get(self.kind, 'numbers of another kind')} are not supported; save the image as gray or RGB "
                "with 8 or 16 bits, or as gray with 32-bit floats."
            )


def check_channels(channels: int) -> None:
    """Raise UnsupportedImage for too many channels."""
    if channels > MAX_CHANNELS:
        raise UnsupportedImage(f"An image must be gray, RGB, RGBA or CMYK, got {channels} channels.")


def check_numbers(image: Image.Image) -> None:
    """Raise UnsupportedImage for a TIFF file that Pillow would open with other channels or signs than the file has."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return
    pixels = _PixelType.of(image.tag_v2)
    check_channels(pixels.channels)
    if (pixels.kind, pixels.bits) == (_SIGNED, 8):  # Pillow reads -1 as 255
        pixels.check()


def refuse_unidentified(file: BinaryIO) -> NoReturn:
    """Raise UnsupportedImage, with the reason, for a file that Pillow cannot identify."""
    file.seek(0)
    header = file.read(8)
    if not header:
        raise UnsupportedImage("The file is empty.")
    if header[:4] in _TIFF + _BIG_TIFF:
        tags = _tags_of(header + (file.read(8) if header[:4] in _BIG_TIFF else b""), file)
        if _BITS in tags:
            _PixelType.of(tags).check()
    start = header + file.read(4096)
    if _HEIF.match(start) and not find_spec("pillow_heif"):
        raise UnsupportedImage("HEIC images need the package pillow-heif; pip install 'nnclr_hub[heic]'.")
    start = start.partition(_JPEG2000_SIZES)[2]
    check_channels(int.from_bytes(start[36:38], "big"))
    raise UnsupportedImage(f"The file is not an image in a supported format: {FORMATS_IN_WORDS}.")


def _tags_of(header: bytes, file: BinaryIO) -> dict[int, Any]:
    try:
        tags = TiffImagePlugin.ImageFileDirectory_v2(header)
        file.seek(tags.next)
        tags.load(file)
        return dict(tags)
    except Exception:  # noqa: BLE001 - the header is broken too, so the kind stays unknown
        return {}


def _first(value: Any, default: int) -> int:
    """Return the first number of a tag, or the default if the tag is missing or not a number."""
    value = value[0] if isinstance(value, tuple) and value else value
    return value if isinstance(value, int) else default
