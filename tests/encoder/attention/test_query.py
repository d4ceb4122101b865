"""Points and boxes: invalid ones, and those outside the image, are refused."""

import numpy as np
import pytest

from nnclr_hub import Box, Point
from nnclr_hub.encoder.attention.query import require_inside
from nnclr_hub.errors import InvalidRequest


@pytest.mark.parametrize("place", [(float("nan"), 1), (1, float("inf")), ("1", 2), (10**9, -(10**400))])
def test_a_point_is_two_finite_numbers(place):
    with pytest.raises(InvalidRequest, match="finite"):
        Point(*place)


@pytest.mark.parametrize("corners", [(5, 5, 5, 9), (5, 5, 9, 5), (9, 5, 5, 9), (0, 0, 0, 0)])
def test_a_box_has_an_area(corners):
    with pytest.raises(InvalidRequest):
        Box(*corners)


def test_numpy_numbers_are_accepted():
    box = Box(*np.array([1, 2, 30, 40], np.float32))
    require_inside(box, (100, 50))
    assert box.center == Point(np.int64(15) + 0.5, 21)


@pytest.mark.parametrize("query", [Point(0, 0), Point(99.9, 49.9), Box(0, 0, 100, 50), Box(3, 4, 5, 6)])
def test_a_query_inside_the_image_is_accepted(query):
    require_inside(query, (100, 50))


@pytest.mark.parametrize(
    "query",
    [Point(-0.1, 3), Point(100, 3), Point(3, 50), Box(-1, 0, 5, 5), Box(90, 0, 101, 5), Box(200, 200, 300, 300)],
)
def test_a_query_outside_the_image_is_refused(query):
    with pytest.raises(InvalidRequest):
        require_inside(query, (100, 50))
