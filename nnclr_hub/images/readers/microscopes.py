"""CZI and ND2, the formats of Zeiss and Nikon: channels, and pages of all other axes.

Channels and pages of a CZI are those that have blocks: if a file has blocks of T=0 and T=2 only, page 1 is T=2. Its
mosaics are joined, and each scene begins at its own corner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from nnclr_hub.errors import ImageError, UnsupportedImage
from nnclr_hub.images.readers.stack import Box, ImageStack, load, paste

JPEG, LZW, JPEG_XR, ZSTD, ZSTD_WITH_HEADER = 1, 2, 4, 5, 6


class Nd2Reader:
    """Reads one frame of an ND2 file at a time, with all its channels."""

    suffixes = (".nd2",)

    def takes(self, start: bytes, name: str) -> bool:
        """Return whether the file has the mark of the present format; the old one is a JPEG 2000."""
        return start.startswith(b"\xda\xce\xbe\x0a")

    @contextmanager
    def open(self, file: BinaryIO) -> Iterator[ImageStack]:
        """Open a file."""
        with load("nd2").ND2File(file) as nd2:
            sizes = dict(nd2.sizes)
            colors, samples = sizes.get("C", 1), sizes.get("S", 1)
            height, width = sizes["Y"], sizes["X"]

            def read(page: int, channels: Sequence[int], box: Box | None) -> np.ndarray:
                frame = np.asarray(nd2.read_frame(page)).reshape(colors, height, width, samples)
                left, top, right, bottom = box or (0, 0, width, height)
                part = frame[:, top:bottom, left:right]
                return np.stack([part[one // samples, :, :, one % samples] for one in channels], axis=2)

            pages = int(np.prod([n for axis, n in sizes.items() if axis not in "CYXS"], dtype=int))
            yield ImageStack(pages, colors * samples, (width, height), nd2.dtype, read)


class CziReader:
    """Reads the blocks of one plane of a CZI file at a time."""

    suffixes = (".czi",)

    def takes(self, start: bytes, name: str) -> bool:
        """Return whether the file has the format's mark."""
        return start.startswith(b"ZISRAWFILE")

    @contextmanager
    def open(self, file: BinaryIO) -> Iterator[ImageStack]:
        """Open a file.

        Raises:
            ImageError: its writer has not finished it, or it has no image.
            UnsupportedImage: its blocks have different kinds of pixels.
        """
        with load("czifile").CziFile(file) as czi:
            if not czi.header.directory_position:
                raise ImageError("The CZI file has no directory; its writer has not finished it.")
            entries = [one for one in czi.subblock_directory if one.shape == one.stored_shape]  # else of a pyramid
            if not entries:
                raise ImageError("The CZI file has no image.")
            if len({entry.dtype for entry in entries}) > 1:
                raise UnsupportedImage("The CZI file has channels of different kinds; export it as TIFF.")
            entries.sort(key=lambda one: one.mosaic_index or 0)  # later tiles are above
            yield _czi_stack(entries)


def _czi_stack(entries: Sequence[Any]) -> ImageStack:
    sizes = [{one.dimension: (one.start, one.size) for one in entry.dimension_entries} for entry in entries]
    axes = "".join(dict.fromkeys(axis for one in sizes for axis in one if axis != "M"))
    ranges = np.array([[one.get(axis, (0, 1)) for axis in axes] for one in sizes], np.int64)
    first, length = ranges[..., 0] - ranges[..., 0].min(0), ranges[..., 1]
    x, y = axes.index("X"), axes.index("Y")
    scenes = first[:, axes.index("S")] if "S" in axes else np.zeros(len(first), np.int64)
    for scene in np.unique(scenes):
        for axis in (x, y):
            first[scenes == scene, axis] -= first[scenes == scene, axis].min()
    end = first + length
    width, height = int(end[:, x].max()), int(end[:, y].max())
    colors, color_of = _numbered(first[:, [i for i, axis in enumerate(axes) if axis == "C"]])
    pages, page_of = _numbered(first[:, [i for i, axis in enumerate(axes) if axis not in "CXY"]])
    kind = np.dtype(entries[0].dtype)
    samples = int(np.prod(kind.shape, dtype=int))

    def plane(page: int, color: int, box: Box) -> np.ndarray:
        left, top, right, bottom = box
        wanted = (first[:, x] < right) & (end[:, x] > left) & (first[:, y] < bottom) & (end[:, y] > top)
        wanted &= (page_of == page) & (color_of == color)
        result = np.zeros((bottom - top, right - left, samples), kind.base)
        for one in np.flatnonzero(wanted).tolist():
            shape = int(length[one, y]), int(length[one, x]), samples
            paste(result, _czi_block(entries[one], kind.base, shape), (first[one, x] - left, first[one, y] - top))
        return result

    def read(page: int, channels: Sequence[int], box: Box | None) -> np.ndarray:
        needed = dict.fromkeys(channel // samples for channel in channels)
        found = {one: plane(page, one, box or (0, 0, width, height)) for one in needed}
        return np.stack([found[one // samples][:, :, one % samples] for one in channels], axis=2)

    shown = (0, 1, 2) if samples == 4 and colors == 1 else None  # without its opacity
    return ImageStack(pages, colors * samples, (width, height), kind.base, read, regions=True, unselected=shown)


def _czi_block(entry: Any, dtype: np.dtype, shape: tuple[int, int, int]) -> np.ndarray:
    """Decode a block; czifile knows neither Zstandard nor the present NumPy."""
    data, size = entry.data_segment().data(raw=True), int(np.prod(shape)) * dtype.itemsize
    kind = entry.compression if len(data) != size else 0  # some writers call raw data compressed
    if kind in (JPEG, JPEG_XR):
        codecs = load("imagecodecs")
        return (codecs.jpeg8_decode if kind == JPEG else codecs.jpegxr_decode)(data).reshape(shape)
    if kind == LZW:
        data = load("imagecodecs").lzw_decode(data, out=size)
    elif kind in (ZSTD, ZSTD_WITH_HEADER):
        head = data[: data[0]] if kind == ZSTD_WITH_HEADER else b""  # its length; 1, and whether bytes are apart
        data = load("imagecodecs").zstd_decode(data[len(head) :], out=size)
        if len(head) == 3 and head[1] == 1 and head[2] & 1 and dtype.itemsize == 2:
            data = np.frombuffer(data, np.uint8).reshape(2, -1).T.tobytes()
    elif kind:
        raise UnsupportedImage(f"The CZI file has the compression {kind}, which is unknown; export it as TIFF.")
    pixels = np.frombuffer(data[:size], dtype).reshape(shape)
    return pixels[..., [2, 1, 0, 3][: shape[2]]] if shape[2] > 1 else pixels  # stored as blue, green, red


def _numbered(places: np.ndarray) -> tuple[int, np.ndarray]:
    """Return how many different rows (N, axes) has, and for each row (N,) its number in their order."""
    if not places.shape[1]:
        return 1, np.zeros(len(places), np.int64)
    different, numbers = np.unique(places, axis=0, return_inverse=True)
    return len(different), numbers.reshape(-1)  # numpy 2.0 returns another shape
