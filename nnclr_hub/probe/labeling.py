"""Labeling: what a probe says of one row."""

from __future__ import annotations

from dataclasses import dataclass

Label = str | int


@dataclass(frozen=True)
class Labeling:
    """See the module.

    label: of the most probable class, None below the threshold; for a probe of several labels a tuple of all.
    top: the most probable classes with their probabilities, the best first.
    """

    label: Label | tuple[Label, ...] | None
    top: tuple[tuple[Label, float], ...]
