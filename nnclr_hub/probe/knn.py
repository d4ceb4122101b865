"""Weighted k-nearest-neighbour classification: how well an encoder's neighbours share their class.

The vote of a neighbour counts exp(cosine / temperature), as is usual for judging self-supervised
encoders without training anything. k and temperature belong to every figure made with it.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from nnclr_hub.errors import InvalidRequest

CHUNK = 1024  # queries at a time


def knn_classify(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    features: np.ndarray,
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> np.ndarray:
    """The class that each query's k nearest training vectors vote for.

    Args:
        train_features: (N, D) float; normalised here.
        train_labels: (N,) int, classes 0 ... C - 1.
        features: (Q, D) float; normalised here.
        k: neighbours that vote; at most N.
        temperature: > 0; small lets the nearest decide.

    Returns:
        (Q,) int64.

    Raises:
        InvalidRequest: no training vectors, or lengths that do not match.
    """
    if not len(train_features) or len(train_features) != len(train_labels):
        raise InvalidRequest(
            f"k-NN needs one label a training vector and at least one of them; "
            f"it was given {len(train_features)} vectors and {len(train_labels)} labels."
        )
    bank = F.normalize(torch.as_tensor(train_features, dtype=torch.float32), dim=1)
    labels = torch.as_tensor(train_labels, dtype=torch.int64)
    queries = F.normalize(torch.as_tensor(features, dtype=torch.float32), dim=1)
    votes_of = int(labels.max()) + 1
    predicted = []
    for chunk in queries.split(CHUNK):
        similarity, index = (chunk @ bank.T).topk(min(k, len(bank)), dim=1)  # (q, k)
        votes = torch.zeros(len(chunk), votes_of)
        votes.scatter_add_(1, labels[index], (similarity / temperature).exp())
        predicted.append(votes.argmax(dim=1))
    return torch.cat(predicted).numpy() if predicted else np.zeros(0, np.int64)
