"""The size of the network's input: within its bounds, whole patches, the picture's shape kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnclr_hub.encoder.attention.sizes import input_size
from nnclr_hub.errors import ImageError, InvalidRequest


@pytest.mark.parametrize(
    ("size", "cell", "whole", "expected"),
    [
        ((640, 480), 32, False, (640, 480)),
        ((640, 480), 16, True, (640, 480)),
        ((451, 300), 16, True, (448, 304)),
        ((4000, 3000), 32, False, (1024, 768)),
        ((3000, 4000), 16, True, (768, 1024)),
        ((100, 100), 16, True, (224, 224)),
        ((64, 32), 32, False, (448, 224)),
        ((230, 1000), 32, True, (224, 992)),
        # not more than 4096 cells, if that is less
        ((1024, 1024), 16, True, (1024, 1024)),
        ((1024, 1024), 8, True, (512, 512)),
        ((4000, 3000), 8, True, (584, 440)),
        ((1024, 1024), 8, False, (512, 512)),
        ((100, 100), 2, True, (128, 128)),
        ((224, 1024), 4, True, (116, 544)),
    ],
)
def test_examples(size, cell, whole, expected):
    assert input_size(size, (cell, cell), whole=whole) == expected


@given(st.integers(8, 5000), st.integers(8, 5000), st.sampled_from([2, 8, 14, 16, 32]), st.integers(256, 2048))
def test_within_its_bounds_or_refused(width, height, patch, max_side):
    try:
        found = input_size((width, height), (patch, patch), max_side, whole=True)
    except ImageError:
        assert max(width, height) / min(width, height) > 0.99 * max_side / 224
        return
    assert max(found) <= max_side
    assert [side % patch for side in found] == [0, 0]
    cells = [side // patch for side in found]
    assert cells[0] * cells[1] <= 4096
    if (cells[0] + 1) * (cells[1] + 1) > 4096:
        return  # as many as there may be
    assert min(found) >= 224
    if min(width, height) >= 256 and max(width, height) <= max_side:
        assert abs(found[0] - width) <= max(patch / 2, width - max_side // patch * patch)


@pytest.mark.parametrize(("size", "words"), [((1, 1), "too small"), ((7, 300), "too small"), ((1, 3000), "too small")])
def test_a_speck_is_refused(size, words):
    with pytest.raises(ImageError, match=f"The picture of {size[0]} x {size[1]} pixels is {words}"):
        input_size(size, (32, 32))


def test_a_strip_is_refused_with_a_way_on():
    with pytest.raises(ImageError, match=r"too long for its width: .* longer than max_side=1024; .*raise max_side"):
        input_size((200, 1000), (32, 32))
    assert input_size((200, 1000), (32, 32), 1200) == (224, 1120)


@pytest.mark.parametrize(("max_side", "cell", "least"), [(223, 32, 224), (224, 12, 228), (1, 16, 224)])
def test_a_bound_below_the_least_is_refused(max_side, cell, least):
    with pytest.raises(InvalidRequest, match=f"max_side={max_side} is too little: .* {least} pixels at least"):
        input_size((300, 300), (cell, cell), max_side, whole=cell != 32)
