"""How good a score is: the share of random pairs of the collection's images that score lower.

    collection.search(vector, with_percentile=True)[0].percentile  # 0.9934
    collection.percentiles([0.61, 0.12])  # [0.9934, 0.482]

Scores of two collections cannot be compared: they depend on the encoder, the metric and the transform. Percentiles can.
They are computed from at most 5,000 pairs, so shares above 0.999 differ by a few pairs only, and `percent_text` shows
them alike. Up to 100 items all pairs are compared, and the shares are exact. Copies of an image count once, so they
do not lower percentiles.

A back end implements `vector_changes` and `random_vectors` of `Collection`, and `basis` if it transforms vectors.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidRequest, StoreError
from nnclr_hub.store.distinct import distinct_rows
from nnclr_hub.store.items import Match
from nnclr_hub.store.spec import Metric

log = logging.getLogger(__name__)

LEAST = 10  # different images; the pairs of fewer say nothing
ITEMS, PAIRS = 1000, 5000
NUMBERS = 1 << 22  # of the vectors in memory, 16 MiB: fewer items if they are long
RENEWED = 0.1  # of the items may change until the pairs are sampled again
ROUNDING = 1e-6  # by which scores of equal pairs may differ, relative to numbers above 1
SEED = 0


@dataclass(frozen=True)
class RandomVectors:
    """Vectors of random items, for percentiles.

    vectors: (m, D) float32 of the items at `random_items`, as searches compare them; NaN for those that cannot be read.
    items: the number of all items.
    changes: `Collection.vector_changes`, read before the vectors.
    """

    vectors: np.ndarray
    items: int
    changes: tuple[int, ...]


@dataclass(frozen=True)
class _Sample:
    """Scores of random pairs, ascending (P,) float32, and the basis, items and changes they were computed at."""

    scores: np.ndarray
    basis: object
    items: int
    changes: tuple[int, ...]

    def shares(self, scores: np.ndarray) -> list[float] | None:
        """Return the share of pairs that score lower than each of scores (n,) float64; None without pairs."""
        if not len(self.scores):
            return None
        lowered = scores - ROUNDING * np.maximum(1, np.abs(scores))
        return (np.searchsorted(self.scores, lowered) / len(self.scores)).tolist()


class RandomScores:
    """Scores of random pairs of different items, computed at the first use and after a tenth of the items changed.

    Args:
        source: the collection.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._sampling = threading.Lock()
        self._sample: _Sample | None = None

    def percentiles(self, scores: Sequence[float]) -> list[float] | None:
        """See `Collection.percentiles`."""
        given = _finite(scores)
        return self._sampled().shares(given)

    def with_percentiles(self, search: Callable[[], list[list[Match]]]) -> list[list[Match]]:
        """Return the matches of a search with their percentiles, or without if the vectors cannot be read.

        Args:
            search: runs again if the transform was fitted in between: its scores and those of the pairs would differ.
        """
        while True:
            basis = self._source.basis
            answers = search()
            try:
                sample = self._sampled()
            except StoreError as error:
                log.warning("the percentiles of collection %r are unknown: %s", self._source.name, error)
                return answers
            if sample.basis is basis:
                break
        shares = sample.shares(np.array([match.score for found in answers for match in found]))
        if shares is None:
            return answers
        remaining = iter(shares)
        return [[replace(match, percentile=next(remaining)) for match in found] for found in answers]

    def _sampled(self) -> _Sample:
        """Return the sample; first a new one if it is of another basis, or more than a tenth of the items changed."""
        source = self._source
        with self._sampling:  # else threads would have different samples while others write
            sample = self._sample
            while sample is None or sample.basis is not source.basis or _outdated(sample, source.vector_changes()):
                basis, found = source.basis, source.random_vectors()
                vectors = found.vectors[~np.isnan(found.vectors).any(axis=1)]
                sample = _Sample(_pair_scores(vectors, source.spec.metric), basis, found.items, found.changes)
                self._sample = sample
            return sample


def _outdated(sample: _Sample, changes: tuple[int, ...]) -> bool:
    return max(abs(now - before) for before, now in zip(sample.changes, changes, strict=True)) > RENEWED * sample.items


def random_items(count: int, dim: int) -> np.ndarray:
    """Return different positions below `count`, (m,) int64: at most 1,000, and fewer of vectors longer than 4,194."""
    return np.random.default_rng(SEED).choice(count, min(count, ITEMS, NUMBERS // dim), replace=False)


def random_pairs(count: int, most: int) -> np.ndarray:
    """Return pairs of different positions below `count`, (most, 2) int64."""
    random = np.random.default_rng(SEED)
    first = random.integers(0, count, most)
    return np.stack([first, (first + random.integers(1, count, most)) % count], axis=1)


# ---- inside


def _finite(scores: Sequence[float]) -> np.ndarray:
    """Return scores (n,) float64."""
    try:
        given = np.asarray(scores, np.float64)
    except (TypeError, ValueError):
        given = None
    if given is None or given.ndim != 1 or not np.isfinite(given).all():
        raise InvalidRequest(f"scores must be a list of finite numbers, got {scores!r:.80}.")
    return given


def _pair_scores(vectors: np.ndarray, metric: Metric) -> np.ndarray:
    """Return scores (P,) float32 ascending, as searches return them; none of too few different images."""
    if len(vectors) < LEAST or len(different := distinct_rows(vectors)[0]) < LEAST:
        return np.zeros(0, np.float32)
    vectors, count = vectors[different], len(different)
    every = count * (count - 1) // 2 <= PAIRS
    pairs = np.stack(np.triu_indices(count, 1), axis=1) if every else random_pairs(count, PAIRS)
    step = max(1, NUMBERS // vectors.shape[1])
    found = []
    for start in range(0, len(pairs), step):
        a, b = (vectors[places] for places in pairs[start : start + step].T)
        found.append(-np.linalg.norm(a - b, axis=1) if metric == "l2" else np.einsum("ij,ij->i", a, b))
    return np.sort(np.concatenate(found))
