"""Convert any image to 8-bit RGB: transparency blended with white, high bit depths scaled and not clipped.

Conversions that need wider numbers work on strips of rows. So an image of 40 megapixels, which may come from a file of
a few kilobytes, needs no more memory than itself and its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image

STRIP = 1_000_000  # pixels

# Microscopes and scanners write 12 bits into 16-bit files, and some programs write 8. Scaled by 65535, these images
# would keep at most 16 gray levels. So white is the smallest of these values that is not below the brightest pixel.
WHITES = {"I": (255.0, 4095.0, 65535.0), "F": (1.0, 255.0)}


def to_rgb(image: Image.Image) -> Image.Image:
    """Return the image in mode RGB; gray is repeated, and Pillow converts CMYK and palettes."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image if type(image) is Image.Image else image.copy()
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _in_strips(image, _scaling(image))
    if image.has_transparency_data:
        return _in_strips(image, _blend_with_white)
    return image.convert("RGB")


def _in_strips(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    whole = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        whole.paste(convert(strip), (0, top))
    return whole


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield strips of rows, each with the number of its first row."""
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _blend_with_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _scaling(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """Return the conversion to 8 bits, scaled by one of WHITES, or by the range of the values if none applies."""
    ends = [(values.min(), values.max()) for values in (_values(strip) for _, strip in _strips(image))]
    low, high = min(least for least, _ in ends), max(most for _, most in ends)
    white = next((white for white in WHITES["F" if image.mode == "F" else "I"] if high <= white), None)
    if low < 0 or white is None:
        black, white = low, high
    else:
        black = 0.0
    span = (white - black) or 1.0  # avoid a division by zero for a constant image

    def scale(strip: Image.Image) -> Image.Image:
        scaled = (_values(strip) - black) / span * 255
        return Image.fromarray(np.clip(np.rint(scaled), 0, 255).astype(np.uint8)).convert("RGB")

    return scale


def _values(strip: Image.Image) -> np.ndarray:
    """Return (H, W) float64 with NaN and infinity, which mean "not measured", replaced by 0."""
    return np.nan_to_num(np.asarray(strip, dtype=np.float64), posinf=0.0, neginf=0.0)
