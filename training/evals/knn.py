"""Weighted k-NN: the training images nearest to each held-out image vote for its class.

Scores for different k and temperature are not comparable, so both are part of the score's name.
"""

from __future__ import annotations

from collections.abc import Iterator

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.knn import knn_classify
from nnclr_hub.probe.metrics import mean_per_class

from .features import Features

K = 20
TEMPERATURE = 0.07


def knn(features: Features, *, k: int = K, temperature: float = TEMPERATURE) -> Iterator[tuple[str, float]]:
    """Yield ("knn20/NAME", the set's metric in [0, 1]); a temperature other than 0.07 is part of the name.

    Raises:
        InvalidRequest: images with several labels.
    """
    if features.train.labels.ndim == 2:
        raise InvalidRequest(f"knn needs one label per image, and images of {features.name} have several; use linear.")
    predicted = knn_classify(features.train.raw, features.train.labels, features.test.raw, k=k, temperature=temperature)
    right = predicted == features.test.labels
    value = mean_per_class(predicted, features.test.labels) if features.metric == "mean_per_class" else right.mean()
    k = min(k, len(features.train.raw))
    named = f"knn{k}" if temperature == TEMPERATURE else f"knn{k}_T{temperature:g}"
    yield f"{named}/{features.name}", float(value)
