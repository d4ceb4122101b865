"""TIFF files with channels that Pillow does not read: microscopy, multispectral images, OME-TIFF, large slides.

Pillow reads all other TIFF files. Which of both reads a file does not depend on what is installed.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from nnclr_hub.errors import ImageTooLarge, UnsupportedImage
from nnclr_hub.images.readers.package_import import load
from nnclr_hub.images.readers.stack import Box, ImageStack
from nnclr_hub.images.readers.tiff_colors import in_gray_or_rgb, upright

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
SUFFIXES = (".svs", ".ndpi", ".lsm", ".stk", ".btf", ".tf8", ".qptiff")  # in addition to .tif and .tiff
MAX_BLOCK = 400_000_000  # bytes of one strip or tile
_BITS, _DESCRIPTION, _SAMPLES, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 258, 270, 277, 338, 339  # tags
_SUBFILE, _SUB_IFDS, _DNG = 254, 330, 50706
_JPEG = (6, 7, 34892, 33007)  # values of the tag of the compression
_PLANES = 284  # tag: 1 for colors side by side, 2 for one after the other
_SIGNED = 2  # value of _SAMPLE_FORMAT
_UNSPECIFIED = 0  # value of _EXTRA_SAMPLES, such as for infrared, which Pillow leaves out
_OME = re.compile(r'<Pixels[^>]*?\bSizeC="(\d+)"', re.DOTALL)
_IMAGEJ = re.compile(r"^channels=(\d+)", re.MULTILINE)


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
                yield _stack(series)
        except ValueError as error:  # tifffile reads more compressions with imagecodecs
            if "imagecodecs" not in str(error):
                raise
            raise UnsupportedImage(
                "The compression of this TIFF file needs the package imagecodecs; pip install 'nnclr_hub[microscopy]'."
            ) from error


def has_more_channels(tags: Mapping[int, Any]) -> bool:
    """Return whether a file that Pillow opens has other channels or values than Pillow reads, by its first tags."""
    samples, bits, kind = (_first(tags.get(tag, 1)) for tag in (_SAMPLES, _BITS, _SAMPLE_FORMAT))
    if not isinstance(samples, int) or samples > 4 or (kind == _SIGNED and bits == 8):  # Pillow reads -1 as 255
        return True
    if samples > 1 and bits == 16 and tags.get(_PLANES) == 2:  # of which Pillow reads bytes
        return True
    extra = tags.get(_EXTRA_SAMPLES, ())
    if _UNSPECIFIED in (extra if isinstance(extra, tuple) else (extra,)):
        return True
    text = _first(tags.get(_DESCRIPTION, ""))
    if not isinstance(text, str):
        return False
    found = _OME.search(text) or (_IMAGEJ.search(text) if text.startswith("ImageJ=") else None)
    return found is not None and int(found[1]) > samples


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

    def read(page: int, channels: Sequence[int], box: Box | None) -> np.ndarray:
        needed = dict.fromkeys(channel // samples for channel in channels)
        found = {color: _plane(series, int(by_page[page, color]), samples, box) for color in needed}
        return np.stack([found[channel // samples][:, :, channel % samples] for channel in channels], axis=2)

    stack = ImageStack(pages, colors * samples, (width, height), series.dtype, read, regions=True)
    return upright(in_gray_or_rgb(stack, series.keyframe), series.keyframe)


def _plane(series: Any, number: int, samples: int, box: Box | None) -> np.ndarray:
    """Return one plane (h, w, samples)."""
    width, height = series.shape[series.axes.index("X")], series.shape[series.axes.index("Y")]
    box = box or (0, 0, width, height)
    in_file = len(series.pages)
    planes = math.prod(n for axis, n in zip(series.axes, series.shape, strict=True) if axis not in "YXS")
    if in_file == 1 < planes and series.dataoffset is not None:  # planes without tags, one after the other
        return _raw(series, series.dataoffset + number * width * height * samples * series.dtype.itemsize, samples, box)
    page = series.pages[number]
    if page is None:  # a plane that the metadata names and the file lacks
        return np.zeros((box[3] - box[1], box[2] - box[0], samples), series.dtype)
    page = page.aspage()
    if page.imagewidth != width or page.imagelength != height or page.imagedepth != 1:
        raise UnsupportedImage("The TIFF file has a page of another size, or a volume; save its planes as pages.")
    return _region(page, samples, box)


def _raw(series: Any, offset: int, samples: int, box: Box) -> np.ndarray:
    width = series.shape[series.axes.index("X")]
    file, bytes_per_row = series.parent.filehandle, width * samples * series.dtype.itemsize
    file.seek(offset + box[1] * bytes_per_row)
    dtype = np.dtype(series.parent.byteorder + series.dtype.char)
    rows = file.read_array(dtype, (box[3] - box[1]) * width * samples).reshape(-1, width, samples)
    return rows[:, box[0] : box[2]].astype(series.dtype)


def _region(page: Any, samples: int, box: Box) -> np.ndarray:
    """Decode the strips or tiles of a page that a box overlaps: (h, w, samples)."""
    left, top, right, bottom = box
    result = np.zeros((bottom - top, right - left, samples), page.dtype)
    wide, high = (page.tilewidth, page.tilelength) if page.is_tiled else (page.imagewidth, page.rowsperstrip)
    high = min(high, page.imagelength)
    separate = page.planarconfig == 2 and samples > 1
    if page.compression == 1 and not page.is_tiled and page.is_contiguous and page.bitspersample % 8 == 0:
        planes = samples if separate else 1
        size = page.imagewidth * page.imagelength * (samples // planes) * page.dtype.itemsize
        parts = [_raw_page(page, page.dataoffsets[0] + i * size, samples // planes, box) for i in range(planes)]
        return np.concatenate(parts, axis=2)
    if wide * high * (1 if separate else samples) * page.dtype.itemsize > MAX_BLOCK:
        raise ImageTooLarge(f"The TIFF file has blocks of {wide} x {high} pixels; save it with tiles of 256 x 256.")
    across, down = -(-page.imagewidth // wide), -(-page.imagelength // high)
    file = page.parent.filehandle
    tables = {"jpegtables": page.jpegtables, "jpegheader": page.jpegheader} if page.compression in _JPEG else {}
    for sample in range(samples if separate else 1):
        for row in range(top // high, -(-bottom // high)):
            for column in range(left // wide, -(-right // wide)):
                index = (sample * down + row) * across + column
                offset, count = page.dataoffsets[index], page.databytecounts[index]
                if not count:
                    continue  # an empty block
                file.seek(offset)
                data = file.read(count)  # before `decode`, whose first use moves the file
                block, _, _ = page.decode(data, index, **tables)
                if block is not None:
                    _paste(result, block[0], (column * wide - left, row * high - top), sample if separate else None)
    return result


def _raw_page(page: Any, offset: int, samples: int, box: Box) -> np.ndarray:
    file, bytes_per_row = page.parent.filehandle, page.imagewidth * samples * page.dtype.itemsize
    file.seek(offset + box[1] * bytes_per_row)
    dtype = np.dtype(page.parent.byteorder + page.dtype.char)
    rows = file.read_array(dtype, (box[3] - box[1]) * page.imagewidth * samples)
    return rows.reshape(-1, page.imagewidth, samples)[:, box[0] : box[2]].astype(page.dtype)


def _paste(result: np.ndarray, block: np.ndarray, corner: tuple[int, int], sample: int | None) -> None:
    """Copy a block (h, w, samples) to its place, as far as it is inside the result."""
    x, y = corner
    height, width = result.shape[:2]
    inside = result[max(0, y) : min(height, y + block.shape[0]), max(0, x) : min(width, x + block.shape[1])]
    part = block[max(0, -y) :, max(0, -x) :][: inside.shape[0], : inside.shape[1]]
    if sample is None:
        inside[:] = part
    else:
        inside[:, :, sample] = part[:, :, 0]
