"""Accuracy by the number of labels per class."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.few_shot import SEEDS, SHOTS, few_shot_curve

from .features import Features


def few_shot(features: Features, *, shots: tuple[int, ...] = SHOTS, seeds: int = SEEDS) -> Iterator[tuple[str, float]]:
    """Yield ("few_shot/NAME/5", mean accuracy over seeds) and ("few_shot/NAME/5/std", ...) for each number of labels.

    Raises:
        InvalidRequest: images with several labels.
    """
    if features.train.labels.ndim == 2:
        raise InvalidRequest(f"few_shot needs one label per image, and images of {features.name} have several.")
    train, test = features.train, features.test
    for point in few_shot_curve(train.unit(), train.labels, test.unit(), test.labels, shots=shots, seeds=seeds):
        values = point.mean_per_class if features.metric == "mean_per_class" else point.accuracy
        yield f"few_shot/{features.name}/{point.per_class}", float(np.mean(values))
        yield f"few_shot/{features.name}/{point.per_class}/std", float(np.std(values))
