"""Features of a task's images, for the protocols on frozen features; each image is embedded once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from nnclr_hub.encoder.features import FeatureSource, extract_features, unit_rows
from nnclr_hub.errors import NoImages

from .task import Part, Task

Bar = AbstractContextManager[Callable[[int, int], None]]


@dataclass(frozen=True)
class PartFeatures:
    """Features of the readable images of one part.

    raw: (N, D) float32, the network's output.
    labels: (N,) int64; or (N, C) float32 of zeros and ones, NaN where neither counts.
    broken: unreadable files with the reason.
    """

    raw: np.ndarray
    labels: np.ndarray
    broken: tuple[tuple[str, str], ...] = ()

    def unit(self) -> np.ndarray:
        """Return (N, D) float32 with rows of length 1."""
        return unit_rows(self.raw)


@dataclass(frozen=True)
class Features:
    """Features of a task's parts; see `Task` for name, classes and metric. Classifiers are fitted on `device`."""

    name: str
    classes: tuple[str, ...]
    train: PartFeatures
    test: PartFeatures
    val: PartFeatures | None = None
    metric: str = "top1"
    device: str = "cpu"

    @property
    def broken(self) -> tuple[tuple[str, str], ...]:
        """Unreadable files of all parts, with the reason."""
        return self.train.broken + self.test.broken + (self.val.broken if self.val else ())


def task_features(task: Task, source: FeatureSource, progress: Callable[[str], Bar]) -> Features:
    """Compute the features of every part.

    Args:
        progress: called with a part's name; opens a function to call with (done, total).

    Raises:
        NoImages: a part without any readable image.
    """
    train = part_features(task.train, source, progress(f"{task.name}/train"))
    test = train
    if task.test is not task.train:
        test = part_features(task.test, source, progress(f"{task.name}/test"))
    val = part_features(task.val, source, progress(f"{task.name}/val")) if task.val else None
    device = str(getattr(source, "device", "cpu"))
    return Features(task.name, task.classes, train, test, val, task.metric, device)


def part_features(part: Part, source: FeatureSource, progress: Bar) -> PartFeatures:
    """Compute the features of one part, or read them from the cache."""
    with progress as advance:
        features = extract_features(source, part.paths, progress=advance)
    if not features.broken:
        return PartFeatures(features.raw, part.labels)
    good = np.setdiff1d(np.arange(len(part.paths)), list(features.broken))
    if not len(good):
        raise NoImages(f"None of the {len(part.paths)} images can be read; the first is {part.paths[0]}.")
    broken = tuple((str(part.paths[i]), reason) for i, reason in sorted(features.broken.items()))
    return PartFeatures(np.asarray(features.raw[good]), part.labels[good], broken)
