"""Bytes to pixels, safely.

Any bytes that a client sends must become an image or one ImageError, quickly and in little memory. So the format is
limited to a list, the size is checked before anything is decoded, and a truncated image is refused.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError

from nnclr_hub.errors import ImageError, ImageTooExpensive, ImageTooLarge, InvalidRequest, UnsupportedImage
from nnclr_hub.images.channels import AnyImage, ChannelImage
from nnclr_hub.images.color import to_rgb
from nnclr_hub.images.cost import check_cost
from nnclr_hub.images.pool import read_packed, run_isolated
from nnclr_hub.images.readers import ImageReader, find_reader, opened
from nnclr_hub.images.readers.pillow import pillow_stack
from nnclr_hub.images.readers.raw import RawReader
from nnclr_hub.images.readers.stack import ImageStack, check_fit, read_selected
from nnclr_hub.images.readers.tiff import MAGIC, TiffReader, has_more_channels, has_wide_planes, is_camera_raw
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import Source
from nnclr_hub.images.wide_image import eight_bits, is_wide

FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "PPM", "ICO", "QOI", "JPEG2000", "HEIF")
FORMATS_IN_WORDS = (
    "JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF, HEIC, PPM, ICO, QOI, JPEG 2000, DICOM, CZI, ND2 or camera raw"
)
MAX_PIXELS = 40_000_000
OVERSAMPLING = 2  # source pixels per pixel of the resized image that a scaled JPEG must keep
_ORIENTATION = 0x0112  # EXIF tag
_PHOTOMETRIC = 262  # tag of TIFF
# EXIF orientations that move the last column (row) of the upright image to its start
_TURNED = ((2, 3, 6, 7), (3, 4, 7, 8))
_SWAPPED = range(5, 9)  # those that swap width and height
_PNG = b"\x89PNG\r\n\x1a\n"
_HEIF = re.compile(rb"....ftyp(hei[cxms]|hev[cxms]|mif1|msf1)", re.DOTALL)
_JPEG2000_SIZES = b"\xff\x4f\xff\x51"  # the two markers before the image sizes

DecodableImage = Path | str | bytes | Source | Image.Image | ChannelImage


@dataclass(frozen=True)
class DecodedImage:
    """An image that may have been scaled down while it was decoded.

    image: RGB or a ChannelImage, upright.
    size: width and height before scaling.
    scale: pixels of the full size per pixel of `image`.
    corner: where the content begins in `image`, in its pixels, below (1, 1): a scaled JPEG may fill its last column or
        row only in part, which its orientation may turn to the left or the top.
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
    return cast(Image.Image, run_isolated(_decode, source, reading, 3))


def decode_any(source: DecodableImage, reading: ImageReading = PLAIN, bands: int | None = None) -> AnyImage:
    """Read one image like `decode_image`, with any number of channels, or with `bands`."""
    return run_isolated(_decode, source, reading, bands)


def _decode(source: DecodableImage, reading: ImageReading, bands: int | None) -> AnyImage:
    return decode_scaled(source, None, reading, bands).image


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
    if isinstance(source, Source) and source.box is not None:
        return _full_size(_read_tile(source, reading, bands), bands)
    if isinstance(source, ChannelImage | Image.Image):
        with image_errors():
            return _full_size(source if isinstance(source, ChannelImage) else _upright_rgb(_narrow(source)), bands)
    with open_source(source) as file, image_errors():
        checked = check_cost(file)
        image, reader = _identified(checked, str(getattr(file, "name", "")), reading)
        if reader is not None:
            with opened(reader, checked) as stack:
                return _full_size(read_selected(stack, reading, bands, check_size), bands)
        assert image is not None
        if image.format == "ICO":
            image, checked = _largest_icon(image, checked)
        with image:
            check_size(image.width, image.height)
            if is_wide(image):
                image = eight_bits(image, checked)
            if reading != PLAIN:
                return _full_size(read_selected(pillow_stack(image, reading), reading, bands, check_size), bands)
            check_fit(3, bands)
            factor = _largest_factor(image, short)
            if factor < 2:
                image.load()
                return _full_size(_upright_rgb(image), bands)
            scaled = _scaled(image, factor)
            return replace(scaled, image=with_bands(scaled.image, bands))


