"""Weighted 20-NN: fits on the train part of a labelled set and scores the held-out part."""

from __future__ import annotations

from collections.abc import Iterator

from nnclr_hub.probe.knn import knn_classify

from .labelled import Features

K = 20
TEMPERATURE = 0.07


def knn(features: Features) -> Iterator[tuple[str, float]]:
    """Yields ("knn20/NAME", top-1 accuracy in [0, 1])."""
    predicted = knn_classify(features.train, features.train_labels, features.test, k=K, temperature=TEMPERATURE)
    yield f"knn{K}/{features.name}", float((predicted == features.test_labels).mean())
