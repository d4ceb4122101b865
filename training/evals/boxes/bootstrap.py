"""95% intervals of means by drawing the images anew, with replacement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

AT_ONCE = 100  # draws; bounds the memory


@dataclass(frozen=True)
class Estimate:
    """A mean with the 2.5th and 97.5th percentile of what other images might have given."""

    mean: float
    low: float
    high: float


def estimate(
    scores: np.ndarray, pictures: np.ndarray, *, classes: np.ndarray | None = None, draws: int = 1000, seed: int = 0
) -> Estimate:
    """The mean of scores, or the mean over classes of their means.

    Each draw takes as many images as there are. A score counts as often as its image was drawn; that of a pair, as
    often as one times the other, since neither of its images was given. A class of which nothing was drawn is
    left out of that draw.

    Args:
        scores: (N,) float; NaN does not count.
        images: (N,) or (N, 2) int, the images that a score is of.
        classes: (N,) int; None: all are of one.
        draws: how often.
        seed: of the draws.
    """
    there = ~np.isnan(scores)
    if not there.any():
        return Estimate(*[float("nan")] * 3)
    scores, pictures = scores[there], pictures[there].reshape(there.sum(), -1)
    _, kinds = np.unique(np.zeros(len(scores)) if classes is None else classes[there], return_inverse=True)
    named, pictures = np.unique(pictures, return_inverse=True)
    pictures = pictures.reshape(len(scores), -1)
    members = np.eye(kinds.max() + 1)[kinds]  # (N, C)
    rng = np.random.default_rng(seed)
    found = []
    for start in range(0, draws, AT_ONCE):
        rows = min(AT_ONCE, draws - start)
        drawn = rng.multinomial(len(named), np.full(len(named), 1 / len(named)), size=rows)
        found.append(_means(drawn[:, pictures].prod(axis=2), scores, members))
    low, high = np.nanpercentile(np.concatenate(found), [2.5, 97.5])
    return Estimate(float(_means(np.ones((1, len(scores))), scores, members)[0]), float(low), float(high))


def _means(weights: np.ndarray, scores: np.ndarray, members: np.ndarray) -> np.ndarray:
    """(R,): for each row of (R, N) weights, the mean over classes; NaN if nothing was drawn."""
    total = weights @ members
    sums = (weights * scores) @ members
    there = total > 0
    means = np.divide(sums, total, out=np.zeros_like(sums), where=there)
    count = there.sum(axis=1)
    return np.divide(means.sum(axis=1), count, out=np.full(len(count), np.nan), where=count > 0)
