"""Figures: every cell in its place, the query in red, and a note for an encoder that is not available."""

import io

import numpy as np
import pytest
from PIL import Image

from nnclr_hub import Box, Point, load_encoder
from nnclr_hub.encoder.attention.figure import QUERY_COLOR, Cell, draw, query_figure
from nnclr_hub.encoder.comparison import compare, comparison_figure
from nnclr_hub.errors import InvalidRequest, UnknownModel

RED = np.array([int(QUERY_COLOR[i : i + 2], 16) for i in (1, 3, 5)])


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


@pytest.mark.parametrize(("query", "inside"), [(Box(50, 25, 150, 75), 0.005), (Point(100, 50), 0.0005), (None, 0)])
def test_the_query_is_drawn_in_red(model, photos, query, inside):
    image = Image.new("RGB", (200, 100), "navy")
    maps = load_encoder(model).attention(image.resize((300, 240)), target=[photos / "cat" / "00.jpg"])
    drawn = pixels(query_figure(image, query, maps, ["one", "two"]))
    left = drawn[:, : drawn.shape[1] // 2]
    share = (np.abs(left - RED).sum(2) < 30).mean()
    assert share == 0 if query is None else share > inside


def test_rows_and_columns_have_their_places():
    colors = [["red", "lime"], ["blue", "yellow"]]
    drawn = pixels(draw([[Cell(Image.new("RGB", (50, 50), color)) for color in row] for row in colors]))
    height, width = drawn.shape[:2]
    for i, row in enumerate(colors):
        for j, color in enumerate(row):
            middle = drawn[(2 * i + 1) * height // 4, (2 * j + 1) * width // 4]
            assert tuple(middle) == Image.new("RGB", (1, 1), color).getpixel((0, 0))


def test_an_unavailable_encoder_leaves_a_cell_with_a_note(model, image_files):
    columns = compare(image_files[:2], {"ours": str(model), "gone": "/nowhere/encoder"})
    assert [len(column.maps) for column in columns] == [2, 0]
    assert "/nowhere/encoder" in columns[1].missing
    drawn = pixels(comparison_figure(columns))
    empty = drawn[:, -drawn.shape[1] // 3 :]
    assert (np.ptp(empty, axis=2) < 8).mean() > 0.99  # gray and white, with dark letters
    assert (empty.sum(2) < 500).any()


def test_a_comparison_of_nothing_is_refused(model, image_files):
    with pytest.raises(UnknownModel, match="/nowhere/encoder"):
        compare(image_files[:1], ["/nowhere/encoder"])
    with pytest.raises(InvalidRequest):
        compare([], [str(model)])
