"""Points and boxes: invalid ones, and those outside the image, are refused."""

from contextlib import nullcontext

import numpy as np
import pytest

from nnclr_hub import Box, Point
from nnclr_hub.encoder.attention.query import require_inside
from nnclr_hub.errors import InvalidRequest


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        *((Point, numbers) for numbers in [(float("nan"), 1), (1, float("inf")), ("1", 2), (10**9, -(10**400))]),
        *((Box, corners) for corners in [(5, 5, 5, 9), (5, 5, 9, 5), (9, 5, 5, 9), (0, 0, 0, 0)]),  # without an area
    ],
)
def test_a_query_of_other_numbers_is_refused(kind, numbers):
    with pytest.raises(InvalidRequest, match="finite" if kind is Point else None):
        kind(*numbers)


def test_numpy_numbers_are_accepted():
    box = Box(*np.array([1, 2, 30, 40], np.float32))
    require_inside(box, (100, 50))
    assert box.center == Point(np.int64(15) + 0.5, 21)


INSIDE = [Point(0, 0), Point(99.9, 49.9), Box(0, 0, 100, 50), Box(3, 4, 5, 6)]
OUTSIDE = [Point(-0.1, 3), Point(100, 3), Point(3, 50), Box(-1, 0, 5, 5), Box(90, 0, 101, 5), Box(200, 200, 300, 300)]


@pytest.mark.parametrize("query", [*INSIDE, *OUTSIDE])
def test_a_query_is_inside_the_image(query):
    with nullcontext() if query in INSIDE else pytest.raises(InvalidRequest):
        require_inside(query, (100, 50))
