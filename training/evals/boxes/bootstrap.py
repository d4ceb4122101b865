"""95% intervals of means by resampling the images with replacement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

AT_ONCE = 100  # resamples; limits the memory


@dataclass(frozen=True)
class Estimate:
    """A mean with the 2.5th and 97.5th percentiles of its bootstrap distribution."""

    mean: float
    low: float
    high: float


def estimate(
    scores: np.ndarray, images: np.ndarray, *, classes: np.ndarray | None = None, draws: int = 1000, seed: int = 0
) -> Estimate:
    """Compute the mean of scores, or the mean over classes of their means, with its interval.

    Each resample has as many images as the set. A score counts as often as its image was sampled. The score of a pair
    counts as often as the product of both counts, since both images are random. A class without any score in a
    resample is left out of it.

    Args:
        scores: (N,) float; NaN does not count.
        images: (N,) or (N, 2) int, the images that a score belongs to.
        classes: (N,) int; None: all have one class.
        draws: number of resamples.
        seed: of the resamples.
    """
    known = ~np.isnan(scores)
    if not known.any():
        return Estimate(*[float("nan")] * 3)
    scores, images = scores[known], images[known].reshape(known.sum(), -1)
    _, kinds = np.unique(np.zeros(len(scores)) if classes is None else classes[known], return_inverse=True)
    distinct, images = np.unique(images, return_inverse=True)
    images = images.reshape(len(scores), -1)
    members = np.eye(kinds.max() + 1)[kinds]  # (N, C)
    rng = np.random.default_rng(seed)
    found = []
    for start in range(0, draws, AT_ONCE):
        rows = min(AT_ONCE, draws - start)
        counts = rng.multinomial(len(distinct), np.full(len(distinct), 1 / len(distinct)), size=rows)
        found.append(_means(counts[:, images].prod(axis=2), scores, members))
    low, high = np.nanpercentile(np.concatenate(found), [2.5, 97.5])
    return Estimate(float(_means(np.ones((1, len(scores))), scores, members)[0]), float(low), float(high))


def _means(weights: np.ndarray, scores: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return the mean over classes for each row of (R, N) weights: (R,), NaN for a row of zeros."""
    total = weights @ members
    sums = (weights * scores) @ members
    known = total > 0
    means = np.divide(sums, total, out=np.zeros_like(sums), where=known)
    count = known.sum(axis=1)
    return np.divide(means.sum(axis=1), count, out=np.full(len(count), np.nan), where=count > 0)