def _narrow(image: Image.Image) -> Image.Image:
    """Return an image of a caller in 8 bits. Until it is loaded, all bits can be read from its file.

    Of a loaded image, Pillow has dropped the low bytes, and of an ICO when it was opened; the result has the high ones.
    """
    if not getattr(image, "tile", None):
        return image
    file = image.fp  # type: ignore[attr-defined]
    if file is None:
        raise ImageError("The image was closed before it was read; open it again, or pass its path.")
    mixed_up = isinstance(image, TiffImagePlugin.TiffImageFile) and has_wide_planes(image.tag_v2)
    if not mixed_up and (not is_wide(image) or (image.tell() and image.format != "TIFF")):  # a frame of an animation
        return image
    check_size(image.width, image.height)
    position = file.tell()
    file.seek(0)
    data = file.read()
    file.seek(position)  # Pillow continues there
    if image.tell() == 0:
        return cast(Image.Image, decode_scaled(data, None).image)
    if mixed_up:
        raise UnsupportedImage("Pillow cannot read this page of the TIFF; pass the path of the file and a page.")
    return eight_bits(image, io.BytesIO(data))


def _largest_icon(image: Image.Image, file: BinaryIO) -> tuple[Image.Image, BinaryIO]:
    """Return the PNG of the largest image of an ICO file, and its bytes; the arguments if it has none."""
    icon = image.ico.getimage(image.size)  # type: ignore[attr-defined]
    if icon.format != "PNG":
        return image, file
    file.seek(0)
    data = file.read()
    data = data[data.rindex(_PNG, 0, icon.tile[0].offset) :]  # the last one that begins before its pixels
    return Image.open(io.BytesIO(data), formats=["PNG"]), io.BytesIO(data)


def image_size(source: DecodableImage, reading: ImageReading = PLAIN) -> tuple[int, int]:
    """Return width and height of an upright image, from its header; raise ImageError if it cannot be read."""
    with open_source(source) as file, image_errors():
        image, reader = _identified(file, str(getattr(file, "name", "")), reading)
        if reader is not None:
            with opened(reader, file) as stack:
                return stack.size
        assert image is not None
        with image:
            return _upright_size(image)


@contextmanager
def open_stack(path: str) -> Iterator[ImageStack | None]:
    """Open a file that a reader can read in parts; None: Pillow reads it as a whole."""
    with open_source(path) as file, image_errors():
        reader = find_reader(file, path)
        if reader is None and file.read(4) in MAGIC:
            reader = TiffReader()
        file.seek(0)
        if reader is None:
            yield None
            return
        with opened(reader, file) as stack:
            yield stack


def _read_tile(tile: Source, reading: ImageReading, bands: int | None) -> AnyImage:
    assert tile.box is not None
    assert tile.file is not None
    with open_stack(tile.file) as stack:
        width, height = stack.size if stack is not None else image_size(tile.file, reading)
        left, top, right, bottom = tile.box
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            raise ImageError(f"The tile {tile} is not inside the image of {width} x {height} pixels.")
        if stack is not None and stack.regions:
            stack = stack if tile.window is None else replace(stack, window=tile.window)
            return read_selected(stack, reading, bands, check_size, tile.box)
    return _whole(tile.file, Path(tile.file).stat().st_mtime_ns, reading, bands).crop(tile.box)


@lru_cache(maxsize=1)
def _whole(path: str, changed: int, reading: ImageReading, bands: int | None) -> AnyImage:
    # the tiles of an image are read one after another
    return decode_scaled(path, None, reading, bands).image


def _upright_size(image: Image.Image) -> tuple[int, int]:
    swapped = image.format != "TIFF" and _orientation(image) in _SWAPPED  # Pillow swaps those of TIFF
    return (image.height, image.width) if swapped else image.size


def _largest_factor(image: Image.Image, short: int | Callable[[int, int], float] | None) -> int:
    if short is None:
        return 1
    return int(short(*_upright_size(image))) if callable(short) else min(image.size) // (OVERSAMPLING * short)


