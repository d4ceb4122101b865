"""Metrics: accuracy, mean accuracy over classes, 11-point average precision, and retrieval.

Names and definitions are those of the papers that report them. Each is tested against a slow or an independent
computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.plural import counted

CHUNK = 1024  # queries at a time
PIECE = 1 << 24  # numbers checked for NaN and infinity at a time
RECALL_LEVELS = np.linspace(0, 1, 11)


def top_k_accuracy(scores: np.ndarray, labels: np.ndarray, k: int = 1) -> float:
    """Return the share of rows whose label is among the k highest scores.

    Args:
        scores: (N, C) float, any monotone score.
        labels: (N,) int, column numbers.
        k: values above C count as C.
    """
    _same_length(scores, labels)
    k = min(k, scores.shape[1])
    best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    return float((best == np.asarray(labels)[:, None]).any(axis=1).mean())


def mean_per_class(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean over classes of their accuracy; rare classes count the same as others.

    Args:
        predicted, labels: (N,) of the same kind.
    """
    _same_length(predicted, labels)
    right = np.asarray(predicted) == np.asarray(labels)
    return float(np.mean([right[np.asarray(labels) == one].mean() for one in np.unique(labels)]))


def average_precision_11(scores: np.ndarray, relevant: np.ndarray) -> float:
    """Return the average precision of VOC2007: the mean of the best precision at recalls 0, 0.1, ..., 1 or more.

    Args:
        scores: (N,) float, higher is more confident.
        relevant: (N,) bool; at least one.
    """
    _same_length(scores, relevant)
    relevant = np.asarray(relevant, bool)
    if not relevant.any():
        raise InvalidRequest("Average precision needs at least one relevant row; leave out classes without any.")
    hits = relevant[np.argsort(-np.asarray(scores), kind="stable")].cumsum()
    precision = hits / np.arange(1, len(hits) + 1)
    recall = hits / hits[-1]
    # rounding must not put a recall of 3 / 10 below the level 0.3
    return float(np.mean([precision[recall >= level - 1e-9].max() for level in RECALL_LEVELS]))


def mean_average_precision_11(
    scores: np.ndarray,
    relevant: np.ndarray,
    counts: np.ndarray | None = None,
    *,
    absent: Literal["refused", "left out"] = "refused",
) -> float:
    """Return the mean over classes of `average_precision_11`.

    Args:
        scores: (N, C) float.
        relevant: (N, C) bool.
        counts: (N, C) bool, rows that count for a class; VOC leaves its "difficult" ones out. Default all.
        absent: what to do with classes without a relevant row; if no class has one, the mean is 0.
    """
    counts = np.ones_like(relevant, bool) if counts is None else counts
    columns = [c for c in range(scores.shape[1]) if absent == "refused" or (relevant & counts)[:, c].any()]
    each = [average_precision_11(scores[counts[:, c], c], relevant[counts[:, c], c]) for c in columns]
    return float(np.mean(each)) if each else 0.0


@dataclass(frozen=True)
class Retrieval:
    """How often neighbors share the query's label.

    recall: k -> share of queries with at least one relevant image among the k nearest.
    average_precision: (Q,) float32 per query, over all relevant images in the gallery. Queries without any are left
        out.
    """

    recall: dict[int, float]
    average_precision: np.ndarray

    @property
    def queries(self) -> int:
        """Number of queries with a relevant image in the gallery."""
        return len(self.average_precision)


def retrieval(
    queries: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    ks: tuple[int, ...] = (1, 5, 10),
) -> Retrieval:
    """Rank a gallery by cosine for each query; without a gallery, rank the other queries.

    Args:
        queries: (Q, D) float; normalized here.
        query_labels: (Q,) int.
        gallery: (N, D) float, or None.
        gallery_labels: (N,) int, or None.
        ks: numbers of neighbors, one for each recall.

    Raises:
        InvalidRequest: no query has a relevant image in the gallery, or NaN or infinity.
    """
    _same_length(queries, query_labels)
    for rows in (queries, gallery):
        if rows is not None:
            require_finite(rows)
    import torch
    import torch.nn.functional as F

    itself = gallery is None  # the gallery contains each query itself
    bank = F.normalize(torch.as_tensor(queries if gallery is None else gallery, dtype=torch.float32), dim=1)
    bank_labels = torch.as_tensor(query_labels if gallery_labels is None else gallery_labels)
    _same_length(bank, bank_labels)
    x, labels = F.normalize(torch.as_tensor(queries, dtype=torch.float32), dim=1), torch.as_tensor(query_labels)
    found, precisions = dict.fromkeys(ks, 0), []
    for start in range(0, len(x), CHUNK):
        similarity = x[start : start + CHUNK] @ bank.T
        if itself:
            similarity[torch.arange(len(similarity)), torch.arange(start, start + len(similarity))] = -torch.inf
        order = similarity.argsort(dim=1, descending=True, stable=True)
        right = bank_labels[order] == labels[start : start + CHUNK, None]
        if itself:
            right[:, -1] = False  # the query itself, ranked last
        right = right[right.any(dim=1)]
        for k in ks:
            found[k] += int(right[:, :k].any(dim=1).sum())
        hits = right.cumsum(dim=1)
        ranks = torch.arange(1, right.shape[1] + 1)
        precisions.append(((hits / ranks) * right).sum(dim=1) / hits[:, -1])
    precision = torch.cat(precisions) if precisions else torch.zeros(0)
    if not len(precision):
        raise InvalidRequest(
            "No query has an image with the same label in the gallery; use labels with several images each."
        )
    return Retrieval({k: n / len(precision) for k, n in found.items()}, precision.numpy())


def _same_length(one: object, other: object) -> None:
    lengths = len(one), len(other)  # type: ignore[arg-type]
    if lengths[0] != lengths[1]:
        raise InvalidRequest(f"Each row needs one label, got {lengths[0]} rows and {lengths[1]} labels.")


def require_finite(features: np.ndarray) -> None:
    """Check rows (N, D) for NaN and infinity, piece by piece: one such row would spoil every average."""
    rows = max(1, PIECE // max(1, features.shape[1]))
    bad = [
        start + place
        for start in range(0, len(features), rows)
        for place in np.flatnonzero(~np.isfinite(features[start : start + rows]).all(axis=1))
    ]
    if bad:
        raise InvalidRequest(
            f"Features must be finite, but row {bad[0]} has NaN or infinity; {counted(len(bad), 'row')} in all."
        )


Label = str | int


@dataclass(frozen=True)
class Labeling:
    """Labels for one row.

    label: label of the most probable class; None below the threshold. For a multi-label probe, a tuple of all labels.
    top: the most probable classes with their probabilities, the best first.
    """

    label: Label | tuple[Label, ...] | None
    top: tuple[tuple[Label, float], ...]
