"""The answer of a probe for one row."""

from __future__ import annotations

from dataclasses import dataclass

Label = str | int


@dataclass(frozen=True)
class Labeling:
    """Labels for one row.

    label: of the most probable class; None below the threshold. For a multi-label probe, a tuple of all labels.
    top: the most probable classes with their probabilities, the best first.
    """

    label: Label | tuple[Label, ...] | None
    top: tuple[tuple[Label, float], ...]
