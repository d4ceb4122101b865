"""Recognize images that neither Pillow nor a reader reads, and raise a clear error."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import BinaryIO, NoReturn

from nnclr_hub.errors import UnsupportedImage

FORMATS_IN_WORDS = (
    "JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF, HEIC, PPM, ICO, QOI, JPEG 2000, DICOM, CZI, ND2 or camera raw"
)
MAX_CHANNELS = 4

_HEIF = re.compile(rb"....ftyp(hei[cxms]|hev[cxms]|mif1|msf1)", re.DOTALL)
_JPEG2000_SIZES = b"\xff\x4f\xff\x51"  # the two markers before the image sizes


def check_channels(channels: int) -> None:
    """Raise UnsupportedImage for too many channels."""
    if channels > MAX_CHANNELS:
        raise UnsupportedImage(
            f"An image of this format must be gray, RGB, RGBA or CMYK, got {channels} channels; save it as TIFF."
        )


def refuse_unidentified(file: BinaryIO) -> NoReturn:
    """Raise UnsupportedImage, with the reason, for a file that Pillow cannot identify."""
    file.seek(0)
    start = file.read(4096)
    if not start:
        raise UnsupportedImage("The file is empty.")
    if _HEIF.match(start) and not find_spec("pillow_heif"):
        raise UnsupportedImage("HEIC images need the package pillow-heif; pip install 'nnclr_hub[heic]'.")
    start = start.partition(_JPEG2000_SIZES)[2]
    check_channels(int.from_bytes(start[36:38], "big"))
    raise UnsupportedImage(f"The file is not an image in a supported format: {FORMATS_IN_WORDS}.")
