"""Leaks: the same image in two splits, folders or collections, so that scores on one are not held out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Leak:
    """Items of one group of duplicates that are in different parts.

    items: positions, sorted.
    parts: the part of each.
    score: of the group of duplicates; 1 for equal pixels.
    """

    items: tuple[int, ...]
    parts: tuple[str, ...]
    score: float


def find_leaks(groups: Iterable[tuple[Sequence[int], float]], parts: Sequence[str]) -> list[Leak]:
    """Return the groups of duplicates that cross parts, the surest first.

    Args:
        groups: of duplicates, as (positions, score).
        parts: the part of each position, such as "train" and "test"; "" belongs to no part.
    """
    found: dict[tuple[int, ...], Leak] = {}
    for items, score in groups:
        inside = tuple(sorted(i for i in items if parts[i]))
        if len({parts[i] for i in inside}) > 1 and (inside not in found or score > found[inside].score):
            found[inside] = Leak(inside, tuple(parts[i] for i in inside), float(score))
    return sorted(found.values(), key=lambda leak: (-leak.score, leak.items))
