"""A pen on a square with coordinates from 0 to 1, and the random choices of one image."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageDraw

Color = tuple[int, int, int]
Point = tuple[float, float]
T = TypeVar("T")


class Brush:
    """Draws on a square image. All randomness of an image comes from its generator.

    Args:
        rng: of this image.
        size: pixels per side.
        background: color of the square; None: transparent.
    """

    def __init__(self, rng: np.random.Generator, size: int, background: Color | None = None) -> None:
        self.rng = rng
        self.size = size
        self.image = Image.new("RGBA", (size, size), (0, 0, 0, 0) if background is None else (*background, 255))
        self._draw = ImageDraw.Draw(self.image)

    # ---- choices

    def between(self, low: float, high: float) -> float:
        """Return a number in [low, high)."""
        return float(self.rng.uniform(low, high))

    def integer(self, low: int, high: int) -> int:
        """Return an integer from low to high - 1."""
        return int(self.rng.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[self.integer(0, len(options))]

    def chance(self, probability: float) -> bool:
        """Return true with this probability."""
        return bool(self.rng.random() < probability)

    def color(self, hue: float | None = None, saturation: float | None = None, value: float | None = None) -> Color:
        """Return a color near a hue in [0, 1]; None: any."""
        hue = self.between(0, 1) if hue is None else hue + self.between(-0.03, 0.03)
        saturation = self.between(0.5, 0.95) if saturation is None else saturation
        value = self.between(0.55, 0.95) if value is None else value
        red, green, blue = colorsys.hsv_to_rgb(hue % 1, saturation, value)
        return round(255 * red), round(255 * green), round(255 * blue)

    def near(self, color: Color, by: int = 25) -> Color:
        """Return a color that differs by at most `by` in each channel."""
        red, green, blue = (int(np.clip(one + self.integer(-by, by + 1), 0, 255)) for one in color)
        return red, green, blue

    def darker(self, color: Color, factor: float = 0.65) -> Color:
        """Return the color with less light."""
        red, green, blue = (round(factor * one) for one in color)
        return red, green, blue

    # ---- shapes

    def _scaled(self, *values: float) -> list[float]:
        return [value * self.size for value in values]

    def polygon(self, points: Sequence[Point], color: Color, outline: Color | None = None) -> None:
        """Fill a polygon."""
        scaled = [(x * self.size, y * self.size) for x, y in points]
        self._draw.polygon(scaled, fill=color, outline=outline, width=max(1, self.size // 60))

    def box(self, x0: float, y0: float, x1: float, y1: float, color: Color, radius: float = 0.0) -> None:
        """Fill a rectangle, with round corners if there is a radius."""
        self._draw.rounded_rectangle(self._scaled(x0, y0, x1, y1), radius * self.size, fill=color)

    def ellipse(self, x0: float, y0: float, x1: float, y1: float, color: Color) -> None:
        """Fill an ellipse."""
        self._draw.ellipse(self._scaled(x0, y0, x1, y1), fill=color)

    def circle(self, x: float, y: float, radius: float, color: Color) -> None:
        """Fill a circle."""
        self.ellipse(x - radius, y - radius, x + radius, y + radius, color)

    def pie(self, x0: float, y0: float, x1: float, y1: float, start: float, end: float, color: Color) -> None:
        """Fill a slice of an ellipse, in degrees clockwise from the right."""
        self._draw.pieslice(self._scaled(x0, y0, x1, y1), start, end, fill=color)

    def arc(self, *where: Any) -> None:
        """Draw an arc: x0, y0, x1, y1, start and end in degrees, color, width."""
        x0, y0, x1, y1, start, end, color, width = where
        self._draw.arc(self._scaled(x0, y0, x1, y1), start, end, fill=color, width=self._width(width))

    def ring(self, x0: float, y0: float, x1: float, y1: float, color: Color, width: float) -> None:
        """Draw the outline of an ellipse."""
        self._draw.ellipse(self._scaled(x0, y0, x1, y1), outline=color, width=self._width(width))

    def line(self, points: Sequence[Point], color: Color, width: float) -> None:
        """Draw connected lines."""
        scaled = [(x * self.size, y * self.size) for x, y in points]
        self._draw.line(scaled, fill=color, width=self._width(width), joint="curve")

    def _width(self, width: float) -> int:
        return max(1, round(width * self.size))
