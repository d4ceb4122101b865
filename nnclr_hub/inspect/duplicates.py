"""Duplicates: equal values, such as hashes of pixels, and near duplicates: one image in several versions.

Versions may be resized, cropped, mirrored or compressed.

    near_duplicates(vectors, small, color).groups   # with small images: also crops and mirror images
    near_duplicates(vectors).groups                 # by vectors alone: the same image in another size or quality
    near_duplicates(vectors, threshold=0.97)        # pairs with this cosine

With small images, the nearest vectors are candidates, and a pair counts if its details agree after alignment. The
threshold is absolute, and higher if different images of the collection agree. Which images differ is found by grouping
them first, so many copies do not raise it. Groups have complete linkage, so that chains of similar images do not grow
together: every pair reaches the threshold, or in large groups every pair of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.inspect.alignment import COLOR_SIDE, SIDE, Progress, aligned_correlation
from nnclr_hub.inspect.neighbors import chance_level, nearest, unit_rows
from nnclr_hub.store.percentiles import ALIKE, EQUAL, SAMPLE, distinct_rows, random_pairs
from nnclr_hub.store.vector_transform import Kind, VectorTransform

CANDIDATES = 5  # neighbors of each row that are compared by pixels
LEAST_ALIGNED = 0.88  # at this correlation of details, people see the same photo; see docs/results/inspect.md
USUAL = 0.1  # share of random pairs below the score whose distance from the median is that of usual high scores
ROUNDS = 5  # most repetitions of the grouping, with another threshold or with representatives of groups
RANDOM_PAIRS, RANDOM_ALIGNED = 200_000, 1_000
LEAST = 10  # different images of which random pairs say something
EXPECTED = 0.1  # pairs of different images in the whole collection that may reach the threshold by chance
COMPARED = 8  # members of a group with which a new member is compared, at most


@dataclass(frozen=True)
class Duplicates:
    """Groups of near duplicates.

    groups: positions of at least two rows each, sorted; the most similar group first.
    scores: lowest score of the compared pairs of each group.
    threshold: lowest score of a pair in a group.
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


@checked
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
    rows = unit_rows(vectors)
    if small is not None and np.shape(small) != (len(rows), SIDE, SIDE):
        raise InvalidRequest(f"small must have shape ({len(rows)}, {SIDE}, {SIDE}), got {np.shape(small)}.")
    if color is not None and np.shape(color) != (shape := (len(rows), COLOR_SIDE, COLOR_SIDE, 2)):
        raise InvalidRequest(f"color must have shape {shape}, got {np.shape(color)}.")
    check_threshold(threshold)
    if small is None:
        return _by_vectors(rows, threshold)
    compared = np.ascontiguousarray(VectorTransform.fit(rows[distinct_rows(rows)[0]], "half_whiten")(rows))
    aligned = _remembering(partial(aligned_correlation, small, color=color), len(rows))
    pairs = _neighbor_pairs(nearest(compared, min(CANDIDATES, len(rows) - 1))[1])
    known = pairs, aligned(pairs, progress)
    found, known = _grouped(compared, known, LEAST_ALIGNED if threshold is None else threshold, aligned)
    for _ in range(ROUNDS if threshold is None else 0):
        different = _first_of_groups(found, len(rows))
        if len(different) < LEAST:
            break
        random = np.unique(np.sort(different[random_pairs(len(different), RANDOM_ALIGNED)], axis=1), axis=0)
        random = aligned_correlation(small, random)
        # where different images agree already, as frames of a video do, a duplicate must agree clearly more
        middle, low = np.quantile(random, [0.5, USUAL])
        higher = max(LEAST_ALIGNED, (1 + 2 * middle - low) / 2)
        if higher <= found.threshold + 0.005:
            break
        found, known = _grouped(compared, known, float(min(higher, 1)), aligned)
    return found


def _grouped(
    vectors: np.ndarray,
    known: tuple[np.ndarray, np.ndarray],
    threshold: float,
    score: Callable[[np.ndarray], np.ndarray],
) -> tuple[Duplicates, tuple[np.ndarray, np.ndarray]]:
    """Group pairs, and then the groups: those of an image with many copies have no neighbors in one another.

    Args:
        known: candidate pairs, and their scores.

    Returns:
        The groups, and the pairs with those between groups.
    """
    pairs, scores = known
    while True:
        found = link_pairs(pairs, scores, threshold, score, COMPARED)
        firsts = _first_of_groups(found, len(vectors))
        if len(firsts) < 2 or len(firsts) == len(vectors):
            return found, (pairs, scores)
        near = firsts[
            _neighbor_pairs(nearest(np.ascontiguousarray(vectors[firsts]), min(CANDIDATES, len(firsts) - 1))[1])
        ]
        is_new = ~np.isin(_pair_keys(near, len(vectors)), _pair_keys(pairs, len(vectors)))
        if not is_new.any():
            return found, (pairs, scores)
        more = score(near[is_new])
        pairs, scores = np.concatenate([pairs, near[is_new]]), np.concatenate([scores, more])
        if not (more >= threshold).any():
            return found, (pairs, scores)


