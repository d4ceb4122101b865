"""Bytes to pixels, safely.

Any bytes that a client sends must become an image or one ImageError, quickly and in little memory. So the format is
limited to a list, the size is checked before anything is decoded, and a truncated image is refused.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from nnclr_hub.encoder.color import to_rgb
from nnclr_hub.encoder.decoding_cost import check_cost
from nnclr_hub.encoder.decoding_pool import active_pool
from nnclr_hub.encoder.decoding_worker import HeavyImage
from nnclr_hub.encoder.unsupported_formats import check_channels, check_numbers, refuse_unidentified
from nnclr_hub.encoder.warning_filters import ignore_warnings
from nnclr_hub.errors import ImageError, ImageTooExpensive, ImageTooLarge, InvalidRequest

log = logging.getLogger(__name__)

FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "PPM", "ICO", "QOI", "JPEG2000", "HEIF")
MAX_PIXELS = 40_000_000
OVERSAMPLING = 2  # source pixels per pixel of the resized image that a scaled JPEG must keep
_ORIENTATION = 0x0112  # EXIF tag
# EXIF orientations that move the last column (row) of the upright image to its start
_TURNED = ((2, 3, 6, 7), (3, 4, 7, 8))

_warned_folders: set[str] = set()

T = TypeVar("T")
Source = Path | str | bytes | Image.Image


def announce_pixels(pixels: int, scans: int = 1) -> None:
    """Do nothing, between the header and the decoding; a decoding process sets its limits there."""


@dataclass(frozen=True)
class DecodedImage:
    """An image that may have been scaled down while it was decoded.

    image: RGB, upright.
    size: width and height before scaling.
    scale: pixels of the full size per pixel of `image`.
    corner: where the content begins in `image`, in its pixels, below (1, 1). It differs from (0, 0) only if the last
        column or row, which a scaled JPEG may fill only in part, was turned to the left or the top.
    """

    image: Image.Image
    size: tuple[int, int]
    scale: int = 1
    corner: tuple[float, float] = (0.0, 0.0)


def decode_image(source: Source) -> Image.Image:
    """Read one image: RGB, upright by its EXIF orientation, the first frame of several.

    16-bit channels are scaled to 8 bits, not clipped; 12-bit gray in a 16-bit file is scaled from 12 (decision 0015).
    Gray becomes RGB. Transparent pixels are blended with white.

    Args:
        source: a path, the file's bytes, or a PIL image.

    Raises:
        UnsupportedImage: the format or the number of channels is not supported.
        ImageTooLarge: more than 40 megapixels.
        ImageTooExpensive: it takes more CPU time or memory than its pixels explain.
        ImageError: not an image, or a broken one.
        InvalidRequest: `source` has another type.
    """
    pool = active_pool()
    if pool is None or not isinstance(source, Path | str | bytes):
        return decode_scaled(source, None).image
    return pool.run(_decode, source, take=image_of)


def image_of(pixels: np.ndarray) -> Image.Image:
    """Return an image with a copy of pixels (H, W, 3) uint8; five times as fast as `Image.fromarray`."""
    return Image.frombuffer("RGB", pixels.shape[1::-1], pixels, "raw", "RGB", 0, 1)


def run_isolated(
    operation: Callable[..., tuple[Any, ...]],
    source: Source,
    *arguments: Any,
    take: Callable[..., T] | None = None,
) -> T:
    """Return take(*operation(source, *arguments)); the operation runs in a decoding process if this process uses them.

    A PIL image is decoded already, and stays here. See `DecodingPool.run` for `take`.
    """
    pool = active_pool()
    if pool is None or not isinstance(source, Path | str | bytes):
        values = operation(source, *arguments)
        return cast(T, values) if take is None else take(*values)
    return pool.run(operation, source, arguments, take)


def run_isolated_each(
    operation: Callable[..., tuple[Any, ...]],
    sources: Sequence[Source],
    *arguments: Any,
    take: Callable[..., T] | None = None,
) -> list[T | Exception]:
    """Return for each source what `run_isolated` returns, or the exception that it raises."""
    pool = active_pool()
    if pool is not None and all(isinstance(source, Path | str | bytes) for source in sources):
        return pool.run_each(operation, cast(Sequence[Path | str | bytes], sources), arguments, take)
    return attempt_each(lambda source: run_isolated(operation, source, *arguments, take=take), sources)


def attempt_each(work: Callable[[Any], T], sources: Sequence[Any]) -> list[T | Exception]:
    """Return for each source what `work` returns, or the exception that it raises."""
    results: list[T | Exception] = []
    for source in sources:
        try:
            results.append(work(source))
        except Exception as error:  # noqa: BLE001 - the caller decides
            results.append(error)
    return results


def _decode(source: Source) -> tuple[Image.Image]:
    return (decode_scaled(source, None).image,)


def decode_squashed(source: Source, side: int) -> tuple[np.ndarray, float]:
    """Return an image squashed to (side, side, 3) uint8, and its width / height, for `run_isolated`."""
    image = decode_image(source)
    squashed = image.resize((side, side), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(squashed), image.width / image.height


def decode_scaled(source: Source, short: int | None) -> DecodedImage:
    """Read one image like `decode_image`, but scale a large JPEG down while decoding it, at a fraction of the cost.

    Args:
        source: see `decode_image`.
        short: side, in pixels, to which the caller resizes the short side. At least twice as many pixels are kept, so
            that the antialiased resize determines the result. None: keep all pixels.
    """
    if isinstance(source, Image.Image):
        with _image_errors():
            return _full_size(_upright_rgb(source))
    with _open(source) as opened, _image_errors():
        file, scans = check_cost(opened)
        try:
            image = Image.open(file, formats=readable_formats())
        except UnidentifiedImageError:
            refuse_unidentified(file)
        with image:
            _check_size(image)
            check_numbers(image)
            if image.format == "TIFF" and getattr(image, "is_animated", False):
                warn_of_pages(str(getattr(opened, "name", "")))
            announce_pixels(image.width * image.height, scans)
            factor = 1 if short is None else min(image.size) // (OVERSAMPLING * short)
            if factor < 2:
                image.load()
                return _full_size(_upright_rgb(image))
            return _scaled(image, factor)


def warn_of_pages(name: str) -> None:
    """Warn once per folder; images without a file name come from clients, who cannot see this log."""
    folder = str(Path(name).parent)
    if name and folder not in _warned_folders:
        _warned_folders.add(folder)
        log.warning(
            "%s has several pages; only the first one is read, also for other files of its folder. Save pages that are "
            "separate images, or channels, as separate files.",
            name,
        )


def _full_size(image: Image.Image) -> DecodedImage:
    return DecodedImage(image, image.size)


def _scaled(image: Image.Image, factor: int) -> DecodedImage:
    """Scale a JPEG down by 8, 4 or 2, at most by `factor`; leave other formats as they are."""
    width, height = image.size
    drafted = image.draft(None, (width // factor, height // factor))
    image.load()
    # size of the part with content: the last column and row may be filled only in part
    filled = drafted[1][2:] if drafted is not None else image.size
    missing = (image.width - filled[0], image.height - filled[1])
    scale = round(width / filled[0])
    orientation = _orientation(image)
    if orientation >= 5:  # turned by 90 degrees
        width, height, missing = height, width, missing[::-1]
    corner = tuple(part if orientation in turned else 0.0 for part, turned in zip(missing, _TURNED, strict=True))
    return DecodedImage(_upright_rgb(image), (width, height), scale, corner)  # type: ignore[arg-type]


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 (upright) if it cannot be read."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - broken metadata
        return 1
    return orientation if orientation in range(1, 9) else 1


def _open(source: Path | str | bytes) -> BinaryIO:
    """Open the file without reading it: a video among the images must not be loaded into memory."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if not isinstance(source, str | Path):
        raise InvalidRequest(
            f"An image must be a path, the file's bytes, a PIL image, or an (H, W, 3) uint8 array, got "
            f"{type(source).__name__}."
        )
    try:
        if Path(source).exists() and not Path(source).is_file():
            raise ImageError("The file cannot be opened: it is a folder or a device.")
        return Path(source).open("rb")
    except OSError as error:
        raise ImageError(f"The file cannot be opened: {error.strerror}.") from error
    except ValueError as error:
        raise ImageError("The file cannot be opened: its name is invalid.") from error


@cache
def readable_formats() -> tuple[str, ...]:
    """Return the formats that this build of Pillow supports; it fails on every file if another one is named."""
    Image.init()
    with suppress(ImportError):  # the extra heic, which adds a format to Pillow
        import pillow_heif.HeifImagePlugin

        pillow_heif.options.DECODE_THREADS = 1  # images are decoded side by side
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def _image_errors() -> Iterator[None]:
    """Turn everything that Pillow raises in the block into an ImageError."""
    try:
        with ignore_warnings():
            yield
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageTooLarge(_too_large("The image")) from error
    except MemoryError as error:
        raise ImageTooExpensive("Too little memory to decode the image.") from error
    except HeavyImage:
        raise
    except Exception as error:  # decoders raise errors of struct, zlib and many others
        raise ImageError(f"The image is broken or truncated ({_reason(error)}).") from error


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise ImageTooLarge(_too_large(f"The image of {image.width} x {image.height} pixels"))


def _too_large(what: str) -> str:
    return f"{what} exceeds the limit of {MAX_PIXELS // 10**6} megapixels; use a smaller copy."


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
    except Exception:  # noqa: BLE001 - the metadata is too broken for an orientation
        upright = image
    return to_rgb(upright)
