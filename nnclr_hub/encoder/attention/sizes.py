"""At what size a picture goes through the network: its own if it can, uncropped.

The paper uses "the original resolution of the images to get a larger feature map". Bounds on the long side and on the
number of cells keep the cost in hand, one on the short side a map worth the name; a vision transformer's sides are
whole patches.
"""

from __future__ import annotations

import math

from nnclr_hub.errors import ImageError, InvalidRequest

MAX_SIDE = 1024
# Of a map, whatever max_side: as many as patches of 16 have at 1024 x 1024. A transformer's cost grows with their
# square: with patches of 8, 1024 x 1024 would be 16 times the work, and where attention is not fused 6 GB a block
MOST_CELLS = 4096
SHORTEST = 224  # of the network's input, in pixels
SMALLEST = 8  # of a picture: enlarged further than 28 times, there is nothing in it to look at


def input_size(
    size: tuple[int, int], cell: tuple[int, int], max_side: int = MAX_SIDE, *, whole: bool = False
) -> tuple[int, int]:
    """Width and height to which a picture is resized.

    Args:
        size: width and height of the upright original.
        cell: pixels across and down from one cell of the map to the next.
        max_side: of the long side, in pixels; the short side is 224 at least, unless that is more than 4096 cells.
        whole: whether the sides must be multiples of a cell's, as a vision transformer's of its patch.

    Raises:
        ImageError: the picture is too small, or too long for its width.
        InvalidRequest: no size is possible within max_side.
    """
    step = cell if whole else (1, 1)
    low = tuple(math.ceil(SHORTEST / side) * side for side in step)
    high = tuple(max_side // side * side for side in step)
    if any(least > most for least, most in zip(low, high, strict=True)):
        raise InvalidRequest(f"max_side={max_side} is too little: the short side is {max(low)} pixels at least.")
    if min(size) < SMALLEST:
        raise ImageError(
            f"The picture of {size[0]} x {size[1]} pixels is too small to look at: give one of {SMALLEST} pixels or "
            "more on each side."
        )
    scale = min(1.0, max_side / max(size))
    scale = max(scale, SHORTEST / min(size))
    if round(scale * max(size)) > max_side:
        raise ImageError(
            f"The picture of {size[0]} x {size[1]} pixels is too long for its width: with a short side of {SHORTEST} "
            f"it would be longer than max_side={max_side}; cut a part out, or raise max_side."
        )
    wide, down = (
        min(max(round(scale * side / part) * part, least), most)
        for side, part, least, most in zip(size, step, low, high, strict=True)
    )
    excess = math.sqrt(wide * down / (MOST_CELLS * math.prod(cell)))
    if excess > 1:
        wide, down = (math.floor(side / excess / part) * part for side, part in zip((wide, down), cell, strict=True))
    return wide, down
