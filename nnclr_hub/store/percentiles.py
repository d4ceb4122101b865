"""How good a score is: the share of random pairs of the collection's items that score lower.

    collection.search(vector, with_percentile=True)[0].percentile  # 0.9934
    collection.percentiles([0.61, 0.12])  # [0.9934, 0.482]

Scores of two collections cannot be compared: they depend on the encoder, the metric and the transform. Percentiles can.
They are computed from at most 5,000 pairs, so shares above 0.999 differ by a few pairs only, and `percent_text` shows
them alike. Up to 100 items all pairs are compared, and the shares are exact.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nnclr_hub.errors import InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.store.base import Collection, Match
    from nnclr_hub.store.spec import Metric

LEAST = 10  # items; the pairs of fewer say nothing
ITEMS, PAIRS = 1000, 5000
NUMBERS = 1 << 22  # of the vectors in memory, 16 MiB: fewer items if they are long
RENEWED = 0.1  # of the items may change until the pairs are sampled again
ROUNDING = 1e-6  # by which scores of equal pairs may differ, relative to numbers above 1
SHOWN = 0.999  # the highest share that differs reliably from others
SEED = 0

# Of a collection: its transform, compared by identity, and numbers that grow or fall with each item that changes.
State = tuple[object, *tuple[int, ...]]


@dataclass(frozen=True)
class _Sample:
    """Scores of random pairs, ascending (P,) float32, and the state and the number of items they were computed at."""

    scores: np.ndarray
    state: State
    items: int


class RandomScores:
    """Scores of random pairs of different items, computed at the first use and after a tenth of the items changed.

    Threads may share it.

    Args:
        metric: of the collection.
        state: returns the present state.
        read: returns the vectors (m, D) float32 of `random_items` as searches compare them, NaN for those that cannot
            be read, and the number of all items.
    """

    def __init__(self, metric: Metric, state: Callable[[], State], read: Callable[[], tuple[np.ndarray, int]]) -> None:
        self._metric: Metric = metric
        self._state = state
        self._read = read
        self._sampling = threading.Lock()
        self._sample: _Sample | None = None

    def percentiles(self, scores: Sequence[float]) -> list[float] | None:
        """See `Collection.percentiles`."""
        given = _finite(scores)
        random = self._current().scores
        if not len(random):
            return None
        lowered = given - ROUNDING * np.maximum(1, np.abs(given))
        return (np.searchsorted(random, lowered) / len(random)).tolist()

    def _current(self) -> _Sample:
        state = self._state()  # before the vectors: a change during the reading makes the next call read again
        with self._sampling:
            sample = self._sample
            if sample is None or _outdated(sample, state):
                vectors, items = self._read()
                vectors = vectors[~np.isnan(vectors).any(axis=1)]
                sample = self._sample = _Sample(_pair_scores(vectors, self._metric), state, items)
            return sample


def with_percentiles(collection: Collection, answers: list[list[Match]]) -> list[list[Match]]:
    """Return matches with their percentiles."""
    shares = collection.percentiles([match.score for found in answers for match in found])
    if shares is None:
        return answers
    remaining = iter(shares)
    return [[replace(match, percentile=next(remaining)) for match in found] for found in answers]


def percent_text(share: float | None) -> str:
    """Return a percentile for people: 48.2%, >99.9%, or nothing if it is unknown."""
    if share is None:
        return ""
    return f">{100 * SHOWN:.1f}%" if share > SHOWN else f"{100 * share:.1f}%"


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


def _outdated(sample: _Sample, state: State) -> bool:
    before, now = sample.state, state
    moved = max(abs(one - other) for one, other in zip(before[1:], now[1:], strict=True))
    return before[0] is not now[0] or moved > RENEWED * sample.items


def _pair_scores(vectors: np.ndarray, metric: Metric) -> np.ndarray:
    """Return scores (P,) float32 ascending, as searches return them; none of too few vectors."""
    count = len(vectors)
    if count < LEAST:
        return np.zeros(0, np.float32)
    every = count * (count - 1) // 2 <= PAIRS
    pairs = np.stack(np.triu_indices(count, 1), axis=1) if every else random_pairs(count, PAIRS)
    step = max(1, NUMBERS // vectors.shape[1])
    found = []
    for start in range(0, len(pairs), step):
        a, b = (vectors[places] for places in pairs[start : start + step].T)
        found.append(-np.linalg.norm(a - b, axis=1) if metric == "l2" else np.einsum("ij,ij->i", a, b))
    return np.sort(np.concatenate(found))
