"""RGB in strips: the same pixels as all at once, in little memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.images import color
from nnclr_hub.images.color import to_rgb

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
SHAPE = (77, 31)


def with_transparency(image: Image.Image, value: int | tuple[int, ...]) -> Image.Image:
    image.info["transparency"] = value
    return image


def noise(high: int, *channels: int) -> Image.Image:
    return Image.fromarray(RNG.integers(0, high, (*SHAPE, *channels)).astype(np.uint8))


IMAGES = {
    "I;16": Image.fromarray(RNG.integers(0, 2**16, SHAPE).astype(np.uint16)),
    "I;16B": Image.frombytes("I;16B", SHAPE[::-1], RNG.bytes(2 * SHAPE[0] * SHAPE[1])),
    "I": Image.fromarray(RNG.integers(-5, 2**20, SHAPE).astype(np.int32)),
    "F in [0, 1]": Image.fromarray(RNG.random(SHAPE).astype(np.float32)),
    "F in [0, 9]": Image.fromarray((9 * RNG.random(SHAPE)).astype(np.float32)),
    "F below 0": Image.fromarray((1000 * RNG.standard_normal(SHAPE)).astype(np.float32)),
    "RGBA": noise(256, 4),
    "LA": Image.fromarray(RNG.integers(0, 256, (*SHAPE, 2)).astype(np.uint8)),
    "P": with_transparency(noise(256, 3).quantize(32), 3),
    "RGB": with_transparency(noise(2, 3), (0, 0, 0)),
    "L": with_transparency(noise(9), 3),
}


@pytest.mark.parametrize("name", IMAGES)
def test_strips_leave_no_trace(name, monkeypatch):
    """Of one row, of some rows, and all rows at once."""
    whole = np.asarray(to_rgb(IMAGES[name]))
    assert whole.shape == (*SHAPE, 3)
    assert len(np.unique(whole)) > 1
    for size in (1, 700, SHAPE[0] * SHAPE[1]):
        monkeypatch.setattr(color, "STRIP", size)
        np.testing.assert_array_equal(np.asarray(to_rgb(IMAGES[name])), whole)


def test_transparency_goes_over_white_and_16_bits_are_scaled():
    """By the formulas themselves."""
    rgba = np.asarray(IMAGES["RGBA"]).astype(float)
    alpha = rgba[..., 3:] / 255
    np.testing.assert_allclose(to_rgb(IMAGES["RGBA"]), rgba[..., :3] * alpha + 255 * (1 - alpha), atol=1)
    twice = IMAGES["LA"].convert("La")  # gray multiplied with alpha
    np.testing.assert_allclose(np.asarray(to_rgb(twice)).astype(int), np.asarray(to_rgb(IMAGES["LA"])), atol=1)
    deep = np.asarray(IMAGES["I;16"]).astype(float)
    np.testing.assert_allclose(np.asarray(to_rgb(IMAGES["I;16"]))[..., 0], deep / 257, atol=0.5)


GRAY = np.arange(256).reshape(16, 16)


@pytest.mark.parametrize(
    "stored",
    [
        GRAY.astype(np.uint16),
        (GRAY * 16 + 15).clip(15).astype(np.uint16),
        (GRAY * 257).astype(np.uint16),
        GRAY.astype(np.int32),
        (GRAY * 257 * 3).astype(np.int32),
        (GRAY * 10 - 1024).astype(np.int32),
        (GRAY / 255).astype(np.float32),
        GRAY.astype(np.float32),
        (GRAY * 40 - 1024).astype(np.float32),
        (GRAY * 1e-6 - 1e-6).astype(np.float32),
    ],
    ids=[
        "8 in 16",
        "12 in 16",
        "16",
        "8 in 32",
        "more than 16",
        "Hounsfield",
        "to 1",
        "to 255",
        "below 0",
        "small and below 0",
    ],
)
def test_gray_keeps_its_256_levels_whatever_numbers_hold_it(stored):
    """As microscopes, CT and programs write them: no image is black for its file's unused bits."""
    np.testing.assert_allclose(np.asarray(to_rgb(Image.fromarray(stored)))[..., 0], GRAY, atol=1)


@pytest.mark.parametrize("value", [-1.0, 0.0, -1e30, np.nan, np.inf, -np.inf])
def test_a_constant_image_of_floats_is_one_color(value):
    """No number to divide by, or none at all."""
    colors = np.asarray(to_rgb(Image.fromarray(np.full((4, 4), value, np.float32))))
    assert len(np.unique(colors)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["I;16", "F", "RGBA", "LA"])
def test_decoding_needs_little_memory_beyond_the_image_and_the_result(mode):
    """40 megapixels are 160 MB as RGB, and 40 to 160 MB as they come."""
    code = f"""
import resource
from PIL import Image
from nnclr_hub.images.color import to_rgb
image = Image.new({mode!r}, (8000, 5000))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
to_rgb(image)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) < 260_000  # KiB: the result, and a strip
