"""The server reads the same pixels from an uploaded image as the library reads locally."""

import io

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.images.decode import decode_image
from nnclr_hub.workbench.payload import image_file


def opened(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return Image.open(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_an_open_image_is_sent_upright_in_every_mode(mode, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.effect_mandelbrot((60, 40), (-2, -1, 1, 1), 20).convert("RGB").convert(mode)
    image = opened(image, "JPEG", exif=exif)
    expected = np.asarray(decode_image(image))
    _, sent = image_file(image)
    np.testing.assert_array_equal(np.asarray(decode_image(sent)), expected)
