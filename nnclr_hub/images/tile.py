"""Tile: a part of an image file, as a source for decoding; see `nnclr_hub.images.tiles`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

Box = tuple[int, int, int, int]
Window = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Tile:
    """A part of an image file.

    path: of the file.
    box: left, top, right and bottom in pixels of the upright image.
    window: for each channel the values of the whole page that become 0 and 255; None: 8-bit values, or the file's.
    """

    path: str
    box: Box
    window: Window | None = None

    @property
    def name(self) -> str:
        """The path with the box, which is unique among the tiles of a folder."""
        return f"{self.path}#{','.join(map(str, self.box))}"

    def absolute(self) -> Tile:
        """Return the tile with an absolute path, for a process with another working directory."""
        return replace(self, path=os.path.abspath(self.path))
