"""Clusters of similar images, each with a medoid that represents it.

Spherical k-means (Dhillon and Modha, 2001) on centered vectors, from several starts. If no number of clusters is
given, the smallest of a few candidates is used whose simplified silhouette (Hruschka et al., 2004) exceeds that of
unclustered rows with the same covariance by nearly the most (a gap, as of Tibshirani et al., 2001). The silhouette
alone falls with the number of clusters in any data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.inspect.neighbors import unit_rows
from nnclr_hub.store.vector_transform import VectorTransform, unit_length

CANDIDATES = (4, 6, 8, 12, 16, 24, 32)
LEAST = 5  # images of a cluster, on average, for a candidate to be tried
NEARLY = 0.9  # share of the best gap for which fewer clusters are preferred
ITERATIONS, STARTS = 20, 5
SEED = 0
PER_CENTER = 1000  # rows per center that are used to fit


@dataclass(frozen=True)
class Clusters:
    """K clusters, the largest first.

    labels: (N,) int64, the cluster of each row, 0 ... K - 1.
    medoids: (K,) int64, the row nearest to the center of each cluster.
    share: (K,) float, the share of the rows in each cluster.
    """

    labels: np.ndarray
    medoids: np.ndarray
    share: np.ndarray


@checked
def clusters(vectors: np.ndarray, count: int | None = None) -> Clusters:
    """Divide the rows into clusters.

    Args:
        vectors: (N, D) float.
        count: K, 1 to N; None: by the silhouette.

    Raises:
        InvalidRequest: fewer than two vectors, NaN or infinity, or a count out of range.
    """
    rows = unit_rows(vectors)
    rows = np.ascontiguousarray(VectorTransform.fit(rows, "center")(rows))
    if count is not None and not 1 <= count <= len(rows):
        raise InvalidRequest(f"count must be between 1 and {len(rows)}, got {count}.")
    tried = [k for k in CANDIDATES if k * LEAST <= len(rows)] if count is None else [count]
    found = [kmeans(rows, k) for k in tried or [1]]
    quality = [0.0]
    if len(found) > 1:
        without = _unclustered(rows)
        quality = [_silhouette(*one) - _silhouette(*kmeans(without, k)) for k, one in zip(tried, found, strict=True)]
    most = max(quality)
    least = most - (1 - NEARLY) * abs(most)  # the most may be negative
    best = next(one for one, value in zip(found, quality, strict=True) if value >= least)
    return _largest_first(*best)


def kmeans(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cluster (N,) int64 of each unit row, and its cosine with all centers (N, K) float32."""
    import faiss

    fit = faiss.Kmeans(
        rows.shape[1],
        count,
        niter=ITERATIONS,
        nredo=STARTS,
        spherical=True,
        seed=SEED,
        min_points_per_centroid=1,
        max_points_per_centroid=PER_CENTER,
    )
    fit.train(rows)
    centers = np.asarray(fit.centroids)
    cosines = rows @ centers.T
    return cosines.argmax(axis=1), cosines


def _unclustered(rows: np.ndarray) -> np.ndarray:
    """Return as many unit rows of one Gaussian with the covariance of these."""
    variance, axes = np.linalg.eigh(np.atleast_2d(np.cov(rows.T)))
    random = np.random.default_rng(SEED).normal(size=rows.shape) * np.sqrt(variance.clip(0))
    return np.ascontiguousarray(unit_length((random @ axes.T).astype(np.float32)))


def _silhouette(labels: np.ndarray, cosines: np.ndarray) -> float:
    distances = np.sort(np.sqrt(np.maximum(2 - 2 * cosines, 0)), axis=1)
    return float(np.mean((distances[:, 1] - distances[:, 0]) / np.maximum(distances[:, 1], 1e-12)))


def _largest_first(labels: np.ndarray, cosines: np.ndarray) -> Clusters:
    used, sizes = np.unique(labels, return_counts=True)
    order = used[np.argsort(-sizes, kind="stable")]
    medoids = []
    for one in order:
        rows = np.flatnonzero(labels == one)
        medoids.append(rows[cosines[rows, one].argmax()])
    place = np.zeros(cosines.shape[1], np.int64)
    place[order] = np.arange(len(order))
    return Clusters(place[labels], np.array(medoids, np.int64), np.sort(sizes)[::-1] / len(labels))
