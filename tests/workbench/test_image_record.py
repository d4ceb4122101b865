"""Thumbnails: small enough for the store, whatever the image."""

import io

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.store.checks import MAX_THUMBNAIL
from nnclr_hub.workbench.image_record import make_thumbnail

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("side", [256, 300, 512])
@pytest.mark.parametrize(
    "pixels",
    [lambda side: RNG.integers(0, 256, (side, side, 3)), lambda side: 255 * RNG.integers(0, 2, (side, side, 3))],
    ids=["noise", "black and white noise"],
)
def test_noise_fits_a_collection(pixels, side):
    """Nothing compresses worse: a folder with one image of it used to stop at it."""
    jpeg = make_thumbnail(Image.fromarray(pixels(side).astype(np.uint8)))
    assert len(jpeg) <= MAX_THUMBNAIL
    assert Image.open(io.BytesIO(jpeg)).size == (256, 256)


def test_a_thumbnail_of_a_photo_has_good_quality():
    """Within 30 dB of the image itself."""
    ramp = np.add.outer(np.arange(200), np.arange(240))[..., None].repeat(3, -1) * 255 // 438
    kept = np.asarray(Image.open(io.BytesIO(make_thumbnail(Image.fromarray(ramp.astype(np.uint8))))))
    assert kept.shape == (200, 240, 3)
    assert np.mean((kept - ramp.astype(float)) ** 2) < 255**2 / 10**3
