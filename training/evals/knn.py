"""Weighted k-NN: the training images nearest to each held-out one vote for its class.

Figures of different k and temperature cannot be compared: they are part of the name.
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
    """Yields ("knn20/NAME", accuracy in [0, 1]), by the metric of the set; the temperature is named if it is not 0.07.

    Raises:
        InvalidRequest: images with several labels.
    """
    if features.train.labels.ndim == 2:
        raise InvalidRequest(f"k-NN votes for one label an image, and {features.name} has several: use linear.")
    predicted = knn_classify(features.train.raw, features.train.labels, features.test.raw, k=k, temperature=temperature)
    right = predicted == features.test.labels
    value = mean_per_class(predicted, features.test.labels) if features.metric == "mean_per_class" else right.mean()
    k = min(k, len(features.train.raw))
    named = f"knn{k}" if temperature == TEMPERATURE else f"knn{k}_T{temperature:g}"
    yield f"{named}/{features.name}", float(value)
