"""Boxes and points from the browser, and the image to draw on."""

import base64
import io
import math

import numpy as np
import pytest
from PIL import Image

from app.widgets.drawing import checked_box, checked_point, image_value
from nnclr_hub.errors import InvalidRequest


def test_boxes_and_points_are_numbers():
    assert checked_box([1, 2.5, 3, 4]) == (1, 2.5, 3, 4)
    assert checked_box(None) is None
    assert checked_point([0, 7]) == (0, 7)


@pytest.mark.parametrize("value", [[], [1, 2, 3], "1234", [1, 2, 3, "4"], [1, 2, 3, math.nan], [1, 2, 3, True], {}, 4])
def test_an_invalid_box_is_rejected(value):
    with pytest.raises(InvalidRequest):
        checked_box(value)


def test_an_image_is_shown_upright_in_its_own_coordinates():
    image = Image.fromarray(np.full((1200, 2400, 3), 90, np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif)
    value = image_value(file.getvalue(), box=(1, 2, 3, 4))
    assert (value["width"], value["height"], value["box"]) == (1200, 2400, (1, 2, 3, 4))
    with Image.open(io.BytesIO(base64.b64decode(value["src"].partition(",")[2]))) as shown:
        assert shown.size == (512, 1024)
