"""How well a map of an image finds what boxes say is there: the pointing game, and AUROC over pixels.

pointing(map, inside)   # 1.0: the map's maximum lies in a box
auroc(map, inside)      # 0.5: pixels in boxes are no higher than those outside
"""

from __future__ import annotations

import numpy as np


def pointing(values: np.ndarray, inside: np.ndarray) -> float:
    """Whether the highest pixel lies in a box, 0 or 1; of several that are equally high, the share that does.

    So a map that is the same everywhere gets the share of the image that boxes cover.

    Args:
        values: (H, W) float.
        inside: (H, W) bool, pixels in boxes.
    """
    return float(inside[values == values.max()].mean())


def auroc(values: np.ndarray, inside: np.ndarray) -> float:
    """The chance that a pixel in a box is higher than one outside, equal ones counted half; NaN if there are not both.

    Args:
        values: (H, W) float.
        inside: (H, W) bool, pixels in boxes.
    """
    within, without = np.sort(values[inside]), np.sort(values[~inside])
    if not len(within) or not len(without):
        return float("nan")
    # the area is Mann and Whitney's U: for each pixel of the smaller side, how many of the other lie below it
    few, many = sorted((within, without), key=len)
    below = np.searchsorted(many, few, "left").sum(dtype=np.float64)
    not_above = np.searchsorted(many, few, "right").sum(dtype=np.float64)
    share = float((below + not_above) / (2 * len(few) * len(many)))
    return share if few is within else 1 - share


def both(values: np.ndarray, inside: np.ndarray) -> tuple[float, float]:
    """(pointing, AUROC)."""
    return pointing(values, inside), auroc(values, inside)
