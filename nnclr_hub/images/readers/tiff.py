"""TIFF files with channels that Pillow does not read: microscopy, multispectral images, OME-TIFF, large slides.

Pillow reads all other TIFF files. Which of both reads a file does not depend on what is installed.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from nnclr_hub.errors import ImageTooLarge, UnsupportedImage
from nnclr_hub.images.color import to_8_bits, to_rgb
from nnclr_hub.images.readers.stack import Box, ImageStack, load, paste

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
SUFFIXES = (".svs", ".ndpi", ".lsm", ".stk", ".btf", ".tf8", ".qptiff")  # in addition to .tif and .tiff
MAX_BLOCK = 400_000_000  # bytes of one strip or tile
_BITS, _DESCRIPTION, _ORIENTATION, _SAMPLES, _PLANES, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 258, 270, 274, 277, 284, 338, 339
_SUBFILE, _SUB_IFDS, _DNG = 254, 330, 50706
_SIGNED = 2  # value of _SAMPLE_FORMAT
_UNSPECIFIED = 0  # value of _EXTRA_SAMPLES, such as for infrared, which Pillow leaves out
_OME = re.compile(r'<Pixels[^>]*?\bSizeC="(\d+)"', re.DOTALL)
_IMAGEJ = re.compile(r"^channels=(\d+)", re.MULTILINE)
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _CMYK, _YCBCR = 0, 1, 2, 3, 5, 6  # photometric interpretations
_LAB = (8, 9, 10)
_JPEG = (6, 7, 34892, 33007)  # compressions
_LOSSLESS = (1, 5, 8, 32773, 32946, 34925, 50000)  # compressions that keep the stored color space
_ALPHA = {1: "RGBa", 2: "RGBA"}  # value of _EXTRA_SAMPLES: whether the colors are multiplied with alpha already
_STEPS = {2: 85, 4: 17}  # bits of gray: the factor to 255


class TiffReader:
    """Reads the first series of a TIFF file: its axes C and S are channels, all others but X and Y are pages."""

    suffixes = SUFFIXES

    def takes(self, start: bytes, name: str) -> bool:
        """Return False: the tags decide, see `has_more_channels`."""
        return False

    @contextmanager
    def open(self, file: BinaryIO) -> Iterator[ImageStack]:
        """Open a file."""
        tifffile = load("tifffile")
        logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what matters is raised
        try:
            tiff = tifffile.TiffFile(file)
            series = tiff.series[0]
        except Exception as error:  # tifffile raises errors of struct and many others
            raise UnsupportedImage("The TIFF file is damaged, or contains no image.") from error
        try:
            with tiff:
                yield _upright(_in_gray_or_rgb(_stack(series), series.keyframe), series.keyframe)
        except ValueError as error:  # tifffile reads more compressions with imagecodecs
            if "imagecodecs" not in str(error):
                raise
            raise UnsupportedImage(
                "The compression of this TIFF file needs the package imagecodecs; pip install 'nnclr_hub[formats]'."
            ) from error


def has_more_channels(tags: Mapping[int, Any]) -> bool:
    """Return whether a file that Pillow opens has other channels or values than Pillow reads, by its first tags."""
    samples, bits, kind = (_first(tags.get(tag, 1)) for tag in (_SAMPLES, _BITS, _SAMPLE_FORMAT))
    if not isinstance(samples, int) or samples > 4 or (kind == _SIGNED and bits == 8):  # Pillow reads -1 as 255
        return True
    if has_wide_planes(tags):
        return True
    extra = tags.get(_EXTRA_SAMPLES, ())
    if _UNSPECIFIED in (extra if isinstance(extra, tuple) else (extra,)):
        return True
    text = _first(tags.get(_DESCRIPTION, ""))
    if not isinstance(text, str):
        return False
    found = _OME.search(text) or (_IMAGEJ.search(text) if text.startswith("ImageJ=") else None)
    return found is not None and int(found[1]) > samples


def has_wide_planes(tags: Mapping[int, Any]) -> bool:
    """Return whether each channel is stored apart, in a form of which Pillow mixes up the values."""
    samples, bits = (_first(tags.get(tag, 1)) for tag in (_SAMPLES, _BITS))
    return samples != 1 and (bits == 16 or samples == 2) and tags.get(_PLANES) == 2


def is_camera_raw(tags: Mapping[int, Any]) -> bool:
    """Return whether the first image of a file is the thumbnail of a raw image, as in DNG, NEF and ARW."""
    return _DNG in tags or (_first(tags.get(_SUBFILE, 0)) == 1 and _SUB_IFDS in tags)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and value else value


def _stack(series: Any) -> ImageStack:
    axes, shape = series.axes, series.shape
    if "X" not in axes or "Y" not in axes:
        raise UnsupportedImage(f"The TIFF file has the axes {axes}, and not X and Y.")
    planes = [(axis, length) for axis, length in zip(axes, shape, strict=True) if axis not in "YXS"]
    samples = shape[axes.index("S")] if "S" in axes else 1
    colors = math.prod(length for axis, length in planes if axis == "C")
    pages = math.prod(length for axis, length in planes if axis != "C")
    order = np.arange(pages * colors).reshape([length for _, length in planes])
    if "C" in axes:
        order = np.moveaxis(order, [axis for axis, _ in planes].index("C"), -1)
    by_page = order.reshape(pages, colors)  # the number in the file of each plane
    width, height = shape[axes.index("X")], shape[axes.index("Y")]

    def plane(number: int, box: Box) -> np.ndarray:
        """Return one plane (h, w, samples)."""
        if len(series.pages) == 1 < pages * colors and series.dataoffset is not None:  # one after the other
            offset = series.dataoffset + number * width * height * samples * series.dtype.itemsize
            return _rows(series, offset, width, samples, box)
        page = series.pages[number]
        if page is None:  # a plane that the metadata names and the file lacks
            return np.zeros((box[3] - box[1], box[2] - box[0], samples), series.dtype)
        page = page.aspage()
        if page.imagewidth != width or page.imagelength != height or page.imagedepth != 1:
            raise UnsupportedImage("The TIFF file has a page of another size, or a volume; save its planes as pages.")
        return _region(page, samples, box)

    def read(page: int, channels: Sequence[int], box: Box | None) -> np.ndarray:
        needed = dict.fromkeys(channel // samples for channel in channels)
        found = {color: plane(int(by_page[page, color]), box or (0, 0, width, height)) for color in needed}
        return np.stack([found[channel // samples][:, :, channel % samples] for channel in channels], axis=2)

    return ImageStack(pages, colors * samples, (width, height), series.dtype, read, regions=True)


def _rows(part: Any, offset: int, width: int, samples: int, box: Box) -> np.ndarray:
    part.parent.filehandle.seek(offset + box[1] * width * samples * part.dtype.itemsize)
    dtype = np.dtype(part.parent.byteorder + part.dtype.char)
    rows = part.parent.filehandle.read_array(dtype, (box[3] - box[1]) * width * samples)
    return rows.reshape(-1, width, samples)[:, box[0] : box[2]].astype(part.dtype)


def _region(page: Any, samples: int, box: Box) -> np.ndarray:
    """Let tifffile decode the strips or tiles of a page that a box overlaps: (h, w, samples)."""
    left, top, right, bottom = box
    planes = samples if page.planarconfig == 2 else 1
    if page.compression == 1 and not page.is_tiled and page.is_contiguous and page.bitspersample % 8 == 0:
        size = page.imagewidth * page.imagelength * (samples // planes) * page.dtype.itemsize
        offsets = [page.dataoffsets[0] + number * size for number in range(planes)]
        return np.concatenate([_rows(page, at, page.imagewidth, samples // planes, box) for at in offsets], axis=2)
    wide, high = (page.tilewidth, page.tilelength) if page.is_tiled else (page.imagewidth, page.rowsperstrip)
    high = min(high, page.imagelength)
    if wide * high * (samples // planes) * page.dtype.itemsize > MAX_BLOCK:
        raise ImageTooLarge(f"The TIFF file has blocks of {wide} x {high} pixels; save it with tiles of 256 x 256.")
    across, down = -(-page.imagewidth // wide), -(-page.imagelength // high)
    tables = {"jpegtables": page.jpegtables, "jpegheader": page.jpegheader} if page.compression in _JPEG else {}
    result = np.zeros((bottom - top, right - left, samples), page.dtype)
    for sample in range(planes):
        for row in range(top // high, -(-bottom // high)):
            for column in range(left // wide, -(-right // wide)):
                index = (sample * down + row) * across + column
                if not page.databytecounts[index]:
                    continue  # an empty block
                page.parent.filehandle.seek(page.dataoffsets[index])
                data = page.parent.filehandle.read(page.databytecounts[index])
                block, _, _ = page.decode(data, index, **tables)
                if block is not None:
                    target = result if planes == 1 else result[:, :, sample : sample + 1]
                    paste(target, block[0], (column * wide - left, row * high - top))
    return result


# ---- colors and orientation, as Pillow gives them for a whole image --------------------------------------------------


def _in_gray_or_rgb(stack: ImageStack, page: Any) -> ImageStack:
    """Return the stack of a file with the channels that its photometric interpretation means.

    White that is 0 is inverted, a palette and CMYK become RGB. Alpha is a channel only if it is selected; without it
    transparent pixels are blended with white. Other numbers of channels and other types stay as they are.

    Args:
        page: of tifffile, the first one of the series.
    """
    kind, channels = int(page.photometric), stack.channels
    alpha = _ALPHA.get(int(page.extrasamples[0])) if len(page.extrasamples) == 1 else None
    if channels == 3 and (kind in _LAB or (kind == _YCBCR and page.compression in _LOSSLESS)):
        return _refused(stack, "CIELab" if kind in _LAB else "YCbCr without JPEG")
    if kind == _WHITE_IS_ZERO and channels == 1 and stack.dtype == np.uint16:
        return replace(stack, inverted=True)  # after the scale is found, as the file may have 12 bits
    if kind == _RGB and channels == 4 and alpha and stack.dtype in (np.uint8, np.uint16):
        return _converted(stack, 4, lambda values: _blended(values, alpha), unless=3)
    if kind == _BLACK_IS_ZERO and channels == 2 and alpha == "RGBA" and stack.dtype in (np.uint8, np.uint16):
        return _converted(stack, 2, lambda values: _blended(values, "LA"), unless=1)
    if stack.dtype not in (np.uint8, np.bool_):
        return stack
    if kind == _CMYK and channels == 4 and not page.extrasamples:
        if page.compression not in _LOSSLESS:
            return _refused(stack, "CMYK with JPEG")
        return _converted(stack, 3, lambda values: np.asarray(Image.fromarray(values, "CMYK").convert("RGB")))
    if kind == _PALETTE and channels == 1 and page.colormap is not None:
        palette = (np.asarray(page.colormap) >> 8).astype(np.uint8).T
        return _converted(stack, 3, lambda values: palette[values[:, :, 0].astype(np.uint8)])
    if kind in (_WHITE_IS_ZERO, _BLACK_IS_ZERO) and channels == 1:
        if stack.dtype == np.uint8 and (step := _STEPS.get(page.bitspersample)):
            stack = _converted(stack, 1, lambda values: values * np.uint8(step))
        return _converted(stack, 1, np.invert) if kind == _WHITE_IS_ZERO else stack
    return stack


def _converted(
    stack: ImageStack, channels: int, convert: Callable[[np.ndarray], np.ndarray], unless: int | None = None
) -> ImageStack:
    """Return a stack whose pixels (h, w, C) are converted together, unless a caller selects the channel `unless`."""
    every = range(stack.channels)

    def read(page: int, wanted: Sequence[int], box: Box | None) -> np.ndarray:
        if unless is not None and unless in wanted:
            return stack.read(page, wanted, box)
        return convert(np.ascontiguousarray(stack.read(page, every, box)))[:, :, list(wanted)]

    if unless is not None:
        return replace(stack, read=read, unselected=tuple(range(unless)))
    return replace(stack, channels=channels, read=read, dtype=stack.dtype if channels == 1 else np.dtype(np.uint8))


def _blended(values: np.ndarray, mode: str) -> np.ndarray:
    if values.dtype != np.uint8:  # colors and alpha apart: colors of 12 bits may have an alpha of 16
        values = np.concatenate([to_8_bits(part, "depth") for part in (values[:, :, :-1], values[:, :, -1:])], axis=2)
    return np.asarray(to_rgb(Image.frombytes(mode.upper(), values.shape[1::-1], values.tobytes(), "raw", mode)))


def _refused(stack: ImageStack, colors: str) -> ImageStack:
    """Return a stack that is not read in parts; Pillow reads the whole file."""

    def read(page: int, wanted: Sequence[int], box: Box | None) -> np.ndarray:
        raise UnsupportedImage(
            f"The TIFF file has colors in {colors}, of which no page or channel can be chosen; save it as RGB."
        )

    return replace(stack, read=read, regions=False)


def _upright(stack: ImageStack, page: Any) -> ImageStack:
    """Return a stack that is turned and mirrored by its orientation, which has the values of EXIF."""
    orientation = page.tags.valueof(_ORIENTATION, default=1)
    if orientation not in range(2, 9):
        return stack
    rows, columns, swapped = orientation in (3, 4, 6, 7), orientation in (2, 3, 7, 8), orientation >= 5
    width, height = stack.size

    def read(page: int, wanted: Sequence[int], box: Box | None) -> np.ndarray:
        if box is not None:
            left, top, right, bottom = (box[1], box[0], box[3], box[2]) if swapped else box
            left, right = (width - right, width - left) if columns else (left, right)
            top, bottom = (height - bottom, height - top) if rows else (top, bottom)
            box = (left, top, right, bottom)
        values = stack.read(page, wanted, box)[:: -1 if rows else 1, :: -1 if columns else 1]
        return values.transpose(1, 0, 2) if swapped else values

    return replace(stack, size=(height, width) if swapped else (width, height), read=read)
