"""Weighted k-nearest-neighbor classification: how often an encoder's neighbors share their class.

The vote of a neighbor counts exp(cosine / temperature), as usual for self-supervised encoders. Report k and temperature
with every result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.linear_probe import feature_matrix, label_array
from nnclr_hub.probe.metrics import Label

CHUNK = 1024  # queries at a time


@checked
def knn_classify(
    train_features: np.ndarray,
    train_labels: Sequence[Label] | np.ndarray,
    features: np.ndarray,
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> np.ndarray:
    """Return the class that each query's k nearest training vectors vote for.

    Args:
        train_features: (N, D) float; normalized here.
        train_labels: (N,) numbers or names of classes.
        features: (Q, D) float; normalized here.
        k: number of neighbors that vote; at most N.
        temperature: > 0; with a small one the nearest decides.

    Returns:
        (Q,) labels, with the dtype of train_labels.

    Raises:
        InvalidRequest: no training vectors, lengths that differ, missing or mixed labels, k or temperature out of
            range, or NaN or infinity.
    """
    train_features, features = feature_matrix(train_features), feature_matrix(features)
    if k < 1 or not temperature > 0:
        raise InvalidRequest(f"k must be at least 1 and temperature above 0, got {k=}, {temperature=}.")
    classes, places = np.unique(label_array(train_labels), return_inverse=True)
    if not len(train_features) or len(train_features) != len(places):
        raise InvalidRequest(
            f"k-NN needs at least one training vector, and one label for each; "
            f"got {len(train_features)} vectors and {len(places)} labels."
        )
    import torch
    import torch.nn.functional as F

    bank = F.normalize(torch.as_tensor(train_features, dtype=torch.float32), dim=1)
    labels = torch.from_numpy(places)
    queries = F.normalize(torch.as_tensor(features, dtype=torch.float32), dim=1)
    predicted = []
    for chunk in queries.split(CHUNK):
        similarity, index = (chunk @ bank.T).topk(min(k, len(bank)), dim=1)  # (q, k)
        votes = torch.zeros(len(chunk), len(classes))
        # relative to the nearest: a small temperature would overflow, and only ratios of votes matter
        votes.scatter_add_(1, labels[index], ((similarity - similarity[:, :1]) / temperature).exp())
        predicted.append(votes.argmax(dim=1))
    return classes[torch.cat(predicted).numpy()] if predicted else classes[:0]
