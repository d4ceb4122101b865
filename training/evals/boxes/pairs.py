"""Pairs of a query box and a target image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .boxed import BoxedSet, large_boxes

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
