"""Score maps with boxes: the pointing game and AUROC over pixels, for every image and every pair.

pointing(map, inside)   # 1.0: the map's maximum is in a box
auroc(map, inside)      # 0.5: pixels in boxes are not higher than those outside
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from nnclr_hub.errors import ImageError
from nnclr_hub.progress import bar

from .boxed import BoxedSet
from .maps import MapSource, StoredImage
from .pairs import Pair

METRICS = ("pointing", "auroc")
PARTS = ("within", "across", "control")


@dataclass(frozen=True)
class Scores:
    """Pointing and AUROC in two columns; NaN where a score does not exist.

    within: (N, 2), each image without a query, in all its boxes.
    across: (P, 2), each pair, in the boxes of its class.
    control: (P, 2), the same for a query of another class.
    """

    within: np.ndarray
    across: np.ndarray
    control: np.ndarray


def pointing(values: np.ndarray, inside: np.ndarray) -> float:
    """Return whether the highest pixel is in a box, 0 or 1; with several equal maxima, the share that is.

    A constant map therefore scores the share of the image that boxes cover.

    Args:
        values: (H, W) float.
        inside: (H, W) bool, pixels in boxes.
    """
    return float(inside[values == values.max()].mean())


def auroc(values: np.ndarray, inside: np.ndarray) -> float:
    """Return the probability that a pixel in a box is higher than one outside; ties count half.

    The result is NaN if all pixels are inside or all are outside.

    Args:
        values: (H, W) float.
        inside: (H, W) bool, pixels in boxes.
    """
    within, without = np.sort(values[inside]), np.sort(values[~inside])
    if not len(within) or not len(without):
        return float("nan")
    # the area is Mann and Whitney's U: for each pixel of the smaller side, how many of the other side are below it
    few, many = sorted((within, without), key=len)
    below = np.searchsorted(many, few, "left").sum(dtype=np.float64)
    not_above = np.searchsorted(many, few, "right").sum(dtype=np.float64)
    share = float((below + not_above) / (2 * len(few) * len(many)))
    return share if few is within else 1 - share


def score(
    boxed: BoxedSet, pairs: Sequence[Pair], maps: MapSource, title: str, broken: dict[str, str], console: Console
) -> Scores:
    """Compute the map of each image once, then the map of each query in its target.

    Args:
        boxed: the set.
        pairs: of the set.
        maps: source of the maps.
        title: of the progress bars.
        broken: receives unreadable files with the reason; their pairs have no scores.
        console: console for progress.
    """
    within = np.full((len(boxed.images), 2), np.nan)
    stored: dict[int, StoredImage] = {}
    with bar(console, f"{title}, images", unit="images") as advance:
        for number, image in enumerate(boxed.images):
            try:
                values, stored[number] = maps.map_of(image)
                within[number] = _both(values, image.inside())
            except ImageError as error:
                broken[str(image.path)] = str(error)
            advance(number + 1, len(boxed.images))
    found: dict[tuple, tuple[float, float]] = {}  # a baseline's map is the same for all queries
    across, control = np.full((2, len(pairs), 2), np.nan)
    with bar(console, f"{title}, pairs", unit="pairs") as advance:
        for number, pair in enumerate(pairs):
            for scores, box in ((across, pair.query), (control, pair.control)):
                if box is None or box[0] not in stored or pair.target not in stored:
                    continue
                key = (pair.target, pair.kind, box if maps.uses_query else None)
                if key not in found:
                    query_box = boxed.images[box[0]].boxes[box[1]]
                    values = maps.cross_map(stored[box[0]], query_box, stored[pair.target])
                    found[key] = _both(values, boxed.images[pair.target].inside(pair.kind))
                scores[number] = found[key]
            advance(number + 1, len(pairs))
    return Scores(within, across, control)


def _both(values: np.ndarray, inside: np.ndarray) -> tuple[float, float]:
    return pointing(values, inside), auroc(values, inside)
