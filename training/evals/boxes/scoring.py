"""Score maps with boxes: the pointing game and AUROC over pixels, for every image and every pair.

A pair is a query box and a target image.

pointing(map, inside)   # 1.0: the map's maximum is in a box
auroc(map, inside)      # 0.5: pixels in boxes are not higher than those outside
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from nnclr_hub.errors import ImageError
from nnclr_hub.progress import bar

from .boxed import BoxedSet
from .maps import MapSource, StoredImage

METRICS = ("pointing", "auroc")
PARTS = ("within", "across", "control")

Box = tuple[int, int]  # (image, its box), positions in the set


@dataclass(frozen=True)
class Pair:
    """One query in one target.

    query: the box to search for.
    target: the image to search, a different image with the same class.
    kind: the class, whose boxes in the target are the right answer.
    control: a box of another class, not from the target; None if the set has none.
    """

    query: Box
    target: int
    kind: int
    control: Box | None


def choose_pairs(boxed: BoxedSet, *, most: int, least: float, seed: int) -> list[Pair]:
    """Sample pairs of each class without repetition.

    Args:
        boxed: the set.
        most: maximum number of pairs per class.
        least: queries are boxes whose area has a square root of at least this many pixels.
        seed: of the samples.
    """
    rng = np.random.default_rng(seed)
    large = list(large_boxes(boxed, least))
    kinds = np.array([boxed.images[image].kinds[box] for image, box in large], np.int64)
    pairs = []
    for kind in range(len(boxed.classes)):
        queries = [large[i] for i in np.flatnonzero(kinds == kind)]
        others = [large[i] for i in np.flatnonzero(kinds != kind)]
        for query, target in _draw(boxed, queries, kind, most, rng):
            controls = [box for box in others if box[0] != target]
            control = controls[int(rng.integers(len(controls)))] if controls else None
            pairs.append(Pair(query, target, kind, control))
    return pairs


def _draw(boxed: BoxedSet, queries: list[Box], kind: int, most: int, rng: np.random.Generator) -> list[tuple[Box, int]]:
    """Return (query, target) pairs in order. A query's image shows the class too, and is skipped as a target."""
    shown = [number for number, one in enumerate(boxed.images) if kind in one.kinds]
    each = len(shown) - 1
    total = len(queries) * each
    if total <= 0:
        return []
    sampled = np.sort(rng.choice(total, min(most, total), replace=False))
    pairs = []
    for query, place in ((queries[n // each], n % each) for n in sampled):
        pairs.append((query, shown[place + (place >= shown.index(query[0]))]))
    return pairs


def large_boxes(boxed: BoxedSet, least: float) -> Iterator[tuple[int, int]]:
    """Yield (image, box) for each box whose area has a square root of at least `least` pixels."""
    for number, one in enumerate(boxed.images):
        sides = one.boxes[:, 2:] - one.boxes[:, :2]
        yield from ((number, int(box)) for box in np.flatnonzero(sides.prod(axis=1) >= least**2))


# ------------------------------------------------------------------------------ scores


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
