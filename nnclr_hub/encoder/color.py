"""Any image to RGB of 8 bits: transparency over white, high bit depths scaled and not clipped.

What needs wider numbers on the way is done in strips of rows, so that an image of 40 megapixels in a file of
some kilobytes takes no more memory than itself and its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image

STRIP = 1_000_000  # pixels

# Microscopes and scanners write 12 bits, and programs 8, into files of 16: counted against 65535 they would keep
# 16 gray levels or none. So the brightest value says which: it is the least of these that is not below it.
WHITES = {"I": (255.0, 4095.0, 65535.0), "F": (1.0, 255.0)}


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in mode RGB; gray is repeated, CMYK and palettes are converted by Pillow."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image if type(image) is Image.Image else image.copy()
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _in_strips(image, _scaling(image))
    if image.has_transparency_data:
        return _in_strips(image, _over_white)
    return image.convert("RGB")


def _in_strips(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    whole = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        whole.paste(convert(strip), (0, top))
    return whole


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Each with its first row."""
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _over_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _scaling(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """To 8 bits, by the white that the numbers are counted against; numbers that know none, by their own range."""
    ends = [(values.min(), values.max()) for values in (_values(strip) for _, strip in _strips(image))]
    low, high = min(least for least, _ in ends), max(most for _, most in ends)
    white = next((white for white in WHITES["F" if image.mode == "F" else "I"] if high <= white), None)
    if low < 0 or white is None:
        black, white = low, high
    else:
        black = 0.0
    span = (white - black) or 1.0  # an image of one value

    def scale(strip: Image.Image) -> Image.Image:
        scaled = (_values(strip) - black) / span * 255
        return Image.fromarray(np.clip(np.rint(scaled), 0, 255).astype(np.uint8)).convert("RGB")

    return scale


def _values(strip: Image.Image) -> np.ndarray:
    """(H, W) float64, where NaN and infinity are 0: they say that nothing was measured."""
    return np.nan_to_num(np.asarray(strip, dtype=np.float64), posinf=0.0, neginf=0.0)
