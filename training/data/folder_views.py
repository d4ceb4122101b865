"""Views that differ between the data folders of a run.

A view is a function of random numbers, so the numbers are changed instead of the views: those of all folders are
still made together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nnclr_hub.errors import InvalidRequest

from .augment import GRAY, OWN, SATURATION_AND_HUE, SOLARIZE
from .crop_boxes import ATTEMPTS
from .views import View


class FolderViews:
    """What the views of some folders keep.

    Args:
        folders: the data of the run; a folder is named by the last part of its path.
        keep_color: NAME, a folder whose views keep saturation and hue, or NAME:SHARE, in this share of the batches.
        least_crop: NAME:SHARE, the least area of a crop for the images of a folder.

    Raises:
        InvalidRequest: no folder has such a name, or a share is not above 0 and at most 1.
    """

    def __init__(self, folders: Sequence[Path | str], keep_color: Sequence[str], least_crop: Sequence[str]) -> None:
        names = [Path(one).name for one in folders]
        colored = dict(_share("keep_color_of", one if ":" in one else f"{one}:1") for one in keep_color)
        shares = dict(_share("least_crop_of", one) for one in least_crop)
        for setting, given in (("keep_color_of", colored), ("least_crop_of", shares)):
            for name in given:
                if name not in names:
                    raise InvalidRequest(f"{setting} must name data folders, one of {', '.join(names)}; got {name}.")
        self._colored = np.array([colored.get(name, 0.0) for name in names])
        self._least = np.array([shares.get(name, 0.0) for name in names])

    def __bool__(self) -> bool:
        return bool(self._colored.any() or self._least.any())

    def of_images(self, folders: np.ndarray) -> FolderNumbers:
        """Return what changes the numbers of each image; folders: (F,) int64, number of images of each folder."""
        return FolderNumbers(np.repeat(self._colored, folders), np.repeat(self._least, folders))


class FolderNumbers:
    """Changes the random numbers of views.

    Args:
        colored: (N,) share of the batches in which the views of an image keep saturation and hue.
        least: (N,) least area of a crop, a share of the image's area; 0 for that of the view.
    """

    def __init__(self, colored: np.ndarray, least: np.ndarray) -> None:
        self._colored, self._least = colored, least

    def change(self, numbers: Tensor, rows: np.ndarray, views: Sequence[View]) -> None:
        """Change the numbers (V, B, NUMBERS) of the images at rows (B,) in place; small views keep their crops."""
        # one decision per batch, so that color does not tell an image from its negatives
        colored = torch.from_numpy(self._colored[rows] > float(numbers[0, 0, OWN]))
        numbers[:, colored, SATURATION_AND_HUE] = 0.5  # the middle of their ranges: a factor of 1, a shift of 0
        numbers[:, colored, GRAY] = numbers[:, colored, SOLARIZE] = 1.0  # not below any probability
        least = torch.from_numpy(self._least[rows]).float()[:, None]
        for number, view in zip(numbers, views, strict=True):
            low, high = view.scale
            if view.size == views[0].size and low < high:
                start = ((least - low) / (high - low)).clamp(0, 1)
                number[:, :ATTEMPTS] = start + (1 - start) * number[:, :ATTEMPTS]


def _share(setting: str, text: str) -> tuple[str, float]:
    name, _, share = text.rpartition(":")
    try:
        value = float(share)
    except ValueError:
        value = 0.0
    if not name or not 0 < value <= 1:
        raise InvalidRequest(f"{setting} must be FOLDER:SHARE with a share above 0 and at most 1; got {text}.")
    return name, value
