"""What to label next: typical images of regions without a label, so that few labels cover the collection.

TypiClust (Hacohen et al., ICML 2022): as many clusters as there will be labels, and of each cluster without a labeled
row the most typical one, the row with the densest neighborhood. With many labels, uncertain rows are worth more: if
probabilities are given, they decide among the typical rows of a cluster.
"""

from __future__ import annotations

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.inspect.clustering import kmeans
from nnclr_hub.inspect.neighbors import checked, nearest
from nnclr_hub.store.vector_transform import VectorTransform

K = 20  # neighbors that determine how typical a row is
MOST_CLUSTERS = 1000
TYPICAL = 0.2  # share of a cluster among which the uncertain rows are searched


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
        count: 1 to the number of rows without a label.
        labeled: (N,) bool, rows with a label; None: there is none.
        probabilities: (N, C) float, predictions of a probe for all rows; None: typical rows are chosen.

    Raises:
        InvalidRequest: a count out of range.
    """
    rows = checked(vectors)
    labeled = np.zeros(len(rows), bool) if labeled is None else np.asarray(labeled, bool)
    free = int((~labeled).sum())
    if not 1 <= count <= free:
        raise InvalidRequest(f"count must be between 1 and the {free} images without a label, got {count}.")
    rows = np.ascontiguousarray(VectorTransform.fit(rows, "center")(rows))
    distance = np.sqrt(np.maximum(2 - 2 * nearest(rows, min(K, len(rows) - 1))[0], 0)).mean(axis=1)
    typical = 1 / np.maximum(distance, 1e-6)
    known = int(labeled.sum())
    groups = kmeans(rows, min(known + count, MOST_CLUSTERS, len(rows)))[0]
    members = [np.flatnonzero(groups == one) for one in range(groups.max() + 1)]
    chosen: list[int] = []
    taken = labeled.copy()
    while len(chosen) < count:
        # clusters with the fewest labels first, the largest of these first, as in the paper
        order = sorted(
            (one for one in members if not taken[one].all()), key=lambda one: (int(taken[one].sum()), -len(one))
        )
        for one in order[: count - len(chosen)]:
            best = _best(one[~taken[one]], typical, probabilities)
            chosen.append(best)
            taken[best] = True
    return np.array(chosen, np.int64)


def _best(rows: np.ndarray, typical: np.ndarray, probabilities: np.ndarray | None) -> int:
    if probabilities is None:
        return int(rows[typical[rows].argmax()])
    rows = rows[np.argsort(-typical[rows], kind="stable")][: max(1, round(len(rows) * TYPICAL))]
    two = np.sort(probabilities[rows], axis=1)[:, -2:]
    return int(rows[(two[:, -1] - two[:, 0]).argmin()])  # the smallest margin between two classes
