"""The score that no pair of different images reaches by chance, from the scores of random pairs.

Near 0, the distances of random pairs follow a power law, whose exponent is the local dimension of the vectors. It is
estimated by maximum likelihood (Hill, 1975; Levina and Bickel, NIPS 2004), and the law is continued to as many pairs
as the collection has.
"""

from __future__ import annotations

import numpy as np

TAIL = 0.01  # share of the random pairs whose distances are fitted
LEAST = 20  # distances in the tail
TINY = 1e-9


def chance_level(scores: np.ndarray, pairs: float, expected: float = 1.0) -> float:
    """Return the score that `expected` of this many random pairs reach.

    Args:
        scores: (M,) float up to 1, where 1 means equal, of random pairs; at least two.
        pairs: their number in the whole collection.
    """
    distances = np.sort(np.maximum(1 - np.asarray(scores, np.float64), TINY))
    size = min(max(LEAST, round(len(distances) * TAIL)), len(distances) - 1)
    edge = distances[size]
    logs = np.log(edge / distances[:size])  # of an exponential distribution, the largest first
    # the closest tenth may be true duplicates, which are not chance: only their number counts (a censored sample)
    censored = size // 10
    exponent = float((logs[censored:].sum() + censored * logs[censored]) / (size - censored))
    rate = expected / pairs * len(distances) / size
    return float(1 - edge * min(rate, 1.0) ** exponent)
