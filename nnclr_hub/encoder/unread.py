"""Pictures that Pillow does not read, or reads wrongly: their headers tell what they are."""

from __future__ import annotations

from typing import Any, BinaryIO, NoReturn

from PIL import Image, TiffImagePlugin

from nnclr_hub.errors import UnsupportedImage

FORMATS_IN_WORDS = "JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF, PPM, ICO, QOI or JPEG 2000"
MAX_CHANNELS = 4

_BITS, _CHANNELS, _NUMBERS = 258, 277, 339  # tags of TIFF
_KINDS = {1: "unsigned integers", 2: "signed integers", 3: "floats"}  # of numbers, by their tag
_JPEG2000_SIZES = b"\xff\x4f\xff\x51"  # the two markers before its sizes


def check_channels(channels: int) -> None:
    """Raises UnsupportedImage for more channels than a picture has."""
    if channels > MAX_CHANNELS:
        raise UnsupportedImage(f"The picture has {channels} channels: give grey, RGB, RGBA or CMYK.")


def check_numbers(image: Image.Image) -> None:
    """Raises UnsupportedImage for a TIFF that Pillow opens, but with other channels or signs than the file has."""
    tags = getattr(image, "tag_v2", {})
    check_channels(tags.get(_CHANNELS, 1))
    if tags.get(_NUMBERS, (1,))[0] == 2 and image.mode in ("L", "RGB"):  # -1 would be 255
        raise _unread(tags)


def refuse_unidentified(file: BinaryIO) -> NoReturn:
    """Raises UnsupportedImage for a file of which Pillow only says that it knows no such picture."""
    file.seek(0)
    header = file.read(8)
    tags = _tags_of(header, file) if header[:4] in (b"II*\0", b"MM\0*") else {}
    check_channels(tags.get(_CHANNELS, 1))
    if _BITS in tags:
        raise _unread(tags)
    start = (header + file.read(4096)).partition(_JPEG2000_SIZES)[2]
    check_channels(int.from_bytes(start[36:38], "big"))
    raise UnsupportedImage(f"This is not a picture in a format we read: {FORMATS_IN_WORDS}.")


def _tags_of(header: bytes, file: BinaryIO) -> dict[int, Any]:
    try:
        tags = TiffImagePlugin.ImageFileDirectory_v2(header)
        file.seek(tags.next)
        tags.load(file)
        return dict(tags)
    except Exception:  # noqa: BLE001 - the header is broken as well: not to be identified, then
        return {}


def _unread(tags: dict[int, Any]) -> UnsupportedImage:
    channels = tags.get(_CHANNELS, 1)
    kind = _KINDS.get(tags.get(_NUMBERS, (1,))[0], "numbers of another kind")
    return UnsupportedImage(
        f"This TIFF holds {channels} channel{'s' * (channels != 1)} of {tags[_BITS][0]}-bit {kind}, which we do not "
        "read: save it as grey or RGB of 8 or 16 bits, or as grey of 32-bit floats."
    )