def _identified(file: BinaryIO, name: str, reading: ImageReading) -> tuple[Image.Image | None, ImageReader | None]:
    """Return the image that Pillow opens, or the reader of the file; raise UnsupportedImage if neither reads it.

    A reader takes TIFF files that Pillow does not read completely, or of which the caller selects a part.
    """
    reader = find_reader(file, name)
    if reader is not None:
        return None, reader
    try:
        image = Image.open(file, formats=readable_formats())
    except UnidentifiedImageError:
        file.seek(0)
        if file.read(4) not in MAGIC:
            _refuse_unidentified(file)
        reader = TiffReader()
    else:
        if not isinstance(image, TiffImagePlugin.TiffImageFile):
            return image, None
        if is_camera_raw(image.tag_v2):
            reader = RawReader()
        elif reading != PLAIN or has_more_channels(image.tag_v2):
            reader = TiffReader()
        else:
            return image, None
    file.seek(0)
    return None, reader


def with_bands(image: AnyImage, bands: int | None) -> AnyImage:
    """Return an image with a number of channels; raise UnsupportedImage if it has another one."""
    if bands is None or (bands == 3 and isinstance(image, Image.Image)):
        return image
    if bands == 1 and isinstance(image, Image.Image):
        return ChannelImage(np.asarray(image.convert("L"))[:, :, None])
    check_fit(image.channels if isinstance(image, ChannelImage) else 3, bands)
    return image


def _full_size(image: AnyImage, bands: int | None) -> DecodedImage:
    return DecodedImage(with_bands(image, bands), image.size)


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
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - broken metadata
        return 1
    return orientation if orientation in range(1, 9) else 1


def open_source(source: Any) -> BinaryIO:
    """Open the file without reading it: a video among the images must not be loaded into memory."""
    source = read_packed(source)
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
    with suppress(ImportError):  # the extra formats, which adds one to Pillow
        import pillow_heif.HeifImagePlugin

        pillow_heif.options.DECODE_THREADS = 1  # images are decoded side by side
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _refuse_unidentified(file: BinaryIO) -> NoReturn:
    file.seek(0)
    start = file.read(4096)
    if not start:
        raise UnsupportedImage("The file is empty.")
    if _HEIF.match(start) and not find_spec("pillow_heif"):
        raise UnsupportedImage("HEIC images need the package pillow-heif; pip install 'nnclr_hub[formats]'.")
    start = start.partition(_JPEG2000_SIZES)[2]
    _check_channels(int.from_bytes(start[36:38], "big"))
    raise UnsupportedImage(f"The file is not an image in a supported format: {FORMATS_IN_WORDS}.")


def _check_channels(channels: int) -> None:
    if channels > 4:
        raise UnsupportedImage(
            f"An image of this format must be gray, RGB, RGBA or CMYK, got {channels} channels; save it as TIFF."
        )


@contextmanager
def image_errors() -> Iterator[None]:
    """Turn everything that Pillow raises in the block into an ImageError, and silence its warnings."""
    # not warnings.catch_warnings, which restores the wrong filters if the blocks of two threads overlap
    warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        yield
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(_too_large("The image")) from error
    except MemoryError as error:
        raise ImageTooExpensive("Too little memory to decode the image.") from error
    except Exception as error:  # decoders raise errors of struct, zlib and many others
        text = " ".join(str(error).split())
        reason = text if 0 < len(text) < 120 else type(error).__name__
        raise ImageError(f"The image is broken or truncated ({reason}).") from error


def check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ImageTooLarge(_too_large(f"The image of {width} x {height} pixels"))


def _too_large(what: str) -> str:
    return f"{what} has over {MAX_PIXELS // 10**6} megapixels; use a smaller copy, or --tile where the verb has it."


def _upright_rgb(image: Image.Image) -> Image.Image:
    check_size(image.width, image.height)
    if min(image.size) < 1:
        raise ImageError("The image has no pixels.")
    _check_channels(len(image.getbands()))
    # Pillow inverts white that is 0 up to 8 bits only
    inverted = isinstance(image, TiffImagePlugin.TiffImageFile) and image.mode.startswith("I;16")
    inverted = inverted and image.tag_v2.get(_PHOTOMETRIC) == 0  # type: ignore[attr-defined]
    try:
        # the orientation is read before any conversion, which drops the metadata
        upright = ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001 - the metadata is too broken for an orientation
        upright = image
    return ImageOps.invert(to_rgb(upright)) if inverted else to_rgb(upright)
