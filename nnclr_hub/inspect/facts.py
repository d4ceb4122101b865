"""Facts about an image that need no encoder: size, sharpness, brightness, whether it is empty.

Sharpness is the variance of the Laplacian (Pech-Pacheco et al., ICPR 2000), on an image of at most 256 pixels per
side, so that the size of the file does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EMPTY = 2.0  # standard deviation of gray values below which an image shows nothing
DARK, BRIGHT = 20.0, 235.0  # mean gray value
# sharpness below it looks blurred at 256 pixels; see docs/results/inspect.md on blurred copies
BLURRED = 30.0
ODD_ASPECT = 4.0  # long side / short side
TINY_SIDE = 32  # pixels


@dataclass(frozen=True)
class ImageFacts:
    """Facts about one image.

    width, height: pixels of the upright original.
    brightness: mean gray value, 0 to 255.
    contrast: standard deviation of the gray values.
    sharpness: variance of the Laplacian; below 30 an image is blurred.
    """

    width: int
    height: int
    brightness: float
    contrast: float
    sharpness: float

    @property
    def problems(self) -> tuple[str, ...]:
        """Every problem of the image: empty, dark, bright, blurred, odd_aspect, tiny."""
        if self.contrast < EMPTY:
            found = ["empty"]
        else:
            found = [
                name
                for name, holds in (
                    ("dark", self.brightness < DARK),
                    ("bright", self.brightness > BRIGHT),
                    ("blurred", self.sharpness < BLURRED),
                )
                if holds
            ]
        sides = sorted((self.width, self.height))
        found += ["odd_aspect"] * (sides[1] > ODD_ASPECT * sides[0]) + ["tiny"] * (sides[0] < TINY_SIDE)
        return tuple(found)


def image_facts(gray: np.ndarray, width: int, height: int) -> ImageFacts:
    """Return the facts of an image.

    Args:
        gray: (H, W) uint8, the image scaled down to at most 256 pixels per side.
        width, height: size of the original in pixels.
    """
    pixels = gray.astype(np.float32)
    sharpness = 0.0
    if min(pixels.shape) >= 3:
        center = pixels[1:-1, 1:-1]
        around = pixels[:-2, 1:-1] + pixels[2:, 1:-1] + pixels[1:-1, :-2] + pixels[1:-1, 2:]
        sharpness = float((around - 4 * center).var())
    return ImageFacts(width, height, float(pixels.mean()), float(pixels.std()), sharpness)
