"""Which box of one image is looked for in which other image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .boxed import BoxedSet, large_boxes

Box = tuple[int, int]  # (image, its box), places in the set


@dataclass(frozen=True)
class Pair:
    """One search.

    query: the box whose like is looked for.
    target: the image that is searched, another one that shows the class.
    kind: the class, whose boxes in the target are the right answer.
    control: a box of another class, not of the target; None: the set has none.
    """

    query: Box
    target: int
    kind: int
    control: Box | None


def choose_pairs(boxed: BoxedSet, *, most: int, least: float, seed: int) -> list[Pair]:
    """At most so many pairs a class, each drawn once, from all that there are.

    Args:
        boxed: the set.
        most: pairs a class.
        least: queries are boxes whose area has a square root of at least so many pixels.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    large = list(large_boxes(boxed, least))
    kinds = np.array([boxed.pictures[picture].kinds[box] for picture, box in large], np.int64)
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
    """(query, target), in order; each query's own image is among those that show the class, and passed over."""
    shown = [number for number, one in enumerate(boxed.pictures) if kind in one.kinds]
    each = len(shown) - 1
    total = len(queries) * each
    if total <= 0:
        return []
    drawn = np.sort(rng.choice(total, min(most, total), replace=False))
    pairs = []
    for query, place in ((queries[n // each], n % each) for n in drawn):
        pairs.append((query, shown[place + (place >= shown.index(query[0]))]))
    return pairs
