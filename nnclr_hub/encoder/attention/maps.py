"""AttentionMap: what came out, as numbers and as an image."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from nnclr_hub.encoder.attention.geometry import Grid
from nnclr_hub.errors import InvalidRequest

COLORS = "inferno"  # of even steps to the eye, from black: what is not attended to goes dark
OPACITY = 0.6
MADE_BY = ("Software", "nnclr_hub attention")  # in the PNG files of maps and figures, so that they are known again
NOISE = 1e-6  # relative to the values: below it a map's differences are those of float32 sums


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """How much each cell of an image answers to a query.

    values: (h, w) float32, raw: similarities, any number; or shares of [CLS]'s attention, in [0, 1].
    kind: "dot", "cosine", or "class_token".
    grid: where the cells lie in the upright original.
    limits: the values that become 0 and 1; of several maps of one call the same.
    image: the upright original, RGB.
    """

    values: np.ndarray
    kind: str
    grid: Grid
    limits: tuple[float, float]
    picture: Image.Image

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the upright original."""
        return self.grid.original_size

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height at which the image went through the network."""
        return self.grid.input_size

    @property
    def peak(self) -> tuple[float, float]:
        """x and y of the center of the largest cell, in pixels of the upright original; of several, the first."""
        row, column = np.unravel_index(self.values.argmax(), self.values.shape)
        return float(self.grid.across.centers[column]), float(self.grid.down.centers[row])

    def scaled(self) -> np.ndarray:
        """(H, W) float32 in [0, 1], of every pixel of the upright original; a constant map is 0."""
        low, high = self.limits
        if high - low <= NOISE * max(abs(low), abs(high)):
            return np.zeros(self.size[::-1], np.float32)
        return self.grid.upsampled((self.values - low) / (high - low)).clip(0, 1)

    def colored(self) -> Image.Image:
        """The map alone in colors, as large as the upright original."""
        return Image.fromarray(_colors()[(self.scaled() * 255).round().astype(np.uint8)])

    def overlay(self, opacity: float = OPACITY) -> Image.Image:
        """The map in colors over the upright original, RGB.

        The image loses its own colors by as much, so that what is colored is what is attended to.

        Args:
            opacity: from 0, the image alone, to 1, the map alone.

        Raises:
            InvalidRequest: another opacity.
        """
        check_opacity(opacity)
        paler = Image.blend(self.picture, self.picture.convert("L").convert("RGB"), opacity)
        return Image.blend(paler, self.colored(), opacity)

    def png(self, opacity: float = OPACITY) -> bytes:
        """`overlay` as a PNG file."""
        buffer = io.BytesIO()
        mark = PngInfo()
        mark.add_text(*MADE_BY)
        # level 3 takes half the time of 6 for a tenth more bytes
        self.overlay(opacity).save(buffer, "PNG", pnginfo=mark, compress_level=3)
        return buffer.getvalue()

    def describe(self) -> dict[str, Any]:
        """Everything but the image, ready for JSON."""
        return {
            "kind": self.kind,
            "values": self.values.tolist(),
            "size": list(self.size),
            "input_size": list(self.input_size),
            "first": [self.grid.across.first, self.grid.down.first],
            "stride": [self.grid.across.stride, self.grid.down.stride],
            "limits": list(self.limits),
            "peak": list(self.peak),
        }


def check_opacity(opacity: float) -> None:
    """Refuses what is not in [0, 1].

    Raises:
        InvalidRequest: it is not.
    """
    if isinstance(opacity, bool) or not isinstance(opacity, Real) or not 0 <= opacity <= 1:
        raise InvalidRequest(f"opacity={opacity!r} is not in [0, 1]: 0 is the image alone, 1 the map alone.")


def is_map_file(path: Path) -> bool:
    """Whether a file is a map, or a figure of maps, that was written here."""
    name, value = MADE_BY
    try:
        with Image.open(path, formats=["PNG"]) as image:
            return image.info.get(name) == value
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # no image, or none of ours
        return False


def on_one_scale(maps: Sequence[AttentionMap]) -> list[AttentionMap]:
    """The same maps, of which equal values get equal colors."""
    limits = min(one.limits[0] for one in maps), max(one.limits[1] for one in maps)
    return [replace(one, limits=limits) for one in maps]


@cache
def _colors() -> np.ndarray:
    """(256, 3) uint8."""
    from matplotlib import colormaps  # not before it is needed: it costs a third of a second

    return colormaps[COLORS](np.arange(256), bytes=True)[:, :3].copy()
