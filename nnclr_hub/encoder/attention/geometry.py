"""The size at which an image enters the network, and where the cells of its feature map are in the image.

The paper uses "the original resolution of the images to get a larger feature map": the image is not cropped.

A convolution of odd kernel k, padding k // 2 and stride 2 keeps the center of its first cell in place. So cell i of a
ResNet is centered at 32 i + 0.5 pixels of its input, not at (i + 0.5) 32. A map that is merely stretched over the image
would be half a cell off. A patch of a vision transformer is centered at P (i + 0.5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nnclr_hub.encoder.attention.query import MAX_SIDE, Box, Point, Query
from nnclr_hub.errors import InvalidRequest

# Of a map, whatever max_side is: as many as patches of 16 have at 1024 x 1024. A transformer's cost grows with the
# square of this number. Patches of 8 at 1024 x 1024 would cost 16 times as much, and 6 GB per block without fused
# attention.
MAX_CELLS = 4096
MIN_SIDE = 224  # short side of the network's input, in pixels, where max_side allows it
VIEW_SIDE = 256  # largest short side of the input for a map that is shown with the center prior


def input_size(
    size: tuple[int, int],
    cell: tuple[int, int],
    max_side: int = MAX_SIDE,
    short_side: float = math.inf,
    *,
    whole: bool = False,
) -> tuple[int, int]:
    """Return the width and height to which an image is resized.

    Args:
        size: width and height of the upright original.
        cell: pixels across and down from one cell of the map to the next.
        max_side: maximum of the long side, in pixels. Within it, the short side is enlarged to MIN_SIDE. Each side is
            at least one cell, so a thin strip is widened.
        short_side: maximum of the short side, at least MIN_SIDE.
        whole: whether the sides must be multiples of a cell's, as those of a vision transformer.

    Raises:
        InvalidRequest: max_side is less than a cell.
    """
    if max_side < max(cell):
        raise InvalidRequest(f"max_side must be at least {max(cell)}, a cell of this network, got {max_side}.")
    step = cell if whole else (1, 1)
    most = tuple(min(max_side // part * part, MAX_CELLS * side) for part, side in zip(step, cell, strict=True))
    most_scale = min(1.0, max_side / max(size), short_side / min(size))
    scale = max(most_scale, min(MIN_SIDE / min(size), max_side / max(size)))
    width, height = (
        min(max(round(scale * side / part) * part, least), bound)
        for side, part, least, bound in zip(size, step, cell, most, strict=True)
    )
    excess = math.sqrt(math.ceil(width / cell[0]) * math.ceil(height / cell[1]) / MAX_CELLS)
    if excess > 1:
        width, height = (
            max(math.floor(side / excess / part) * part, part) for side, part in zip((width, height), cell, strict=True)
        )
    return width, height


@dataclass(frozen=True)
class Axis:
    """One axis of a map.

    cells: number of cells.
    first: center of cell 0, in pixels of the network's input.
    stride: from one center to the next, in pixels of the network's input.
    input: length of the network's input, in pixels.
    original: length of the upright original, in pixels.
    """

    cells: int
    first: float
    stride: float
    input: int
    original: int

    @property
    def centers(self) -> np.ndarray:
        """(cells,) float64: the centers of the cells in pixels of the original."""
        return (self.first + self.stride * np.arange(self.cells)) * (self.original / self.input)

    def nearest(self, place: float) -> int:
        """Return the cell whose center is nearest to a place in the original; of two, the first."""
        return int(np.abs(self.centers - place).argmin())

    def inside(self, start: float, stop: float) -> np.ndarray:
        """Return the cells whose centers are from `start` to `stop` in the original."""
        return np.flatnonzero((self.centers >= start) & (self.centers <= stop))

    def interpolation(self) -> np.ndarray:
        """Return (original, cells) float32 weights that interpolate linearly at the middle of each pixel.

        Rows sum to 1. Before the first center and after the last one, the value is that of the nearest cell.
        """
        place = (np.arange(self.original) + 0.5) * (self.input / self.original)
        at = np.clip((place - self.first) / self.stride, 0, self.cells - 1)
        left = np.minimum(at.astype(int), max(self.cells - 2, 0))
        weights = np.zeros((self.original, self.cells), np.float32)
        rows = np.arange(self.original)
        weights[rows, np.minimum(left + 1, self.cells - 1)] = at - left
        weights[rows, left] = 1 - (at - left)
        return weights


@dataclass(frozen=True)
class Grid:
    """The cells of a map in the upright original, as an axis `down` and an axis `across`."""

    down: Axis
    across: Axis

    @property
    def original_size(self) -> tuple[int, int]:
        """Width and height of the upright original."""
        return self.across.original, self.down.original

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height of the network's input."""
        return self.across.input, self.down.input

    def cells(self, query: Query) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows and the columns of the cells that a query selects.

        A point selects the cell with the nearest center. A box selects the cells whose centers are inside, or else the
        cell nearest to the box's own center.
        """
        if isinstance(query, Box):
            rows = self.down.inside(query.y0, query.y1)
            columns = self.across.inside(query.x0, query.x1)
            if len(rows) and len(columns):
                return rows, columns
        point = query if isinstance(query, Point) else query.center
        return np.array([self.down.nearest(point.y)]), np.array([self.across.nearest(point.x)])

    def upsampled(self, values: np.ndarray) -> np.ndarray:
        """Return (H, W) float32 values of every pixel of the original, bilinear between the (h, w) cell centers."""
        return self.down.interpolation() @ values.astype(np.float32) @ self.across.interpolation().T
