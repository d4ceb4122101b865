"""Bytes to pixels, safely.

Any bytes that a client sends must become an image or one ImageError, quickly and in little memory. So the format is
limited to a list, the size is checked before anything is decoded, and a truncated image is refused.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError

from nnclr_hub.errors import ImageError, ImageTooExpensive, ImageTooLarge, InvalidRequest
from nnclr_hub.images import several_pages
from nnclr_hub.images.channels import AnyImage, ChannelImage
from nnclr_hub.images.color import to_rgb
from nnclr_hub.images.cost import check_cost
from nnclr_hub.images.decoding_worker import HeavyImage
from nnclr_hub.images.pool import active_pool
from nnclr_hub.images.readers import ImageReader, find_reader, opened
from nnclr_hub.images.readers.pillow import pillow_stack
from nnclr_hub.images.readers.raw import RawReader
from nnclr_hub.images.readers.stack import ImageStack, check_fit, read_selected
from nnclr_hub.images.readers.tiff import MAGIC, TiffReader, has_more_channels, is_camera_raw
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import PackedImage
from nnclr_hub.images.tile import Tile
from nnclr_hub.images.unsupported_formats import check_channels, refuse_unidentified
from nnclr_hub.images.warning_filters import ignore_warnings
from nnclr_hub.images.wide_image import eight_bits, is_wide

FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "PPM", "ICO", "QOI", "JPEG2000", "HEIF")
MAX_PIXELS = 40_000_000
OVERSAMPLING = 2  # source pixels per pixel of the resized image that a scaled JPEG must keep
_ORIENTATION = 0x0112  # EXIF tag
_PHOTOMETRIC = 262  # tag of TIFF
# EXIF orientations that move the last column (row) of the upright image to its start
_TURNED = ((2, 3, 6, 7), (3, 4, 7, 8))
_SWAPPED = range(5, 9)  # those that swap width and height

T = TypeVar("T")
File = Path | str | bytes | Tile


@runtime_checkable
class StoredImage(Protocol):
    """An image stored elsewhere; the thread that decodes it also reads its bytes."""

    def read(self) -> bytes: ...


DecodableImage = File | StoredImage | Image.Image | ChannelImage


def announce_pixels(pixels: int, scans: int = 1) -> None:
    """Do nothing, between the header and the decoding; a decoding process sets its limits there."""


@dataclass(frozen=True)
class DecodedImage:
    """An image that may have been scaled down while it was decoded.

    image: RGB or a ChannelImage, upright.
    size: width and height before scaling.
    scale: pixels of the full size per pixel of `image`.
    corner: where the content begins in `image`, in its pixels, below (1, 1). It differs from (0, 0) only if the last
        column or row, which a scaled JPEG may fill only in part, was turned to the left or the top.
    """

    image: AnyImage
    size: tuple[int, int]
    scale: int = 1
    corner: tuple[float, float] = (0.0, 0.0)


def decode_image(source: DecodableImage, reading: ImageReading = PLAIN) -> Image.Image:
    """Read one image: RGB, upright by its EXIF orientation, the first frame of several.

    16-bit channels are scaled to 8 bits, not clipped; 12 bits in a 16-bit file from 12 (decision 0015). Gray becomes
    RGB. Transparent pixels are blended with white, or with black if the others are nearly white.

    Args:
        source: a path, the file's bytes, or a PIL image, which is already read.
        reading: the page and the channels to read of a file.

    Raises:
        UnsupportedImage: the format or the number of channels is not supported.
        ImageTooLarge: more than 40 megapixels.
        ImageTooExpensive: it takes more CPU time or memory than its pixels explain.
        ImageError: not an image, or a broken one.
        InvalidRequest: `source` has another type.
    """
    return cast(Image.Image, run_isolated(_decode, source, reading, 3, take=image_of))


def decode_any(source: DecodableImage, reading: ImageReading) -> AnyImage:
    """Read one image like `decode_image`, with any number of channels."""
    return run_isolated(_decode, source, reading, None, take=image_of)


def image_of(pixels: np.ndarray | AnyImage) -> AnyImage:
    """Return an image with a copy of pixels (H, W, C) uint8; for RGB five times as fast as `Image.fromarray`."""
    if not isinstance(pixels, np.ndarray):
        return pixels
    if pixels.shape[2] != 3:
        return ChannelImage(pixels.copy())
    return Image.frombuffer("RGB", pixels.shape[1::-1], pixels, "raw", "RGB", 0, 1)


def run_isolated(
    operation: Callable[..., tuple[Any, ...]],
    source: DecodableImage,
    *arguments: Any,
    take: Callable[..., T] | None = None,
) -> T:
    """Return take(*operation(source, *arguments)); the operation runs in a decoding process if this process uses them.

    A PIL image is decoded already, and stays here. See `DecodingPool.run` for `take`.
    """
    pool, source = active_pool(), loaded(source)
    if pool is None or not isinstance(source, File):
        values = operation(source, *arguments)
        return cast(T, values) if take is None else take(*values)
    return pool.run(operation, source, arguments, take)


def loaded(source: DecodableImage) -> DecodableImage:
    """Return the bytes of an image that is stored elsewhere, and other sources as they are."""
    if isinstance(source, PackedImage):
        return several_pages.NamedBytes(source.read(), str(source))
    return source.read() if isinstance(source, StoredImage) else source


def run_isolated_each(
    operation: Callable[..., tuple[Any, ...]],
    sources: Sequence[DecodableImage],
    *arguments: Any,
    take: Callable[..., T] | None = None,
) -> list[T | Exception]:
    """Return for each source what `run_isolated` returns, or the exception that it raises."""
    pool = active_pool()
    if pool is not None and all(isinstance(source, File) for source in sources):
        return pool.run_each(operation, cast(Sequence[File], sources), arguments, take)
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


def _decode(source: DecodableImage, reading: ImageReading = PLAIN, bands: int | None = 3) -> tuple[AnyImage]:
    return (decode_scaled(source, None, reading, bands).image,)


def decode_scaled(
    source: DecodableImage,
    short: int | Callable[[int, int], float] | None,
    reading: ImageReading = PLAIN,
    bands: int | None = 3,
) -> DecodedImage:
    """Read one image like `decode_image`, but scale a large JPEG down while decoding it, at a fraction of the cost.

    Args:
        source: see `decode_image`.
        short: side, in pixels, to which the caller resizes the short side; at least twice as many are kept. None: all.
            A function gets width and height of the upright image, and returns by how much it may be reduced.
        reading: see `decode_image`.
        bands: number of channels of the result: 3 for RGB, 1 for gray, other numbers for a ChannelImage; None: RGB of
            one or three channels, and otherwise all.
    """
    if isinstance(source, ChannelImage | Image.Image):
        with image_errors():
            return _full_size(fitted(source if isinstance(source, ChannelImage) else _upright_rgb(source), bands))
    if isinstance(source, Tile):
        from nnclr_hub.images.tiles import read_tile

        return _full_size(fitted(read_tile(source, reading, bands), bands))
    source = cast(Path | str | bytes, loaded(source))
    shown = source.name if isinstance(source, several_pages.NamedBytes) else ""
    with open_source(source) as file, image_errors():
        checked, scans = check_cost(file)
        name = str(getattr(file, "name", ""))
        image, reader = _identified(checked, name, reading)
        if reader is not None:
            checked.seek(0)
            with opened(reader, checked) as stack:
                return _full_size(_read_stack(stack, shown or name, reading, bands))
        assert image is not None
        with image:
            check_size(image.width, image.height)
            if is_wide(image):
                announce_pixels(2 * image.width * image.height)
                image = eight_bits(image, checked)
            if reading != PLAIN:
                return _full_size(_read_stack(pillow_stack(image, reading), shown or name, reading, bands))
            if image.format == "TIFF" and getattr(image, "is_animated", False):
                several_pages.note(shown or name)
            check_fit(3, bands)
            announce_pixels(image.width * image.height, scans)
            factor = _largest_factor(image, short)
            if factor < 2:
                image.load()
                return _full_size(fitted(_upright_rgb(image), bands))
            scaled = _scaled(image, factor)
            return replace(scaled, image=fitted(scaled.image, bands))


def image_size(source: Path | str | bytes | StoredImage, reading: ImageReading = PLAIN) -> tuple[int, int]:
    """Return width and height of an upright image, from its header.

    Raises:
        ImageError: it cannot be read.
    """
    with open_source(source) as file, image_errors():
        image, reader = _identified(file, str(getattr(file, "name", "")), reading)
        if reader is not None:
            file.seek(0)
            with opened(reader, file) as stack:
                return stack.size
        assert image is not None
        with image:
            return _upright_size(image)


def _upright_size(image: Image.Image) -> tuple[int, int]:
    swapped = image.format != "TIFF" and _orientation(image) in _SWAPPED  # Pillow swaps those of TIFF
    return (image.height, image.width) if swapped else image.size


def _largest_factor(image: Image.Image, short: int | Callable[[int, int], float] | None) -> int:
    if short is None:
        return 1
    return int(short(*_upright_size(image))) if callable(short) else min(image.size) // (OVERSAMPLING * short)


def _identified(file: BinaryIO, name: str, reading: ImageReading) -> tuple[Image.Image | None, ImageReader | None]:
    """Return the image that Pillow opens, or the reader of the file.

    A reader takes TIFF files that Pillow does not read completely, or of which the caller selects a part.

    Raises:
        UnsupportedImage: neither reads it.
    """
    if (reader := find_reader(file, name)) is not None:
        return None, reader
    try:
        image = Image.open(file, formats=readable_formats())
    except UnidentifiedImageError:
        file.seek(0)
        if file.read(4) not in MAGIC:
            refuse_unidentified(file)
        return None, TiffReader()
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        if is_camera_raw(image.tag_v2):
            return None, RawReader()
        if reading != PLAIN or has_more_channels(image.tag_v2):
            return None, TiffReader()
    return image, None


def _read_stack(stack: ImageStack, name: str, reading: ImageReading, bands: int | None) -> AnyImage:
    if stack.pages > 1 and reading.page is None and not reading.project:
        several_pages.note(name)
    announce = lambda pixels: announce_pixels(min(pixels, MAX_PIXELS))  # noqa: E731 - bounds the CPU seconds
    return fitted(read_selected(stack, reading, bands, check_size, announce), bands)


def fitted(image: AnyImage, bands: int | None) -> AnyImage:
    """Return an image with a number of channels.

    Raises:
        UnsupportedImage: it has another number.
    """
    if bands is None or (bands == 3 and isinstance(image, Image.Image)):
        return image
    if bands == 1 and isinstance(image, Image.Image):
        return ChannelImage(np.asarray(image.convert("L"))[:, :, None])
    check_fit(image.channels if isinstance(image, ChannelImage) else 3, bands)
    return image


def _full_size(image: AnyImage) -> DecodedImage:
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
    if orientation in _SWAPPED:
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


def open_source(source: Path | str | bytes | StoredImage) -> BinaryIO:
    """Open the file without reading it: a video among the images must not be loaded into memory."""
    if isinstance(source, StoredImage):
        source = source.read()
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
def image_errors() -> Iterator[None]:
    """Turn everything that Pillow raises in the block into an ImageError."""
    try:
        with ignore_warnings():
            yield
    except (ImageError, HeavyImage):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageTooLarge(_too_large("The image")) from error
    except MemoryError as error:
        raise ImageTooExpensive("Too little memory to decode the image.") from error
    except Exception as error:  # decoders raise errors of struct, zlib and many others
        raise ImageError(f"The image is broken or truncated ({_reason(error)}).") from error


def check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ImageTooLarge(_too_large(f"The image of {width} x {height} pixels"))


def _too_large(what: str) -> str:
    return f"{what} has over {MAX_PIXELS // 10**6} megapixels; use a smaller copy, or --tile where the verb has it."


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if 0 < len(text) < 120 else type(error).__name__


def _upright_rgb(image: Image.Image) -> Image.Image:
    check_size(image.width, image.height)
    if min(image.size) < 1:
        raise ImageError("The image has no pixels.")
    check_channels(len(image.getbands()))
    # Pillow inverts white that is 0 up to 8 bits only
    inverted = isinstance(image, TiffImagePlugin.TiffImageFile) and image.mode.startswith("I;16")
    inverted = inverted and image.tag_v2.get(_PHOTOMETRIC) == 0  # type: ignore[attr-defined]
    try:
        # the orientation is read before any conversion, which drops the metadata
        upright = ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001 - the metadata is too broken for an orientation
        upright = image
    return ImageOps.invert(to_rgb(upright)) if inverted else to_rgb(upright)
