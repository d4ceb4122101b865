"""The size of the network's input: within its bounds, whole patches, the picture's shape kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnclr_hub.encoder.attention.sizes import input_size
from nnclr_hub.errors import ImageError, InvalidRequest


@pytest.mark.parametrize(
    ("size", "step", "expected"),
    [
        ((640, 480), (1, 1), (640, 480)),
        ((640, 480), (16, 16), (640, 480)),
        ((451, 300), (16, 16), (448, 304)),
        ((4000, 3000), (1, 1), (1024, 768)),
        ((3000, 4000), (14, 14), (770, 1022)),
        ((100, 100), (16, 16), (224, 224)),
        ((64, 32), (1, 1), (448, 224)),
        ((230, 1000), (32, 32), (224, 992)),
    ],
)
def test_examples(size, step, expected):
    assert input_size(size, step) == expected


@given(st.integers(8, 5000), st.integers(8, 5000), st.sampled_from([1, 8, 14, 16, 32]), st.integers(256, 2048))
def test_within_its_bounds_or_refused(width, height, patch, max_side):
    try:
        found = input_size((width, height), (patch, patch), max_side)
    except ImageError:
        assert max(width, height) / min(width, height) > 0.99 * max_side / 224
        return
    assert max(found) <= max_side
    assert min(found) >= 224
    assert [side % patch for side in found] == [0, 0]
    if min(width, height) >= 256 and max(width, height) <= max_side:
        assert abs(found[0] - width) <= max(patch / 2, width - max_side // patch * patch)


@pytest.mark.parametrize(("size", "words"), [((1, 1), "too small"), ((7, 300), "too small"), ((1, 3000), "too small")])
def test_a_speck_is_refused(size, words):
    with pytest.raises(ImageError, match=f"The picture of {size[0]} x {size[1]} pixels is {words}"):
        input_size(size, (1, 1))


def test_a_strip_is_refused_with_a_way_on():
    with pytest.raises(ImageError, match=r"too long for its width: .* longer than max_side=1024; .*raise max_side"):
        input_size((200, 1000), (1, 1))
    assert input_size((200, 1000), (1, 1), 1200) == (224, 1120)


@pytest.mark.parametrize(("max_side", "step", "least"), [(223, (1, 1), 224), (224, (12, 12), 228), (1, (16, 16), 224)])
def test_a_bound_below_the_least_is_refused(max_side, step, least):
    with pytest.raises(InvalidRequest, match=f"max_side={max_side} is too little: .* {least} pixels at least"):
        input_size((300, 300), step, max_side)
