"""What to label next: images that represent the others, so that few labels cover the collection.

Facility location (Wei, Iyer and Bilmes, ICML 2015): the chosen rows maximize the sum, over all rows, of the similarity
to the nearest chosen or labeled row. Each row is the one that adds most to the ones before it, which is at most 1/e
below the best sum, and found lazily (Minoux, 1978). docs/results/inspect.md compares it with TypiClust and ProbCover.
"""

from __future__ import annotations

import heapq

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.inspect.neighbors import unit_rows
from nnclr_hub.store.vector_transform import unit_length

COMPONENTS = 64  # principal components of the vectors; the others are mostly noise
TEMPERATURE = 0.3  # of exp((cosine - 1) / TEMPERATURE), by which one row represents another
MOST = 8000  # rows that are compared with each other; of more, a random sample is
CHUNK = 1000  # rows at a time
SEED = 0


@checked
def what_to_label_next(
    vectors: np.ndarray,
    count: int,
    *,
    labeled: np.ndarray | None = None,
    probabilities: np.ndarray | None = None,
) -> np.ndarray:
    """Return the positions (count,) int64 of rows to label, the most useful first.

    Args:
        vectors: (N, D) float.
        count: 1 to the number of rows without a label. The first 8000 are chosen of a random sample of 8000 rows
            without a label, further ones at random.
        labeled: (N,) bool, rows with a label; None: there is none.
        probabilities: (N, C) float, predictions of a probe for all rows, which prefer uncertain rows; None: all rows
            are equally uncertain.

    Raises:
        InvalidRequest: a count out of range.
    """
    rows = unit_rows(vectors)
    labeled = np.zeros(len(rows), bool) if labeled is None else np.asarray(labeled, bool)
    free = np.flatnonzero(~labeled)
    if not 1 <= count <= len(free):
        raise InvalidRequest(f"count must be between 1 and the {len(free)} images without a label, got {count}.")
    shuffled = np.random.default_rng(SEED).permutation(free)
    sample = np.sort(shuffled[:MOST])
    rows = _principal(rows)
    own = rows[sample]
    covered = np.zeros(len(own), np.float32)
    for start in range(0, len(known := rows[labeled]), CHUNK):
        covered = np.maximum(covered, _similarity(own, known[start : start + CHUNK]).max(axis=1))
    weight = np.ones(len(own)) if probabilities is None else _uncertainty(np.asarray(probabilities)[sample])
    chosen = sample[_cover(_similarity(own, own), covered, weight, min(count, len(own)))]
    return np.concatenate([chosen, shuffled[MOST:][: count - len(chosen)]])


def _cover(similarity: np.ndarray, covered: np.ndarray, weight: np.ndarray, count: int) -> list[int]:
    """Return positions of rows that cover the others, greedily.

    Args:
        similarity: (M, M) float32, symmetric.
        covered: (M,) float32, similarity of each row to the nearest chosen row; changed in place.
        weight: (M,) float, by which the gain of a row is multiplied.
    """

    def gain(row: int) -> float:
        return float(weight[row] * np.maximum(similarity[row] - covered, 0).sum())

    waiting = [(-gain(row), row) for row in range(len(similarity))]
    heapq.heapify(waiting)
    chosen: list[int] = []
    while len(chosen) < count:
        row = waiting[0][1]
        now = -gain(row)
        # gains only shrink, so a row that is still ahead of the second one's former gain is the best
        if len(waiting) > 1 and (now, row) > min(waiting[1:3]):
            heapq.heapreplace(waiting, (now, row))
            continue
        heapq.heappop(waiting)
        chosen.append(row)
        np.maximum(covered, similarity[row], out=covered)
    return chosen


def _similarity(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return how well rows represent each other, (M, K) float32 in [0, 1]."""
    cosines = first @ second.T
    cosines -= 1
    cosines /= TEMPERATURE
    return np.exp(cosines, out=cosines)


def _principal(rows: np.ndarray) -> np.ndarray:
    """Return unit rows (N, C) float32 of the principal components."""
    centered = rows - rows.mean(axis=0)
    axes = np.linalg.eigh(centered.T.astype(np.float64) @ centered)[1][:, ::-1][:, :COMPONENTS]
    return unit_length((centered @ axes).astype(np.float32))


def _uncertainty(probabilities: np.ndarray) -> np.ndarray:
    """Return 1 minus the margin between the two most probable classes, (M,) in [0, 1]."""
    two = np.sort(probabilities, axis=1)[:, -2:]
    return 1 - (two[:, -1] - two[:, 0])
