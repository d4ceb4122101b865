"""At what size an image goes through the network: its own if it can, uncropped.

The paper uses "the original resolution of the images to get a larger feature map". Bounds on the long side and on the
number of cells keep the cost in hand; small images are enlarged to a map worth the name; a vision transformer's
sides are whole patches.
"""

from __future__ import annotations

import math

from nnclr_hub.errors import InvalidRequest

MAX_SIDE = 1024
# Of a map, whatever max_side: as many as patches of 16 have at 1024 x 1024. A transformer's cost grows with their
# square: with patches of 8, 1024 x 1024 would be 16 times the work, and where attention is not fused 6 GB a block
MOST_CELLS = 4096
SHORTEST = 224  # of the network's input, in pixels, where max_side leaves room for it


def input_size(
    size: tuple[int, int], cell: tuple[int, int], max_side: int = MAX_SIDE, *, whole: bool = False
) -> tuple[int, int]:
    """Width and height to which an image is resized.

    Args:
        size: width and height of the upright original.
        cell: pixels across and down from one cell of the map to the next.
        max_side: of the long side, in pixels; the short side is brought to 224 as far as that allows, and is one cell
            at least, for which a strip is widened.
        whole: whether the sides must be multiples of a cell's, as a vision transformer's of its patch.

    Raises:
        InvalidRequest: max_side is less than a cell.
    """
    if max_side < max(cell):
        raise InvalidRequest(
            f"max_side={max_side} is too little: this network's cells are {max(cell)} pixels, so give that or more."
        )
    step = cell if whole else (1, 1)
    most = tuple(min(max_side // part * part, MOST_CELLS * side) for part, side in zip(step, cell, strict=True))
    scale = max(min(1.0, max_side / max(size)), min(SHORTEST / min(size), max_side / max(size)))
    wide, down = (
        min(max(round(scale * side / part) * part, least), bound)
        for side, part, least, bound in zip(size, step, cell, most, strict=True)
    )
    excess = math.sqrt(math.ceil(wide / cell[0]) * math.ceil(down / cell[1]) / MOST_CELLS)
    if excess > 1:
        wide, down = (
            max(math.floor(side / excess / part) * part, part) for side, part in zip((wide, down), cell, strict=True)
        )
    return wide, down
