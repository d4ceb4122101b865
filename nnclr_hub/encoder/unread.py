"""Images that Pillow does not read, or reads wrongly: their headers tell what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn, Self

from PIL import Image, TiffImagePlugin

from nnclr_hub.errors import UnsupportedImage

FORMATS_IN_WORDS = "JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF, PPM, ICO, QOI or JPEG 2000"
MAX_CHANNELS = 4

_BITS, _CHANNELS, _NUMBERS = 258, 277, 339  # tags of TIFF
_KINDS = {1: "unsigned integers", 2: "signed integers", 3: "floats"}  # of numbers, by their tag
_UNSIGNED, _SIGNED, _FLOAT = _KINDS
# (kind, bits of a channel) that are read, by the number of channels
_READ = {
    1: {*((_UNSIGNED, bits) for bits in (1, 2, 4, 8, 12, 16, 32)), (_SIGNED, 16), (_SIGNED, 32), (_FLOAT, 32)},
    3: {(_UNSIGNED, 8), (_UNSIGNED, 16)},
    4: {(_UNSIGNED, 8), (_UNSIGNED, 16)},
}
_TIFF, _BIG_TIFF = (b"II*\0", b"MM\0*"), (b"II+\0", b"MM\0+")
_JPEG2000_SIZES = b"\xff\x4f\xff\x51"  # the two markers before its sizes


@dataclass(frozen=True)
class _Numbers:
    """What a TIFF's header says of its numbers.

    channels: of a pixel.
    kind: of numbers, a key of _KINDS.
    bits: of a number.
    """

    channels: int
    kind: int
    bits: int

    @classmethod
    def of(cls, tags: Mapping[int, Any]) -> Self:
        return cls(*(_first(tags.get(tag), usual) for tag, usual in ((_CHANNELS, 1), (_NUMBERS, 1), (_BITS, 1))))

    def check(self) -> None:
        """Raises UnsupportedImage where they are none that are read; of two channels nobody says what they are."""
        check_channels(self.channels)
        if (self.kind, self.bits) not in _READ.get(self.channels, ()):
            raise UnsupportedImage(
                f"This TIFF holds {self.channels} channel{'s' * (self.channels != 1)} of {self.bits}-bit "
                f"{_KINDS.get(self.kind, 'numbers of another kind')}, which we do not read: save it as gray or RGB of "
                "8 or 16 bits, or as gray of 32-bit floats."
            )


def check_channels(channels: int) -> None:
    """Raises UnsupportedImage for more channels than an image has."""
    if channels > MAX_CHANNELS:
        raise UnsupportedImage(f"The image has {channels} channels: give gray, RGB, RGBA or CMYK.")


def check_numbers(image: Image.Image) -> None:
    """Raises UnsupportedImage for a TIFF that Pillow opens, but with other channels or signs than the file has."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return
    numbers = _Numbers.of(image.tag_v2)
    check_channels(numbers.channels)
    if (numbers.kind, numbers.bits) == (_SIGNED, 8):  # -1 would be 255
        numbers.check()


def refuse_unidentified(file: BinaryIO) -> NoReturn:
    """Raises UnsupportedImage for a file of which Pillow only says that it knows no such image."""
    file.seek(0)
    header = file.read(8)
    if not header:
        raise UnsupportedImage("The file is empty.")
    if header[:4] in _TIFF + _BIG_TIFF:
        tags = _tags_of(header + (file.read(8) if header[:4] in _BIG_TIFF else b""), file)
        if _BITS in tags:
            _Numbers.of(tags).check()
    start = (header + file.read(4096)).partition(_JPEG2000_SIZES)[2]
    check_channels(int.from_bytes(start[36:38], "big"))
    raise UnsupportedImage(f"This is not an image in a format we read: {FORMATS_IN_WORDS}.")


def _tags_of(header: bytes, file: BinaryIO) -> dict[int, Any]:
    try:
        tags = TiffImagePlugin.ImageFileDirectory_v2(header)
        file.seek(tags.next)
        tags.load(file)
        return dict(tags)
    except Exception:  # noqa: BLE001 - the header is broken as well: not to be identified, then
        return {}


def _first(value: Any, usual: int) -> int:
    """A tag's number, the first of several; `usual` where there is none, or it is no number."""
    value = value[0] if isinstance(value, tuple) and value else value
    return value if isinstance(value, int) else usual
