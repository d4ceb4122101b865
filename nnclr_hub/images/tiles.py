"""Tiles: parts of large images, such as slides of microscopes, each embedded like an image.

    for tile in tiles_of(Path("slide.svs"), Tiling(512, overlap=64)):
        encoder.embed([tile])

A tile is read from the blocks of its file that it overlaps, so memory does not grow with the image. Images whose format
allows no access to parts are decoded as a whole, within the limits of any image.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.channels import AnyImage, for_people
from nnclr_hub.images.color import black_and_white
from nnclr_hub.images.decode import decode_any, image_size, open_stack
from nnclr_hub.images.pool import DecodingLimits, run_isolated
from nnclr_hub.images.readers.stack import ImageStack, selected_channels, selected_pages
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import Place, Source, Window, file_key

LEAST, MOST = 16, 4096  # pixels of a side
MAX_TILES = 1_000_000  # in a file
BAND = 16_000_000  # values that are read at once to find black and white
WINDOW_S = 3600.0  # CPU seconds to find black and white of a slide, all of which is read
EMPTY = 6.0  # standard deviation of the gray values of an empty tile, of 255


@dataclass(frozen=True)
class Tiling:
    """How large images are cut.

    side: pixels of a tile's side.
    overlap: pixels that neighboring tiles share.
    skip_empty: leave out tiles of background, whose gray values hardly differ.
    """

    side: int
    overlap: int = 0
    skip_empty: bool = False

    def __post_init__(self) -> None:
        if not LEAST <= self.side <= MOST or not 0 <= self.overlap < self.side:
            raise InvalidRequest(
                f"A tile must have {LEAST} to {MOST} pixels per side and overlap by less than that, got {self.side} "
                f"and {self.overlap}."
            )


def tiles_of(image: Path | Source, tiling: Tiling, reading: ImageReading = PLAIN) -> list[Source]:
    """Return the tiles of an image of this machine, row by row. Those at its right and lower border are moved inside.

    Raises:
        ImageError: the image cannot be read.
        InvalidRequest: it has more than a million tiles.
    """
    if isinstance(image, Path):
        image = Source(Place(str(image.parent), str(image.parent.absolute())), image.name)
    path = image.file
    assert path is not None
    kept = cache_folder() / "windows" / f"{file_key(Path(path), str(reading)).hex()}.json"
    try:  # what an earlier call found in the file in this state
        known = _window(json.loads(kept.read_text()))
    except (OSError, ValueError, TypeError, LookupError):
        known = None
    limits = DecodingLimits(WINDOW_S)
    width, height, window = run_isolated(_layout, path, tiling, reading, known, limits=limits)
    if window is not None and window != known:
        with suppress(OSError):  # it is computed again the next time
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(window))
    columns, rows, side = _starts(width, tiling), _starts(height, tiling), tiling.side
    boxes = [(x, y, min(x + side, width), min(y + side, height)) for y in rows for x in columns]
    return [image.tile(box, window) for box in boxes]


def _layout(path: str, tiling: Tiling, reading: ImageReading, known: Window | None) -> tuple[int, int, Window | None]:
    """Return the size of an image, and what `window_of` returns, if it is not known."""
    with open_stack(path) as stack:
        width, height = stack.size if stack is not None else image_size(path, reading)
        tiles = len(_starts(width, tiling)) * len(_starts(height, tiling))
        if tiles > MAX_TILES:
            raise InvalidRequest(f"{path} has {tiles:,} tiles; use a larger --tile.")
        if known is None and stack is not None and stack.regions:
            known = window_of(stack, reading)
    return width, height, known


def _window(lists: Any) -> Window | None:
    return None if lists is None else (tuple(map(float, lists[0])), tuple(map(float, lists[1])))


def tiles_with_content(image: Source, tiling: Tiling, reading: ImageReading = PLAIN) -> list[Source]:
    """Return the tiles of an image, see `tiles_of`; with `skip_empty` without empty ones, for which each is decoded."""
    found = tiles_of(image, tiling, reading)
    return [one for one in found if not is_empty(decode_any(one, reading))] if tiling.skip_empty else found


def is_empty(image: AnyImage) -> bool:
    """Return whether an image is background: the standard deviation of its gray values is below 6 of 255."""
    return float(np.asarray(for_people(image).convert("L")).std()) < EMPTY


def window_of(stack: ImageStack, reading: ImageReading) -> Window | None:
    """Return what becomes black and white in the whole page, read in bands, so that all tiles have one scale.

    8-bit values and those with a window need no scale.
    """
    if stack.window is not None or (stack.dtype in (np.uint8, np.bool_) and reading.scale == "depth"):
        return None
    channels = selected_channels(stack, reading)
    width, height = stack.size
    rows, pages = max(1, BAND // (width * len(channels))), selected_pages(stack, reading)
    low, high = np.full(len(channels), np.inf), np.full(len(channels), -np.inf)
    for page in pages:
        for top in range(0, height, rows):
            band = stack.read(page, channels, (0, top, width, min(top + rows, height)))
            band = np.nan_to_num(np.asarray(band, np.float64), posinf=0.0, neginf=0.0)
            low, high = np.minimum(low, band.min((0, 1))), np.maximum(high, band.max((0, 1)))
    if reading.scale == "depth":
        ends = black_and_white(low.min(), high.max(), floats=stack.dtype.kind == "f")
        low, high = (np.full(len(channels), one) for one in ends)
    return tuple(low.tolist()), tuple(high.tolist())


def _starts(length: int, tiling: Tiling) -> Sequence[int]:
    step = tiling.side - tiling.overlap
    last = max(0, length - tiling.side)
    return [*range(0, last, step), last]
