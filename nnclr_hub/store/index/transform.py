"""The transform of a collection's vectors: on what it is fitted, and when again.

It belongs to a main part, which holds transformed vectors: both are built, saved, loaded and replaced together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nnclr_hub.store.index.main_index import MainIndex
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import VectorTransform

GROWTH = 2  # it is fitted again when the collection has so many times the rows
SETTLED_GROWTH = 1.1  # the same when nothing is written, up to SAMPLE rows: a fit on the first few rows is worse
SAMPLE = 20_000  # rows that it is fitted on
SAMPLE_NUMBERS = 1 << 25  # fewer rows of long vectors: 256 MiB in float64


def is_outdated(
    spec: CollectionSpec, settings: StoreSettings, main: MainIndex | None, live: int, settled: bool
) -> bool:
    """Return whether the transform should be fitted, or fitted again, for a collection with `live` rows.

    Args:
        settled: whether nothing is written now, so that the collection may stay as it is.
    """
    fitted = main.fitted_rows if main is not None and main.transform is not None else 0
    growth = SETTLED_GROWTH if settled and live <= SAMPLE else GROWTH
    return spec.vectors != "raw" and live >= max(settings.fit_from, growth * fitted)


def sample(spec: CollectionSpec, rids: np.ndarray) -> np.ndarray:
    """Return row ids (m,) int64 ascending to fit on, evenly spread over rids (n,): the same for the same rows."""
    wanted = min(len(rids), SAMPLE, SAMPLE_NUMBERS // spec.dim)
    return rids[np.linspace(0, len(rids) - 1, wanted).astype(np.int64)]


def fit(
    spec: CollectionSpec, settings: StoreSettings, read: Callable[[], np.ndarray], live: int
) -> VectorTransform | None:
    """Return a new transform; None if the collection compares raw vectors, or has fewer rows than `fit_from`.

    Args:
        spec: of the collection.
        settings: of the store.
        read: returns the vectors (m, D) of the sample, NaN if they are damaged or were just deleted.
        live: number of rows of the collection.
    """
    if spec.vectors == "raw" or live < settings.fit_from:
        return None
    vectors = read()
    intact = vectors[~np.isnan(vectors).any(axis=1)]
    return VectorTransform.fit(intact if len(intact) else np.zeros((1, spec.dim)), spec.vectors)


def compared(transform: VectorTransform | None, vectors: np.ndarray) -> np.ndarray:
    """Return vectors (n, D) float32 as they are compared; NaN stays NaN."""
    return vectors if transform is None else transform(vectors)
