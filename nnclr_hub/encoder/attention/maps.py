"""AttentionMap: an attention map as numbers and as an image."""

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

COLORS = "inferno"  # perceptually uniform, from black: what gets no attention becomes dark
OPACITY = 0.6
MADE_BY = ("Software", "nnclr_hub attention")  # in the PNG files of maps and figures, for is_map_file
PRIOR_WIDTH = 0.3  # standard deviation of the center prior, in widths and heights of the image
NOISE = 1e-6  # relative to the values: smaller differences come from the order of float32 sums


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The response of each cell of an image to a query.

    values: (h, w) float32, not scaled: similarities of any size, or [CLS]'s attention weights in [0, 1].
    kind: "dot", "cosine", or "class_token".
    grid: where the cells are in the upright original.
    limits: the values that become 0 and 1; equal for all maps of one call.
    image: the upright original, RGB.
    center_prior: whether the overlay shows the map times a Gaussian in the center; see `AttentionSettings`.
    """

    values: np.ndarray
    kind: str
    grid: Grid
    limits: tuple[float, float]
    image: Image.Image
    center_prior: bool = False

    def __repr__(self) -> str:
        (height, width), (x, y) = self.values.shape, self.peak
        size, (low, high) = self.size, self.limits
        return (
            f"AttentionMap({self.kind}, {width} x {height} cells of an image of {size[0]} x {size[1]} pixels, "
            f"values from {low:.3g} to {high:.3g}, peak at ({x:.0f}, {y:.0f}))"
        )

    def _repr_png_(self) -> bytes:
        # Jupyter calls this
        return self.png()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the upright original."""
        return self.grid.original_size

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height of the network's input."""
        return self.grid.input_size

    @property
    def peak(self) -> tuple[float, float]:
        """x and y of the center of the first cell with the largest of the values, in pixels of the original.

        The center prior, which the overlay may show, has no part in it.
        """
        row, column = np.unravel_index(self.values.argmax(), self.values.shape)
        return float(self.grid.across.centers[column]), float(self.grid.down.centers[row])

    def scaled(self) -> np.ndarray:
        """Return (H, W) float32 in [0, 1], a value for every pixel of the upright original; 0 for a constant map."""
        low, high = self.limits
        if high - low <= NOISE * max(abs(low), abs(high)):
            return np.zeros(self.size[::-1], np.float32)
        return self.grid.upsampled((self.values - low) / (high - low)).clip(0, 1)

    def shown(self) -> np.ndarray:
        """Return what the overlay shows, (H, W) float32 in [0, 1]: `scaled`, with the center prior if there is one."""
        if not self.center_prior:
            return self.scaled()
        weighted = self.scaled() * center_prior(self.size)
        return weighted / max(float(weighted.max()), NOISE)

    def colored(self) -> Image.Image:
        """Return the map alone as a color image of the original's size."""
        return Image.fromarray(_colors()[(self.shown() * 255).round().astype(np.uint8)])

    def overlay(self, opacity: float = OPACITY) -> Image.Image:
        """Return the colored map over the upright original, RGB.

        The original loses its own colors in the same proportion, so that every visible color is the map's.

        Args:
            opacity: from 0, the image alone, to 1, the map alone.

        Raises:
            InvalidRequest: the opacity is not in [0, 1].
        """
        check_opacity(opacity)
        paler = Image.blend(self.image, self.image.convert("L").convert("RGB"), opacity)
        return Image.blend(paler, self.colored(), opacity)

    def png(self, opacity: float = OPACITY) -> bytes:
        """Return `overlay` as a PNG file."""
        buffer = io.BytesIO()
        info = PngInfo()
        info.add_text(*MADE_BY)
        # level 3 takes half the time of 6 for a tenth more bytes
        self.overlay(opacity).save(buffer, "PNG", pnginfo=info, compress_level=3)
        return buffer.getvalue()

    def describe(self) -> dict[str, Any]:
        """Return everything except the image, ready for JSON."""
        return {
            "kind": self.kind,
            "values": self.values.tolist(),
            "size": list(self.size),
            "input_size": list(self.input_size),
            "first": [self.grid.across.first, self.grid.down.first],
            "stride": [self.grid.across.stride, self.grid.down.stride],
            "limits": list(self.limits),
            "peak": list(self.peak),
            "center_prior": self.center_prior,
        }


def center_prior(size: tuple[int, int]) -> np.ndarray:
    """Return (H, W) float32 in (0, 1] for an image of that width and height: where objects are, whatever it shows."""
    x, y = (np.square((np.arange(side, dtype=np.float32) + 0.5) / side - 0.5) for side in size)
    return np.exp(-(x[None] + y[:, None]) / (2 * PRIOR_WIDTH**2))


def check_opacity(opacity: float) -> None:
    """Check that an opacity is in [0, 1].

    Raises:
        InvalidRequest: it is not.
    """
    if isinstance(opacity, bool) or not isinstance(opacity, Real) or not 0 <= opacity <= 1:
        raise InvalidRequest(f"opacity must be from 0 (the image alone) to 1 (the map alone), got {opacity!r}.")


def is_map_file(path: Path) -> bool:
    """Return whether a file is a map, or a figure of maps, that this package wrote."""
    name, value = MADE_BY
    try:
        with Image.open(path, formats=["PNG"]) as image:
            return image.info.get(name) == value
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # not a PNG file of ours
        return False


def on_one_scale(maps: Sequence[AttentionMap]) -> list[AttentionMap]:
    """Return the same maps with common limits, so that equal values get equal colors."""
    limits = min(one.limits[0] for one in maps), max(one.limits[1] for one in maps)
    return [replace(one, limits=limits) for one in maps]


@cache
def _colors() -> np.ndarray:
    from matplotlib import colormaps  # imported late because it takes a third of a second

    return colormaps[COLORS](np.arange(256), bytes=True)[:, :3].copy()
