"""What an attention map is to show: a point, a box or the whole image, and how.

Coordinates are pixels of the upright original. Pixel (i, j) from the top left covers x from j to j + 1 and y from i to
i + 1.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from numbers import Integral, Real

from nnclr_hub.errors import InvalidRequest

SIMILARITIES = ("dot", "cosine")
MAX_TARGETS = 6
MAX_SIDE = 1024  # longest side of the network's input, in pixels


@dataclass(frozen=True)
class Point:
    """A point in an image: 0 <= x < width, 0 <= y < height.

    Raises:
        InvalidRequest: a coordinate is not a finite number.
    """

    x: float
    y: float

    def __post_init__(self) -> None:
        _require_numbers(self, "A point is x, y")


@dataclass(frozen=True)
class Box:
    """A box in an image, from its top left corner (x0, y0) to (x1, y1): 0 <= x0 < x1 <= width, same for y.

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
                f"The box {_text(self)} has no area; give x0, y0, x1, y1 in pixels with x0 < x1 and y0 < y1."
            )

    @property
    def center(self) -> Point:
        """The center of the box."""
        return Point((self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2)


Query = Point | Box


@dataclass(frozen=True)
class AttentionSettings:
    """The settings of an attention map.

    query: a point or a box; None: the whole image.
    similarity: "dot" as in the paper, or "cosine", which normalizes both vectors.
    head: number of a head of the last block, from 0; None: the mean of all heads. Only for the row of [CLS].
    threshold: in (0, 1]; keep the fewest patches that contain this share of the row's sum. Only for the row of [CLS].
    max_side: maximum side of the network's input, in pixels; see `geometry.input_size`. None: 1024.
    center_prior: True: the overlay shows the map times a Gaussian in the center, where objects mostly are; without
        max_side, the network sees the image with a short side of at most 256 pixels. Only for the whole image, without
        targets, head and threshold. False: the plain map of the image in its own size, as in the paper. None: True
        where that is possible.

    Raises:
        InvalidRequest: a value is invalid for every network.
    """

    query: Query | None = None
    similarity: str = "dot"
    head: int | None = None
    threshold: float | None = None
    max_side: int | None = None
    center_prior: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.query, Point | Box | None):
            raise InvalidRequest(f"query must be Point(x, y), Box(x0, y0, x1, y1) or None, got {self.query!r}.")
        if self.similarity not in SIMILARITIES:
            raise InvalidRequest(f"similarity must be one of {', '.join(SIMILARITIES)}, got {self.similarity!r}.")
        if self.head is not None and not (_is_whole(self.head) and self.head >= 0):
            raise InvalidRequest(f"head must be a whole number from 0, got {self.head!r}.")
        if self.threshold is not None and not (_is_number(self.threshold) and 0 < self.threshold <= 1):
            raise InvalidRequest(f"threshold must be in (0, 1], such as 0.6, got {self.threshold!r}.")
        if self.max_side is not None and not (_is_whole(self.max_side) and self.max_side >= 1):
            raise InvalidRequest(f"max_side must be a whole number of pixels, got {self.max_side!r}.")
        if not isinstance(self.center_prior, bool | None):
            raise InvalidRequest(f"center_prior must be true, false or null, got {self.center_prior!r}.")
        self.has_prior()

    def has_prior(self, targets: int = 0) -> bool:
        """Return whether the overlay shows the center prior.

        Raises:
            InvalidRequest: center_prior is True, and another setting excludes it.
        """
        kind = "point" if isinstance(self.query, Point) else "box"
        excluding = {kind: self.query, "target": targets or None, "head": self.head, "threshold": self.threshold}
        given = [name for name, value in excluding.items() if value is not None]
        if self.center_prior and given:
            raise InvalidRequest(
                f"center_prior cannot be combined with {given[0]}, because it applies to the map of the whole image; "
                "leave out one of them."
            )
        return self.center_prior is not False and not given


def require_inside(query: Query, size: tuple[int, int]) -> None:
    """Check that a query is inside the image.

    Args:
        size: width and height of the upright original.

    Raises:
        InvalidRequest: part of the query is outside.
    """
    width, height = size
    if isinstance(query, Point):
        inside = 0 <= query.x < width and 0 <= query.y < height
        limits = f"0 <= x < {width} and 0 <= y < {height}"
    else:
        inside = query.x0 >= 0 and query.y0 >= 0 and query.x1 <= width and query.y1 <= height
        limits = f"0 <= x0 < x1 <= {width} and 0 <= y0 < y1 <= {height}"
    if not inside:
        raise InvalidRequest(
            f"The {type(query).__name__.lower()} {_text(query)} is not inside the upright image of {width} x {height} "
            f"pixels; it needs {limits}."
        )


def _require_numbers(query: Query, what: str) -> None:
    values = astuple(query)
    if not all(map(_is_finite, values)):
        raise InvalidRequest(f"{what} in pixels, all finite numbers; got {values}.")


def _text(query: Query) -> str:
    return f"({', '.join(f'{value:g}' for value in astuple(query))})"


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an int too large for a float
        return False


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
