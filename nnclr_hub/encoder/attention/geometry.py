"""Where the cells of a feature map lie in the image.

A convolution of odd kernel k, padding k // 2 and stride 2 keeps the center of its first cell where it was, so cell i of
a ResNet sees around 32 i + 0.5 pixels of its input, and not around (i + 0.5) 32: the map lies half a cell further up
and left than it would if it were merely stretched. A patch of a vision transformer is centerd at P (i + 0.5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnclr_hub.encoder.attention.queries import Box, Point, Query


@dataclass(frozen=True)
class Axis:
    """One side of a map.

    cells: how many there are.
    first: center of cell 0, in pixels of the network's input.
    stride: from one center to the next, likewise.
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
        """(cells,) float64: their centers in pixels of the original."""
        return (self.first + self.stride * np.arange(self.cells)) * (self.original / self.input)

    def nearest(self, place: float) -> int:
        """The cell whose center is nearest to a place in the original; of two, the first."""
        return int(np.abs(self.centers - place).argmin())

    def inside(self, start: float, stop: float) -> np.ndarray:
        """Cells whose centers lie from `start` to `stop` in the original."""
        return np.flatnonzero((self.centers >= start) & (self.centers <= stop))

    def interpolation(self) -> np.ndarray:
        """(original, cells) float32: weights that interpolate linearly to the middle of each pixel; rows sum to 1.

        Before the first center and behind the last one the value is theirs.
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
    """The cells of a map, by `down` and `across`, in the upright original."""

    down: Axis
    across: Axis

    @property
    def original_size(self) -> tuple[int, int]:
        """Width and height of the upright original."""
        return self.across.original, self.down.original

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height that the network was given."""
        return self.across.input, self.down.input

    def cells(self, query: Query) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns that a query means: their product.

        A point means the cell whose center is nearest; a box those whose centers lie in it, or else the one nearest
        to its own center.
        """
        if isinstance(query, Box):
            rows = self.down.inside(query.y0, query.y1)
            columns = self.across.inside(query.x0, query.x1)
            if len(rows) and len(columns):
                return rows, columns
        point = query if isinstance(query, Point) else query.center
        return np.array([self.down.nearest(point.y)]), np.array([self.across.nearest(point.x)])

    def upsampled(self, values: np.ndarray) -> np.ndarray:
        """(h, w) values of the cells -> (H, W) float32, of every pixel of the original, bilinear between centers."""
        return self.down.interpolation() @ values.astype(np.float32) @ self.across.interpolation().T
