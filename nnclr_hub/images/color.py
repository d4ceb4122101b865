"""Convert any image to 8 bits: transparency blended with white or black, high bit depths scaled and not clipped.

Conversions that need wider numbers work on strips of rows. So an image of 40 megapixels, which may come from a file of
a few kilobytes, needs no more memory than itself and its result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image

STRIP = 1_000_000  # pixels
LOST = "nnclr_hub.lost"  # info of a converted image: a hash of what the conversion loses, such as transparency
LEAST_CONTRAST = 64  # of 255: the root mean square difference from white, of the visible pixels, that needs no black

# Microscopes and scanners write 12 bits into 16-bit files, and some programs write 8. Scaled by 65535, these images
# would keep at most 16 gray levels. So white is the smallest of these values that is not below the brightest pixel.
WHITES = {"I": (255.0, 4095.0, 65535.0), "F": (1.0, 255.0)}


def to_rgb(image: Image.Image) -> Image.Image:
    """Return the image in mode RGB; gray is repeated, and Pillow converts CMYK and palettes."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image if type(image) is Image.Image else image.copy()
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _with_lost(_in_strips(image, _scaling(image)), image)
    if image.mode == "La":  # gray that is multiplied with alpha already
        image = image.convert("LA")
    if image.has_transparency_data:
        return _blended(image)
    return _with_lost(image.convert("RGB"), image, convert=False)


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


def _with_lost(converted: Image.Image, image: Image.Image, *, convert: bool = True) -> Image.Image:
    """Note what a conversion lost: the values of an image, or what an earlier conversion of it lost."""
    digest = hashlib.sha256(image.info.get(LOST, b""))
    for _, strip in _strips(image) if convert else ():
        digest.update(strip.tobytes())
    if convert or LOST in image.info:
        converted.info[LOST] = digest.digest()
    return converted


def _blended(image: Image.Image) -> Image.Image:
    """Blend with white, or with black if the visible pixels would hardly differ from white, as a white drawing."""
    alpha = distance = 0.0
    for _, strip in _strips(image):
        rgba = strip.convert("RGBA")
        weight = np.asarray(rgba.getchannel("A"), np.float64) / 255
        alpha += weight.sum()
        distance += (weight * (255.0 - np.asarray(rgba.convert("RGB").convert("L"), np.float64)) ** 2).sum()
    faint = alpha > 0 and (distance / alpha) ** 0.5 < LEAST_CONTRAST
    opaque = alpha == image.width * image.height
    ground = "black" if faint and not opaque else "white"
    digest = hashlib.sha256(image.info.get(LOST, b""))

    def blend(strip: Image.Image) -> Image.Image:
        rgba = strip.convert("RGBA")
        digest.update(rgba.getchannel("A").tobytes())
        return Image.alpha_composite(Image.new("RGBA", rgba.size, ground), rgba).convert("RGB")

    whole = _in_strips(image, blend)
    if not opaque or LOST in image.info:
        whole.info[LOST] = digest.digest()
    return whole


def _scaling(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """Return the conversion to 8 bits."""
    ends = [(values.min(), values.max()) for values in (_finite(np.asarray(strip)) for _, strip in _strips(image))]
    limits = black_and_white(min(low for low, _ in ends), max(high for _, high in ends), floats=image.mode == "F")
    return lambda strip: Image.fromarray(scaled(_finite(np.asarray(strip)), *limits)).convert("RGB")


def black_and_white(low: float, high: float, *, floats: bool) -> tuple[float, float]:
    """Return the values that become 0 and 255: 0 and one of WHITES, or the range of the values if none applies."""
    white = next((white for white in WHITES["F" if floats else "I"] if high <= white), None)
    return (low, high) if low < 0 or white is None else (0.0, white)


def to_8_bits(values: np.ndarray, scale: str, window: tuple[Any, Any] | None = None) -> np.ndarray:
    """Convert the values of an image to 8 bits.

    Args:
        values: (H, W, C) of any real type; uint8 stays as it is, unless there is a window.
        scale: "depth" for `black_and_white` of all channels together, so that their proportions stay; "range" for the
            range of each channel.
        window: the values that become 0 and 255, if the file names them, also for each channel; others are clipped.

    Returns:
        (H, W, C) uint8.
    """
    if values.dtype == np.uint8 and window is None and scale == "depth":
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * 255
    result = np.empty(values.shape, np.uint8)
    rows = max(1, STRIP // max(1, values.shape[1] * values.shape[2]))
    parts = [slice(top, top + rows) for top in range(0, len(values), rows)]
    if window is None:
        finite = [_finite(values[part]) for part in parts] if values.dtype.kind == "f" else [values[p] for p in parts]
        low = np.min([one.min((0, 1)) for one in finite], axis=0).astype(np.float64)  # (C,)
        high = np.max([one.max((0, 1)) for one in finite], axis=0).astype(np.float64)
        if scale == "depth":
            low, high = black_and_white(low.min(), high.max(), floats=values.dtype.kind == "f")  # type: ignore[assignment]
    else:
        low, high = window  # type: ignore[assignment]
    for part in parts:
        result[part] = scaled(_finite(values[part]), low, high)
    return result


def scaled(values: np.ndarray, black: np.ndarray | float, white: np.ndarray | float) -> np.ndarray:
    """Return values (float) as uint8, so that black becomes 0 and white 255."""
    span = np.where(np.equal(white, black), 1.0, np.subtract(white, black))  # no division by zero for a constant image
    return np.clip(np.rint((values - black) / span * 255), 0, 255).astype(np.uint8)


def _finite(values: np.ndarray) -> np.ndarray:
    """Return float64 with NaN and infinity, which mean "not measured", replaced by 0."""
    return np.nan_to_num(np.asarray(values, dtype=np.float64), posinf=0.0, neginf=0.0)
