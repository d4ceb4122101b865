"""Bytes to pixels, safely.

Whatever a stranger sends must end as an image or as one ImageError, quickly and in little memory:
the format is on a list, the size is checked before anything is decoded, and an image that breaks off
is refused.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

from nnclr_hub.encoder.color import to_rgb
from nnclr_hub.encoder.quiet import pillow_kept_quiet
from nnclr_hub.encoder.unread import check_channels, check_numbers, refuse_unidentified
from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest

log = logging.getLogger(__name__)

FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "PPM", "ICO", "QOI", "JPEG2000")
MAX_PIXELS = 40_000_000
OVERSAMPLED = 2  # source pixels a pixel of the resized image that a scaled JPEG must keep
_ORIENTATION = 0x0112  # a tag of EXIF
_TURNED = ((2, 3, 6, 7), (3, 4, 7, 8))  # orientations that bring the last column (row) or what becomes it to the front

_told_of_pages: set[str] = set()  # folders

Source = Path | str | bytes | Image.Image


@dataclass(frozen=True)
class Picture:
    """A decoded image that may have been scaled down on the way.

    image: RGB, upright.
    size: width and height before it was scaled.
    scale: pixels of that size a pixel of the image.
    corner: where the image begins in the image, in its pixels: below (1, 1), and not (0, 0) only where the last
        column or row, which is not filled to its end, was turned to the left or the top.
    """

    image: Image.Image
    size: tuple[int, int]
    scale: int = 1
    corner: tuple[float, float] = (0.0, 0.0)


def decode_image(source: Source) -> Image.Image:
    """Reads one image: RGB, upright by its EXIF orientation, the first frame of several.

    16-bit channels are scaled to 8, not clipped, and gray of 12 bits in a file of 16 by its 12 (decision 0015); gray
    becomes RGB; transparency goes over white.

    Args:
        source: a path, the file's bytes, or a PIL image.

    Raises:
        UnsupportedImage: a format or number of channels that we do not read.
        ImageTooLarge: above 40 megapixels.
        ImageError: no image, or a broken one.
        InvalidRequest: `source` is none of these.
    """
    return decode_scaled(source, None).image


def decode_scaled(source: Source, short: int | None) -> Picture:
    """`decode_image`, where a large JPEG is scaled down while it is decoded, at a fraction of the cost.

    Args:
        source: as there.
        short: side, in pixels, to which the short side will be brought; twice that is left of it at the least, so
            that the antialiased resize that follows decides what is seen. None: all pixels.
    """
    if isinstance(source, Image.Image):
        with _image_errors():
            return _whole(_upright_rgb(source))
    with _opened(source) as file, _image_errors():
        try:
            image = Image.open(file, formats=_readable_formats())
        except UnidentifiedImageError:
            refuse_unidentified(file)
        with image:
            _check_size(image)
            check_numbers(image)
            if image.format == "TIFF" and getattr(image, "is_animated", False):
                _tell_of_pages(str(getattr(file, "name", "")))
            factor = 1 if short is None else min(image.size) // (OVERSAMPLED * short)
            if factor < 2:
                image.load()
                return _whole(_upright_rgb(image))
            return _scaled(image, factor)


def _tell_of_pages(name: str) -> None:
    """Once a folder: whose stacks they are wants to know, whoever sent an image is not here to read it."""
    folder = str(Path(name).parent)
    if name and folder not in _told_of_pages:
        _told_of_pages.add(folder)
        log.warning(
            "%s has several pages, of which the first alone is read, as of others beside it: write those that are "
            "pictures of their own, or channels, as files of their own",
            name,
        )


def _whole(image: Image.Image) -> Picture:
    return Picture(image, image.size)


def _scaled(image: Image.Image, factor: int) -> Picture:
    """Scaled by 8, 4 or 2, at most by `factor`, if it is a JPEG; other formats stay as they are."""
    width, height = image.size
    drafted = image.draft(None, (width // factor, height // factor))
    image.load()
    filled = drafted[1][2:] if drafted is not None else image.size  # of the image; the last column may be half empty
    missing = (image.width - filled[0], image.height - filled[1])
    scale = round(width / filled[0])
    orientation = _orientation(image)
    if orientation >= 5:  # lies on its side
        width, height, missing = height, width, missing[::-1]
    corner = tuple(part if orientation in turned else 0.0 for part, turned in zip(missing, _TURNED, strict=True))
    return Picture(_upright_rgb(image), (width, height), scale, corner)  # type: ignore[arg-type]


def _orientation(image: Image.Image) -> int:
    """By its EXIF, 1 to 8; 1 is upright, and what cannot be read is taken for it."""
    try:
        told = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - broken metadata
        return 1
    return told if told in range(1, 9) else 1


def _opened(source: Path | str | bytes) -> BinaryIO:
    """The file, not yet read: a film among the images must not be taken into memory."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if not isinstance(source, str | Path):
        raise InvalidRequest(
            f"A {type(source).__name__} is no image: give a path, the file's bytes, a PIL image, or an (H, W, 3) "
            "uint8 array."
        )
    try:
        if Path(source).exists() and not Path(source).is_file():
            raise ImageError("The file cannot be opened (it is a folder or a device).")
        return Path(source).open("rb")
    except OSError as error:
        raise ImageError(f"The file cannot be opened ({error.strerror}).") from error
    except ValueError as error:
        raise ImageError("The file cannot be opened (its name is not one that a file can have).") from error


@cache
def _readable_formats() -> tuple[str, ...]:
    """Those of the formats that this Pillow was built with; naming another makes it fail on every file."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def _image_errors() -> Iterator[None]:
    """Whatever Pillow raises in the block becomes an ImageError."""
    try:
        with pillow_kept_quiet():
            yield
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageTooLarge(_too_large("The image")) from error
    except MemoryError as error:
        raise ImageTooLarge("The image needs more memory to decode than there is.") from error
    except Exception as error:  # decoders raise whatever struct, zlib and they themselves do
        raise ImageError(f"The image is broken or cut off ({_reason(error)}).") from error


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise ImageTooLarge(_too_large(f"The image of {image.width} x {image.height} pixels"))


def _too_large(what: str) -> str:
    return f"{what} is above the limit of {MAX_PIXELS // 10**6} megapixels: send a smaller copy."


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 120 else type(error).__name__


def _upright_rgb(image: Image.Image) -> Image.Image:
    _check_size(image)
    if min(image.size) < 1:
        raise ImageError("The image has no pixels.")
    check_channels(len(image.getbands()))
    try:
        # the orientation is read before any conversion, which drops the metadata
        upright = ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001 - metadata so broken that no orientation can be read: as it lies
        upright = image
    return to_rgb(upright)
