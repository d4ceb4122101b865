"""A 2-D map of vectors, on which similar images are close.

    found = project(vectors)
    found.coordinates               # (N, 2) float32
    found.place(more)               # (M, 2) float32: where new vectors belong on the same map

"pca" is a linear map that takes milliseconds. "tsne" arranges neighbors (van der Maaten and Hinton, JMLR 2008) by
openTSNE, with the interpolation of Linderman et al. (Nature Methods 2019); see docs/results/inspect.md for UMAP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest, MissingDependency
from nnclr_hub.inspect.neighbors import nearest, unit_rows
from nnclr_hub.store.vector_transform import VectorTransform

Method = Literal["auto", "pca", "tsne"]
PERPLEXITY = 15
SLOW_START, ITERATIONS = 125, 375  # with exaggerated attraction, and without
REPORTED = 25  # iterations between two reports of progress
FEW = 3 * PERPLEXITY + 2  # fewer vectors have no neighbor graph worth arranging
PARALLEL = 2000  # vectors from which several threads are faster than waiting for each other
SEED = 0


@dataclass(frozen=True)
class Map:
    """A map.

    coordinates: (N, 2) float32, centered, with a standard deviation of 1 along the wider axis.
    method: "pca" or "tsne".
    """

    coordinates: np.ndarray
    method: str
    _vectors: np.ndarray
    _transform: VectorTransform
    _axes: np.ndarray

    def place(self, vectors: np.ndarray) -> np.ndarray:
        """Return the coordinates (M, 2) float32 of new vectors; those of the map stay.

        On a "tsne" map a vector is placed at the median of its 5 nearest vectors of the map.

        Args:
            vectors: (M, D) float of the same encoder.
        """
        rows = self._transform(unit_rows(vectors, 1))
        if self.method == "pca":
            return (rows @ self._axes).astype(np.float32)
        import faiss

        index = faiss.IndexFlatIP(rows.shape[1])
        index.add(self._vectors)
        places = index.search(np.ascontiguousarray(rows), min(5, len(self._vectors)))[1]
        return np.median(self.coordinates[places], axis=1).astype(np.float32)


@checked
def project(
    vectors: np.ndarray, method: Method = "auto", *, progress: Callable[[int, int], None] = lambda done, total: None
) -> Map:
    """Return a map of the vectors.

    Args:
        vectors: (N, D) float.
        method: "auto": t-SNE if openTSNE is installed and there are at least 47 vectors, else PCA.
        progress: called with (done, total), counted in iterations.

    Raises:
        InvalidRequest: fewer than two vectors, NaN or infinity, or an unknown method.
        MissingDependency: "tsne" without openTSNE.
    """
    if method not in get_args(Method):
        raise InvalidRequest(f"method must be one of {', '.join(get_args(Method))}, got {method!r}.")
    transform = VectorTransform.fit(unit := unit_rows(vectors), "center")
    rows = np.ascontiguousarray(transform(unit))
    axes = _principal_axes(rows)
    flat = rows @ axes
    scale = np.float32(max(float(flat.std(axis=0).max()), 1e-12))
    pca = Map((flat / scale).astype(np.float32), "pca", rows, transform, axes / scale)
    if method == "pca" or (method == "auto" and len(rows) < FEW):
        return pca
    try:
        import openTSNE  # noqa: F401
    except ImportError as error:
        if method == "auto":
            return pca
        raise MissingDependency("A t-SNE map needs openTSNE; pip install openTSNE.") from error
    if len(rows) < FEW:
        raise InvalidRequest(f"A t-SNE map needs at least {FEW} vectors, got {len(rows)}; use pca.")
    laid = _tsne(rows, pca.coordinates, progress)
    laid = laid - laid.mean(axis=0)
    return Map((laid / max(float(laid.std(axis=0).max()), 1e-12)).astype(np.float32), "tsne", rows, transform, axes)


def _principal_axes(rows: np.ndarray) -> np.ndarray:
    """Return the two directions (D, 2) of most variance; the largest number of each is positive."""
    centered = rows - rows.mean(axis=0)
    axes = np.linalg.eigh(centered.T.astype(np.float64) @ centered)[1][:, ::-1][:, :2]
    if axes.shape[1] < 2:  # vectors of one number
        axes = np.concatenate([axes, np.zeros_like(axes)], axis=1)
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    return (axes * np.where(signs == 0, 1, signs)).astype(np.float32)


def _tsne(rows: np.ndarray, start: np.ndarray, progress: Callable[[int, int], None]) -> np.ndarray:
    from openTSNE import TSNEEmbedding, affinity
    from openTSNE.nearest_neighbors import PrecomputedNeighbors

    k = 3 * PERPLEXITY
    jobs = -1 if len(rows) > PARALLEL else 1
    cosines, places = nearest(rows, k)
    distances = np.sqrt(np.maximum(2 - 2 * cosines, 0))  # valid for unit rows
    graph = affinity.PerplexityBasedNN(
        knn_index=PrecomputedNeighbors(places, distances), perplexity=PERPLEXITY, n_jobs=jobs
    )
    total = SLOW_START + ITERATIONS

    def report(iteration: int, _error: float, _embedding: np.ndarray) -> None:
        progress(min(done + iteration, total), total)

    laid = TSNEEmbedding(
        1e-4 * start.astype(np.float64),
        graph,
        n_jobs=jobs,
        random_state=SEED,
        callbacks=report,
        callbacks_every_iters=REPORTED,
    )
    done = 0
    laid = laid.optimize(SLOW_START, exaggeration=12, momentum=0.5)
    done = SLOW_START
    return np.asarray(laid.optimize(ITERATIONS, momentum=0.8))
