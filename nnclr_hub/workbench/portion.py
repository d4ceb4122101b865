"""The progress of work that has several parts."""

from __future__ import annotations

from nnclr_hub.store.base import Progress

UNITS = 1000  # of the whole work


def portion(progress: Progress, start: float, end: float) -> Progress:
    """Return the progress of a part, which is from `start` to `end` of the whole, in [0, 1]."""
    return lambda done, total: progress(int(UNITS * (start + (end - start) * done / max(1, total))), UNITS)