def _remembering(score: Callable[..., np.ndarray], count: int) -> Callable[..., np.ndarray]:
    known: dict[int, float] = {}

    def scores(pairs: np.ndarray, progress: Progress = lambda done, total: None) -> np.ndarray:
        keys = _pair_keys(np.sort(pairs, axis=1), count)
        new = np.unique([key for key in keys.tolist() if key not in known]).astype(np.int64)
        found = score(np.stack([new // count, new % count], axis=1), progress=progress) if len(new) else ()
        known.update(zip(new.tolist(), map(float, found), strict=True))
        return np.array([known[key] for key in keys.tolist()], np.float32)

    return scores


def _pair_keys(pairs: np.ndarray, count: int) -> np.ndarray:
    return pairs[:, 0] * count + pairs[:, 1]


def _first_of_groups(found: Duplicates, count: int) -> np.ndarray:
    """Return the first row of each group, and the rows without a group, sorted (M,) int64."""
    different = np.ones(count, bool)
    for group in found.groups:
        different[list(group[1:])] = False
    return np.flatnonzero(different)


def chance_threshold(rows: np.ndarray, count: int, kind: Kind = "center") -> tuple[float, VectorTransform]:
    """Return the cosine that different images do not reach by chance, and the transform before it.

    Copies do not count as different images, so any number of them leaves it as it is.

    Args:
        rows: (N, D) float32, unit rows of a sample.
        count: number of images that the sample represents.
    """
    alike, sampled = ALIKE, len(range(0, len(rows), -(-len(rows) // SAMPLE)))
    while True:
        some, alike = distinct_rows(rows, alike)
        if len(some) < LEAST:
            # a transform of so few rows makes copies differ: centered, those of a single image are rounding errors
            return alike if kind == "raw" else max(alike, EQUAL), VectorTransform.fit(rows[some], "raw")
        random = random_pairs(len(some), RANDOM_PAIRS)
        pairs = max(1.0, _pair_count(count * len(some) / sampled))

        def level(kind: Kind) -> tuple[float, VectorTransform]:
            transform = VectorTransform.fit(rows[some], kind)  # noqa: B023 - called in this round
            vectors = transform(rows[some])  # noqa: B023
            scores = np.einsum("ij,ij->i", vectors[random[:, 0]], vectors[random[:, 1]])  # noqa: B023
            return chance_level(scores, pairs, EXPECTED), transform  # noqa: B023

        found, center = level("center")
        if found <= alike + 0.005:
            return (found, center) if kind == "center" else level(kind)
        alike = found  # different images are more alike than was assumed


def check_threshold(threshold: float | None) -> None:
    """Raise InvalidRequest for a threshold that no pair of vectors can have."""
    if threshold is not None and not -1 <= threshold <= 1:
        raise InvalidRequest(f"threshold must be between -1 and 1, got {threshold!r}.")


def _by_vectors(rows: np.ndarray, threshold: float | None) -> Duplicates:
    if threshold is None:
        threshold, transform = chance_threshold(rows, len(rows), "half_whiten")
        rows = np.ascontiguousarray(transform(rows))

    def score(pairs: np.ndarray) -> np.ndarray:
        return (rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(axis=1)

    pairs = _neighbor_pairs(nearest(rows, min(CANDIDATES, len(rows) - 1))[1])
    return _grouped(rows, (pairs, score(pairs)), threshold, score)[0]


def _neighbor_pairs(places: np.ndarray) -> np.ndarray:
    """Return each pair of neighbors once, (P, 2) int64 with the lower position first."""
    count, k = places.shape
    return np.unique(np.sort(np.stack([np.repeat(np.arange(count), k), places.ravel()], axis=1), axis=1), axis=0)


def _pair_count(count: float) -> float:
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
    return group if most is None or len(group) <= most else group[:: -(-len(group) // most)]


@dataclass(frozen=True)
class Leak:
    """Items of one group of duplicates that are in different parts.

    items: positions, sorted.
    parts: the part of each.
    score: score of the group of duplicates; 1 for equal pixels.
    """

    items: tuple[int, ...]
    parts: tuple[str, ...]
    score: float


def find_leaks(groups: Iterable[tuple[Sequence[int], float]], parts: Sequence[str]) -> list[Leak]:
    """Return the groups of duplicates that cross parts, the surest first.

    Args:
        groups: of duplicates, as (positions, score).
        parts: the part of each position, such as "train" and "test"; "" belongs to no part.
    """
    found: dict[tuple[int, ...], Leak] = {}
    for items, score in groups:
        inside = tuple(sorted(i for i in items if parts[i]))
        if len({parts[i] for i in inside}) > 1 and (inside not in found or score > found[inside].score):
            found[inside] = Leak(inside, tuple(parts[i] for i in inside), float(score))
    return sorted(found.values(), key=lambda leak: (-leak.score, leak.items))
