"""Features of a task's images, for the protocols on frozen features, and scores that remember each test image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from nnclr_hub.encoder.features import FeatureSource, extract_features
from nnclr_hub.encoder.preprocessing import unit_rows
from nnclr_hub.errors import InvalidRequest, NoImages
from nnclr_hub.probe.metrics import mean_average_precision_11, top_k_accuracy

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
    """Compute the features of every part, or read them from the cache; each image is embedded once.

    Args:
        progress: called with a part's name; opens a function to call with (done, total).
    """

    def of(part: Part, name: str) -> PartFeatures:
        with progress(f"{task.name}/{name}") as advance:
            found = extract_features(source, part.paths, progress=advance)
        if not found.broken:
            return PartFeatures(found.raw, part.labels)
        good = np.setdiff1d(np.arange(len(part.paths)), list(found.broken))
        if not len(good):
            raise NoImages(f"No image can be read; the first is {part.paths[0]}.")
        broken = tuple((str(part.paths[i]), reason) for i, reason in sorted(found.broken.items()))
        return PartFeatures(np.asarray(found.raw[good]), part.labels[good], broken)

    train = of(task.train, "train")
    test = train if task.test is task.train else of(task.test, "test")
    val = of(task.val, "val") if task.val else None
    return Features(task.name, task.classes, train, test, val, task.metric, str(getattr(source, "device", "cpu")))


class Score(float):
    """The mean of `each`.

    each: (N,) float32, one value per test image: 0 or 1 for accuracy, average precision for retrieval. For the mean
        over classes the values are weighted so that their mean is the score.
    """

    each: np.ndarray

    def __new__(cls, each: np.ndarray) -> Score:
        """Build the score of N values."""
        score = super().__new__(cls, np.asarray(each, np.float64).mean())
        score.each = np.asarray(each, np.float32)
        return score


def accuracy(right: np.ndarray, labels: np.ndarray, metric: str) -> Score:
    """Return the share of right answers, over images (top1) or as the mean over classes (mean_per_class).

    Args:
        right: (N,) bool.
        labels: (N,) int64.
        metric: "top1" or "mean_per_class".
    """
    if metric != "mean_per_class":
        return Score(right)
    _, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return Score(right * (len(labels) / (len(counts) * counts[place])))


def metric_values(
    protocol: str, task: Task | Features, scores: np.ndarray, labels: np.ndarray
) -> Iterator[tuple[str, float]]:
    """Yield ("PROTOCOL/NAME", the task's metric) and, with more than five classes, ("PROTOCOL/NAME/top5", ...).

    Args:
        protocol: its name.
        task: determines the metric: top1, mean_per_class or map11.
        scores: (N, C) float.
        labels: (N,) int64; or (N, C) float32 of zeros and ones, NaN where neither counts.
    """
    if task.metric == "map11":
        value = mean_average_precision_11(scores, labels == 1, ~np.isnan(labels), absent="left out")
        yield f"{protocol}/{task.name}", value
        return
    yield f"{protocol}/{task.name}", accuracy(scores.argmax(axis=1) == labels, labels, task.metric)
    if scores.shape[1] > 5:
        yield f"{protocol}/{task.name}/top5", top_k_accuracy(scores, labels, 5)


def require_single_label(task: Task | Features, protocol: str) -> None:
    """Raise InvalidRequest if images have several labels, as few protocols support."""
    if 2 in (task.train.labels.ndim, task.test.labels.ndim):
        raise InvalidRequest(
            f"{protocol} needs one label per image, and images of {task.name} have several; use linear."
        )
