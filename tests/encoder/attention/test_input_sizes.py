"""The size of the network's input: within its bounds, whole patches, the image's shape kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnclr_hub.encoder.attention.sizes import input_size
from nnclr_hub.errors import InvalidRequest


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


@given(st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([2, 8, 14, 16, 32]), st.integers(32, 100_000))
def test_within_its_bounds(width, height, patch, max_side):
    found = input_size((width, height), (patch, patch), max_side, whole=True)
    cells = [side // patch for side in found]
    assert patch <= min(found) <= max(found) <= max_side
    assert [side % patch for side in found] == [0, 0]
    assert cells[0] * cells[1] <= 4096
    wide, down = input_size((width, height), (patch, patch), max_side)  # of a convolution, of any pixels
    assert -(-wide // patch) * -(-down // patch) <= 4096
    if (cells[0] + 1) * (cells[1] + 1) > 4096:
        return  # as many as there may be
    assert min(found) >= 224 - patch or max(found) > max_side - patch
    if min(width, height) >= 256 and max(width, height) <= max_side:
        assert abs(found[0] - width) <= max(patch / 2, width - max_side // patch * patch)


@pytest.mark.parametrize(
    ("size", "cell", "max_side", "expected"),
    [
        ((640, 480), 16, 256, (256, 192)),  # less than 224, since max_side says so
        ((1920, 1080), 32, 64, (64, 32)),
        ((3000, 400), 16, 1024, (1024, 144)),
        ((1, 1), 16, 1024, (224, 224)),
        ((1, 3000), 16, 1024, (16, 1024)),  # widened to one cell
    ],
)
def test_max_side_holds_for_every_image(size, cell, max_side, expected):
    assert input_size(size, (cell, cell), max_side, whole=True) == expected


@pytest.mark.parametrize(("max_side", "cell"), [(31, 32), (1, 16)])
def test_a_bound_below_one_cell_is_refused(max_side, cell):
    with pytest.raises(InvalidRequest, match=f"max_side={max_side} is too little: .* cells are {cell} pixels"):
        input_size((300, 300), (cell, cell), max_side, whole=cell != 32)
