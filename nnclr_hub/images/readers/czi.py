"""CZI, the format of Zeiss microscopes: channels, and pages of all other axes.

Channels and pages are those that have blocks: if a file has blocks of T=0 and T=2 only, page 1 is T=2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np

from nnclr_hub.images.readers.czi_blocks import Directory, read_block, read_directory
from nnclr_hub.images.readers.stack import Box, ImageStack


class CziReader:
    """Reads the blocks of one plane at a time; a mosaic is joined, and each scene begins at its own corner."""

    suffixes = (".czi",)

    def takes(self, start: bytes, name: str) -> bool:
        """Return whether the file has the format's mark."""
        return start.startswith(b"ZISRAWFILE")

    @contextmanager
    def open(self, file: BinaryIO) -> Iterator[ImageStack]:
        """Open a file.

        Raises:
            UnsupportedImage, ImageError: see `read_directory`.
        """
        blocks = read_directory(file)
        first, (width, height) = _from_corners(blocks)
        end = first + blocks.length
        samples, x, y = blocks.samples, blocks.axes.index("X"), blocks.axes.index("Y")
        colors, color_of = _numbered(first[:, [i for i, axis in enumerate(blocks.axes) if axis == "C"]])
        pages, page_of = _numbered(first[:, [i for i, axis in enumerate(blocks.axes) if axis not in "CXY"]])

        def plane(page: int, color: int, box: Box) -> np.ndarray:
            left, top, right, bottom = box
            wanted = (first[:, x] < right) & (end[:, x] > left) & (first[:, y] < bottom) & (end[:, y] > top)
            wanted &= (page_of == page) & (color_of == color)
            result = np.zeros((bottom - top, right - left, samples), blocks.dtype)
            for one in np.flatnonzero(wanted).tolist():
                block, at_x, at_y = read_block(file, blocks, one), first[one, x] - left, first[one, y] - top
                inside = result[max(0, at_y) : end[one, y] - top, max(0, at_x) : end[one, x] - left]
                inside[:] = block[max(0, -at_y) :, max(0, -at_x) :][: inside.shape[0], : inside.shape[1]]
            return result

        def read(page: int, channels: Sequence[int], box: Box | None) -> np.ndarray:
            needed = dict.fromkeys(channel // samples for channel in channels)
            found = {one: plane(page, one, box or (0, 0, width, height)) for one in needed}
            return np.stack([found[one // samples][:, :, one % samples] for one in channels], axis=2)

        shown = (0, 1, 2) if samples == 4 and colors == 1 else None  # without its opacity
        yield ImageStack(pages, colors * samples, (width, height), blocks.dtype, read, regions=True, unselected=shown)


def _numbered(places: np.ndarray) -> tuple[int, np.ndarray]:
    """Return how many different rows (N, axes) has, and for each row (N,) its number in their order."""
    if not places.shape[1]:
        return 1, np.zeros(len(places), np.int64)
    different, numbers = np.unique(places, axis=0, return_inverse=True)
    return len(different), numbers.reshape(-1)  # numpy 2.0 returns another shape


def _from_corners(blocks: Directory) -> tuple[np.ndarray, tuple[int, int]]:
    """Return where blocks begin on each axis, from 0 and in each scene from its corner; and the largest (w, h)."""
    axes, first = blocks.axes, blocks.first - blocks.first.min(0)
    scenes = first[:, axes.index("S")] if "S" in axes else np.zeros(len(first), np.int64)
    for axis in "XY":
        column = first[:, axes.index(axis)]
        for scene in np.unique(scenes):
            column[scenes == scene] -= column[scenes == scene].min()
    width, height = ((first + blocks.length)[:, axes.index(axis)].max() for axis in "XY")
    return first, (int(width), int(height))
