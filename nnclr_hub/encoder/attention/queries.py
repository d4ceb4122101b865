"""Queries: what in an image is asked about, in pixels of the upright original.

Pixel (i, j) from the top left covers x from j to j + 1 and y from i to i + 1.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from numbers import Real

from nnclr_hub.errors import InvalidRequest


@dataclass(frozen=True)
class Point:
    """A place in an image: 0 <= x < width, 0 <= y < height.

    Raises:
        InvalidRequest: a coordinate is not a finite number.
    """

    x: float
    y: float

    def __post_init__(self) -> None:
        _require_numbers(self, "A point is x, y")


@dataclass(frozen=True)
class Box:
    """A part of an image, from the corner (x0, y0) at its top left to (x1, y1): 0 <= x0 < x1 <= width, and so for y.

    Raises:
        InvalidRequest: a coordinate is not a finite number, or the box has no area.
    """

    x0: float
    y0: float
    x1: float
    y1: float

    def __post_init__(self) -> None:
        _require_numbers(self, "A box is x0, y0, x1, y1")
        if not (self.x0 < self.x1 and self.y0 < self.y1):
            raise InvalidRequest(
                f"The box {_written(self)} has no area: give x0, y0, x1, y1 in pixels with x0 < x1 and y0 < y1."
            )

    @property
    def center(self) -> Point:
        """The point in its middle."""
        return Point((self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2)


Query = Point | Box


def require_inside(query: Query, size: tuple[int, int]) -> None:
    """Refuses a query that is not on the image.

    Args:
        size: width and height of the upright original.

    Raises:
        InvalidRequest: part of it lies outside.
    """
    width, height = size
    if isinstance(query, Point):
        inside = 0 <= query.x < width and 0 <= query.y < height
        limits = f"give 0 <= x < {width} and 0 <= y < {height}"
    else:
        inside = query.x0 >= 0 and query.y0 >= 0 and query.x1 <= width and query.y1 <= height
        limits = f"give 0 <= x0 < x1 <= {width} and 0 <= y0 < y1 <= {height}"
    if not inside:
        raise InvalidRequest(
            f"The {type(query).__name__.lower()} {_written(query)} is not inside the upright image of {width} x "
            f"{height} pixels: {limits}."
        )


def _require_numbers(query: Query, what: str) -> None:
    values = astuple(query)
    if not all(map(_finite, values)):
        raise InvalidRequest(f"{what} in pixels, finite numbers; these are {values}.")


def _written(query: Query) -> str:
    return f"({', '.join(f'{value:g}' for value in astuple(query))})"


def _finite(value: object) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False
