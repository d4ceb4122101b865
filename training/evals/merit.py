"""The figure that a data set is judged by, from scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from nnclr_hub.probe.metrics import mean_average_precision_11, mean_per_class, top_k_accuracy


class Judged(Protocol):
    """A task, or its features."""

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> str: ...


def merits(protocol: str, task: Judged, scores: np.ndarray, labels: np.ndarray) -> Iterator[tuple[str, float]]:
    """Yields ("PROTOCOL/NAME", the task's metric) and, of more than five classes, ("PROTOCOL/NAME/top5", ...).

    Args:
        protocol: its name.
        task: says which metric: top1, mean_per_class or map11.
        scores: (N, C) float.
        labels: (N,) int64; or (N, C) float32 of zeros and ones, NaN where neither counts.
    """
    if task.metric == "map11":
        value = mean_average_precision_11(scores, labels == 1, ~np.isnan(labels), absent="left out")
        yield f"{protocol}/{task.name}", value
        return
    if task.metric == "mean_per_class":
        yield f"{protocol}/{task.name}", mean_per_class(scores.argmax(axis=1), labels)
    else:
        yield f"{protocol}/{task.name}", top_k_accuracy(scores, labels)
    if scores.shape[1] > 5:
        yield f"{protocol}/{task.name}/top5", top_k_accuracy(scores, labels, 5)
