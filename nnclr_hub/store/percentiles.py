"""How good a score is: the share of random pairs of the collection's images that score lower.

    collection.search(vector, with_percentile=True)[0].percentile  # 0.9934
    collection.percentiles([0.61, 0.12])  # [0.9934, 0.482]

Scores of two collections cannot be compared: they depend on the encoder, the metric and the transform. Percentiles can.
They are computed from at most 5,000 pairs, so shares above 0.999 differ by a few pairs only, and `percent_text` shows
them alike. Up to 100 items all pairs are compared, and the shares are exact. Copies of an image count once.

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
from nnclr_hub.store.items import Match

log = logging.getLogger(__name__)
LEAST = 10  # different images; the pairs of fewer say nothing
ITEMS, PAIRS = 1000, 5000
NUMBERS = 1 << 22  # in all vectors in memory, 16 MiB: fewer items if they are long
RENEWED = 0.1  # share of the items that may change until the pairs are sampled again
ROUNDING = 1e-6  # by which scores of equal pairs may differ, relative to numbers above 1
SEED = 0
ALIKE = 0.9  # centered similarity from which two rows show one image, until it is calibrated
EQUAL = 0.995  # the same of rows that are not centered
SAMPLE = 2_000  # rows that are compared all with all
GAP = 1.005  # how many times more rows a higher similarity may leave, if rows of one image are apart from all others
EQUAL_DISTANCE = 1e-9  # squared, of equal rows, relative to their mean squared length


@dataclass(frozen=True)
class RandomVectors:
    """Vectors of random items, for percentiles."""

    vectors: np.ndarray  # (m, D) float32 of the items at `random_items`, as searches compare them; NaN if unreadable
    items: int  # the number of all items
    changes: tuple[int, ...]  # `Collection.vector_changes`, read before the vectors


class RandomScores:
    """Scores of random pairs of different items, computed at the first use and after a tenth of the items changed."""

    def __init__(self, collection: Any) -> None:
        self._collection = collection
        self._sampling = threading.Lock()
        self._sampled: tuple[np.ndarray, object, RandomVectors] | None = None

    def percentiles(self, scores: Sequence[float]) -> list[float] | None:
        """See `Collection.percentiles`."""
        try:
            given = np.asarray(scores, np.float64)
        except (TypeError, ValueError, RuntimeError):  # the last one by torch
            given = np.array(np.nan)
        if given.ndim != 1 or not np.isfinite(given).all():
            raise InvalidRequest(f"scores must be a list of finite numbers, got {scores!r:.80}.")
        return _shares(self._sample()[0], given)

    def with_percentiles(self, search: Callable[[], list[list[Match]]]) -> list[list[Match]]:
        """Return the matches of a search with their percentiles, or without if the vectors cannot be read.

        The search runs again if the transform was fitted in between: its scores and those of the pairs would differ.
        """
        while True:
            basis, answers = self._collection.basis, search()
            try:
                pairs, sampled_basis = self._sample()
            except StoreError as error:
                log.warning("the percentiles of collection %r are unknown: %s", self._collection.name, error)
                return answers
            if sampled_basis is basis:
                break
        shares = _shares(pairs, np.array([match.score for matches in answers for match in matches]))
        if shares is None:
            return answers
        remaining = iter(shares)
        return [[replace(match, percentile=next(remaining)) for match in matches] for matches in answers]

    def _sample(self) -> tuple[np.ndarray, object]:
        """Return the scores of pairs (P,) ascending, and the basis that they were computed on."""
        collection = self._collection
        with self._sampling:  # else threads would have different samples while others write
            while True:
                if self._sampled is not None:
                    pairs, basis, sample = self._sampled
                    moved = zip(sample.changes, collection.vector_changes(), strict=True)
                    changed = max(abs(now - before) for before, now in moved)
                    if basis is collection.basis and changed <= RENEWED * sample.items:
                        return pairs, basis
                basis, sample = collection.basis, collection.random_vectors()
                vectors = sample.vectors[~np.isnan(sample.vectors).any(axis=1)]
                self._sampled = _pair_scores(vectors, collection.spec.metric), basis, sample


def random_items(count: int, dim: int) -> np.ndarray:
    """Return different positions below `count`, (m,) int64: at most 1,000, and fewer of vectors longer than 4,194."""
    return np.random.default_rng(SEED).choice(count, min(count, ITEMS, NUMBERS // dim), replace=False)


def random_pairs(count: int, most: int) -> np.ndarray:
    """Return pairs of different positions below `count`, (most, 2) int64."""
    random = np.random.default_rng(SEED)
    first = random.integers(0, count, most)
    return np.stack([first, (first + random.integers(1, count, most)) % count], axis=1)


def distinct_rows(rows: np.ndarray, alike: float = ALIKE) -> tuple[np.ndarray, float]:
    """Return positions of rows, at most 2,000, no two of which are versions of one image; and the similarity used.

    Copies must not count in statistics of a collection.

    Args:
        rows: (N, D) float32; of any length, but rows of one image have one length.
        alike: lowest centered similarity of two versions of an image: about the cosine after centering. It is raised
            while there is no gap between versions of one image and different images.

    Returns:
        (M,) int64, sorted, and the similarity.
    """
    sampled = np.arange(len(rows))[:: -(-len(rows) // SAMPLE)]
    rows = rows[sampled]
    # many copies of one image would draw the mean to it; of rows that all point one way, the mean is what they share
    apart = _spread(rows, EQUAL)
    rows = rows - rows[apart if len(apart) > 1 else slice(None)].mean(axis=0)
    distinct = _spread(rows, alike)
    while alike <= EQUAL and len(more := _spread(rows, (1 + alike) / 2)) > GAP * len(distinct):
        distinct, alike = more, (1 + alike) / 2
    return sampled[distinct], alike


def _spread(rows: np.ndarray, alike: float) -> np.ndarray:
    squares = np.einsum("ij,ij->i", rows, rows)
    distances = squares[:, None] + squares - 2 * rows @ rows.T
    lengths = np.sqrt(squares)
    # the similarity is 1 - |a - b|^2 / 2|a||b|
    near = distances <= 2 * (1 - alike) * np.outer(lengths, lengths) + EQUAL_DISTANCE * squares.mean()
    taken = np.zeros(len(rows), bool)
    for i in range(len(rows)):
        taken[i] = not (near[i] & taken).any()
    return np.flatnonzero(taken)


def _shares(pairs: np.ndarray, scores: np.ndarray) -> list[float] | None:
    if not len(pairs):
        return None
    return (np.searchsorted(pairs, scores - ROUNDING * np.maximum(1, np.abs(scores))) / len(pairs)).tolist()


def _pair_scores(vectors: np.ndarray, metric: str) -> np.ndarray:
    """Return scores (P,) float32 ascending, as searches return them; none of too few different images."""
    if len(vectors) < LEAST or len(different := distinct_rows(vectors)[0]) < LEAST:
        return np.zeros(0, np.float32)
    vectors, count = vectors[different], len(different)
    every = count * (count - 1) // 2 <= PAIRS
    pairs = np.stack(np.triu_indices(count, 1), axis=1) if every else random_pairs(count, PAIRS)
    step, scores = max(1, NUMBERS // vectors.shape[1]), []
    for start in range(0, len(pairs), step):
        a, b = (vectors[positions] for positions in pairs[start : start + step].T)
        scores.append(-np.linalg.norm(a - b, axis=1) if metric == "l2" else np.einsum("ij,ij->i", a, b))
    return np.sort(np.concatenate(scores))
