"""Duplicates: equal values, such as hashes of pixels, and near duplicates: one image in several versions.

Versions may be resized, cropped, mirrored or compressed.

    near_duplicates(vectors, small, color).groups   # with small images: also crops and mirror images
    near_duplicates(vectors).groups                 # by vectors alone: the same image in another size or quality
    near_duplicates(vectors, threshold=0.97)        # pairs with this cosine

With small images, the nearest vectors are candidates, and a pair counts if its details agree after alignment. The
threshold comes from random pairs of the collection itself. Groups have complete linkage: every pair of a group reaches
the threshold, so that chains of similar images do not grow together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.inspect.alignment import COLOR_SIDE, SIDE, Progress, aligned_correlation
from nnclr_hub.inspect.chance import chance_level
from nnclr_hub.inspect.neighbors import checked, nearest
from nnclr_hub.store.percentiles import random_pairs
from nnclr_hub.store.vector_transform import VectorTransform

CANDIDATES = 5  # neighbors of each row that are compared by pixels
LEAST_ALIGNED = 0.88  # at this correlation of details, people see the same photo; benchmarks/inspect.py measures it
RARE = 0.001  # share of random pairs above the score from which the threshold is at least halfway to 1
RANDOM_PAIRS, RANDOM_ALIGNED = 200_000, 4_000
EXPECTED = 0.1  # pairs of different images in the whole collection that may reach the threshold by chance
COMPARED = 30  # members of a group with which a new member is compared, at most


@dataclass(frozen=True)
class Duplicates:
    """Groups of near duplicates.

    groups: positions of at least two rows each, sorted; the most similar group first.
    scores: of each group, its lowest pair.
    threshold: that every pair reaches.
    """

    groups: tuple[tuple[int, ...], ...]
    scores: tuple[float, ...]
    threshold: float


def equal_values(ids: Sequence[str], values: Sequence[Hashable | None]) -> list[tuple[str, ...]]:
    """Return groups of at least two ids with equal values, the largest first.

    Args:
        ids: N ids.
        values: one per id; None is equal to nothing.
    """
    groups: dict[Hashable, list[str]] = {}
    for id, value in zip(ids, values, strict=True):
        if value is not None:
            groups.setdefault(value, []).append(id)
    return sorted((tuple(sorted(one)) for one in groups.values() if len(one) > 1), key=lambda one: (-len(one), one))


def near_duplicates(
    vectors: np.ndarray,
    small: np.ndarray | None = None,
    color: np.ndarray | None = None,
    *,
    threshold: float | None = None,
    progress: Progress = lambda done, total: None,
) -> Duplicates:
    """Find groups of near duplicates.

    Args:
        vectors: (N, D) float.
        small: (N, 48, 48) uint8, gray images squashed to a square; None: vectors are compared alone.
        color: (N, 12, 12, 2) uint8, Cb and Cr of the same images; None: images that differ in color only are
            duplicates. Used with `small`.
        threshold: lowest score of a pair: with `small` the correlation of its details, else the cosine of its vectors.
            None: calibrated on random pairs; vectors alone are then compared half whitened.
        progress: called with (done, total), counted in candidate pairs.

    Raises:
        InvalidRequest: fewer than two vectors, NaN or infinity, small images of another shape, or a threshold outside
            [-1, 1].
    """
    rows = checked(vectors)
    if small is not None and np.shape(small) != (len(rows), SIDE, SIDE):
        raise InvalidRequest(f"small must have shape ({len(rows)}, {SIDE}, {SIDE}), got {np.shape(small)}.")
    if color is not None and np.shape(color) != (shape := (len(rows), COLOR_SIDE, COLOR_SIDE, 2)):
        raise InvalidRequest(f"color must have shape {shape}, got {np.shape(color)}.")
    check_threshold(threshold)
    if small is None:
        return _by_vectors(rows, threshold)
    pairs = _neighbor_pairs(nearest(_transformed(rows), min(CANDIDATES, len(rows) - 1))[1])
    if threshold is None:
        random = aligned_correlation(small, random_pairs(len(rows), RANDOM_ALIGNED))
        # where random pairs agree already, as frames of a video do, a duplicate must agree clearly more
        usual = np.quantile(random, 1 - max(RARE, 2 / len(rows)))  # every image may have a duplicate
        threshold = float(max(LEAST_ALIGNED, (1 + usual) / 2))
    scores = aligned_correlation(small, pairs, color, progress=progress)
    return link_pairs(pairs, scores, threshold, lambda more: aligned_correlation(small, more, color), COMPARED)


def _transformed(rows: np.ndarray) -> np.ndarray:
    """Return the rows as a collection compares them by default."""
    return np.ascontiguousarray(VectorTransform.fit(rows, "half_whiten")(rows))


def check_threshold(threshold: float | None) -> None:
    """Raise InvalidRequest for a threshold that no pair of vectors can have."""
    if threshold is not None and not -1 <= threshold <= 1:
        raise InvalidRequest(f"threshold must be between -1 and 1, got {threshold!r}.")


def _by_vectors(rows: np.ndarray, threshold: float | None) -> Duplicates:
    if threshold is None:
        rows = _transformed(rows)
        random = random_pairs(len(rows), RANDOM_PAIRS)
        scores = (rows[random[:, 0]] * rows[random[:, 1]]).sum(axis=1)
        threshold = chance_level(scores, _pair_count(len(rows)), EXPECTED)

    def score(pairs: np.ndarray) -> np.ndarray:
        return (rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(axis=1)

    k, count = CANDIDATES, len(rows)
    cosines, places = nearest(rows, min(k, count - 1))
    # rows whose whole list reaches the threshold may have more such neighbors
    while k < count - 1 and k < COMPARED and (cosines[:, -1] >= threshold).any():
        k = min(2 * k, count - 1, COMPARED)
        cosines, places = nearest(rows, k)
    pairs = _neighbor_pairs(places)
    return link_pairs(pairs, score(pairs), threshold, score)


def _neighbor_pairs(places: np.ndarray) -> np.ndarray:
    """Return each pair of neighbors once, (P, 2) int64 with the lower position first."""
    count, k = places.shape
    return np.unique(np.sort(np.stack([np.repeat(np.arange(count), k), places.ravel()], axis=1), axis=1), axis=0)


def _pair_count(count: int) -> float:
    return count * (count - 1) / 2


def link_pairs(
    pairs: np.ndarray,
    scores: np.ndarray,
    threshold: float,
    score: Callable[[np.ndarray], np.ndarray],
    most: int | None = None,
) -> Duplicates:
    """Merge groups from the best pair on, as long as all pairs between the two groups reach the threshold.

    Args:
        pairs: (P, 2) int64 candidates, with their scores (P,).
        score: returns the scores of further pairs (Q, 2).
        most: members of a group with which others are compared; None: all.
    """
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] >= threshold]
    group_of: dict[int, list[int]] = {}
    lowest: dict[int, float] = {}  # by id() of a group
    for i, j, value in zip(*pairs[order].T.tolist(), scores[order].tolist(), strict=True):
        a, b = group_of.setdefault(i, [i]), group_of.setdefault(j, [j])
        if a is b:
            continue
        between = np.array([(x, y) for x in _some(a, most) for y in _some(b, most)])
        least = value if len(between) == 1 else float(score(between).min())
        if least < threshold:
            continue
        least = min(least, lowest.pop(id(a), least), lowest.pop(id(b), least))
        a.extend(b)
        lowest[id(a)] = least
        group_of.update(dict.fromkeys(b, a))
    unique = {id(group): group for group in group_of.values() if len(group) > 1}
    found = sorted((-lowest[key], tuple(sorted(group))) for key, group in unique.items())
    return Duplicates(tuple(group for _, group in found), tuple(-low for low, _ in found), float(threshold))


def _some(group: list[int], most: int | None) -> list[int]:
    """Return evenly spaced members of a large group."""
    return group if most is None or len(group) <= most else group[:: -(-len(group) // most)]
