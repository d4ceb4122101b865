"""Maps of an image that nobody has looked at: what an encoder's must be above.

"center" is the center pixel alone. "gaussian" falls off from the center in an ellipse of the image's proportions: its
width does not matter, for only the order of the pixels counts. "area" is the same everywhere, so that its pointing
is the share that boxes cover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def center(width: int, height: int) -> np.ndarray:
    """(H, W): 1 at the center pixel, else 0."""
    values = np.zeros((height, width), np.float32)
    values[height // 2, width // 2] = 1
    return values


def gaussian(width: int, height: int) -> np.ndarray:
    """(H, W): exp(-r^2 / 2) about the center pixel, r in quarters of the sides."""
    x = (np.arange(width) - width // 2) / (width / 4)
    y = (np.arange(height) - height // 2) / (height / 4)
    return np.exp(-(x[None] ** 2 + y[:, None] ** 2) / 2).astype(np.float32)


def area(width: int, height: int) -> np.ndarray:
    """(H, W) of zeros."""
    return np.zeros((height, width), np.float32)


@dataclass(frozen=True)
class Place:
    """One of them, as a source.

    draw: (width, height) -> (H, W) float32.
    """

    name: str
    draw: Callable[[int, int], np.ndarray]

    @property
    def fingerprint(self) -> str:
        """What an encoder has one of."""
        return f"place-{self.name}"


PLACES = {function.__name__: Place(function.__name__, function) for function in (gaussian, center, area)}
