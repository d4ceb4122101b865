"""A map as numbers, as an image, as text and as JSON."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

from nnclr_hub import AttentionMap
from nnclr_hub.encoder.attention.geometry import Axis, Grid
from nnclr_hub.errors import InvalidRequest

GRID = Grid(Axis(2, 0.5, 32, 40, 30), Axis(3, 0.5, 32, 80, 60))
IMAGE = Image.effect_mandelbrot((60, 30), (-2, -1, 1, 1), 20).convert("RGB")


def map_of(values):
    values = np.array(values, np.float32)
    return AttentionMap(values, "dot", GRID, (float(values.min()), float(values.max())), IMAGE)


def test_scaled_is_the_upsampled_map_between_its_limits():
    one = map_of([[-3, 0, 1], [5, 2, 2]])
    np.testing.assert_allclose(one.scaled(), (GRID.upsampled(one.values) + 3) / 8, atol=1e-6)
    assert (one.scaled().shape, one.scaled().dtype) == ((30, 60), np.float32)
    assert one.scaled().min() >= 0
    assert one.scaled().max() <= 1
    assert one.peak == pytest.approx((0.375, 24.375))
    for constant in (np.full((2, 3), 7.5), np.zeros((2, 3)), 1 + np.arange(6).reshape(2, 3) * 1e-7):
        assert not map_of(constant).scaled().any()


@pytest.mark.parametrize("opacity", [0, 0.3, 1])
def test_the_overlay_blends_the_colors_with_a_paler_image(opacity):
    one = map_of([[0, 1, 2], [3, 4, 5]])
    colors = colormaps["inferno"]((one.scaled() * 255).round().astype(int), bytes=True)[..., :3].astype(float)
    image, gray = np.asarray(IMAGE, float), np.asarray(IMAGE.convert("L"), float)[..., None]
    expected = (1 - opacity) * ((1 - opacity) * image + opacity * gray) + opacity * colors
    np.testing.assert_allclose(np.asarray(one.overlay(opacity), float), expected, atol=2)


def test_the_overlay_can_show_the_map_times_a_gaussian_in_the_center():
    plain = map_of([[-3, 0, 1], [5, 2, 2]])
    one = replace(plain, center_prior=True)
    np.testing.assert_array_equal(one.scaled(), plain.scaled())  # the numbers stay
    expected = np.empty((30, 60))
    for y in range(30):
        for x in range(60):
            away = ((x + 0.5) / 60 - 0.5) ** 2 + ((y + 0.5) / 30 - 0.5) ** 2
            expected[y, x] = plain.scaled()[y, x] * math.exp(-away / (2 * 0.3**2))
    np.testing.assert_allclose(one.shown(), expected / expected.max(), atol=1e-5)
    bright = np.asarray(one.overlay(1).convert("L"), float)  # all of it is the map
    assert bright.ravel()[one.shown().argmax()] == bright.max()
    assert not replace(map_of(np.ones((2, 3))), center_prior=True).shown().any()


@pytest.mark.parametrize("opacity", [-0.1, 1.1, float("nan"), True, "0.5"])
def test_another_opacity_is_refused(opacity):
    with pytest.raises(InvalidRequest, match="opacity"):
        map_of([[0, 1, 2], [3, 4, 5]]).overlay(opacity)


def test_it_describes_itself_as_text_json_and_png():
    one = map_of([[0, 1, 2], [3, 4, 5]])
    assert repr(one) == (
        "AttentionMap(dot, 3 x 2 cells of an image of 60 x 30 pixels, values from 0 to 5, peak at (48, 24))"
    )
    assert one._repr_png_() == one.png()
    read = json.loads(json.dumps(one.describe()))
    assert read["values"] == [[0, 1, 2], [3, 4, 5]]
    assert (read["size"], read["input_size"], read["limits"]) == ([60, 30], [80, 40], [0, 5])
    with Image.open(io.BytesIO(one.png(0.4))) as image:
        assert (image.format, image.size) == ("PNG", (60, 30))
        np.testing.assert_array_equal(np.asarray(image), np.asarray(one.overlay(0.4)))
