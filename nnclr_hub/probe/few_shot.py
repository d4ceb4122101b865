"""Accuracy against the number of labels per class: how far a few labeled images go with an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.linear_probe import feature_matrix, label_array
from nnclr_hub.probe.metrics import Label, mean_per_class, top_k_accuracy

SHOTS = (1, 2, 5, 10, 20, 50)
SEEDS = 5
L2 = 1e-4  # on unit rows; with one or two labels per class, none can be held out to choose it


@dataclass(frozen=True)
class Shots:
    """The result for n labels per class.

    per_class: n; classes with fewer rows use all of them.
    accuracy: top-1 of each seed, in [0, 1].
    mean_per_class: the mean accuracy over classes of each seed, in [0, 1].
    """

    per_class: int
    accuracy: tuple[float, ...]
    mean_per_class: tuple[float, ...]


@checked
def few_shot_curve(
    features: np.ndarray,
    labels: Sequence[Label] | np.ndarray,
    test_features: np.ndarray,
    test_labels: Sequence[Label] | np.ndarray,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: int = SEEDS,
    l2: float = L2,
) -> list[Shots]:
    """Fit a linear probe on the first n labels of each class, for each n.

    Each seed orders the rows once, so a smaller training set is always part of a larger one.

    Args:
        features: (N, D) float, unit rows.
        labels: (N,) numbers or names of at least two classes.
        test_features, test_labels: (Q, D) and (Q,), used for scoring.
        shots: values of n; those above the size of the largest class are skipped.
        seeds: number of random orders.

    Raises:
        InvalidRequest: fewer than two classes, or no possible n.
    """
    from nnclr_hub.probe.linear import fit_linear_probe  # imports torch

    labels, test_labels = label_array(labels), label_array(test_labels)
    features = feature_matrix(features)
    for rows, names, what in ((features, labels, ""), (test_features, test_labels, "test ")):
        if len(rows) != len(names):
            raise InvalidRequest(
                f"A few-shot curve needs one label per row, got {len(rows)} {what}rows and {len(names)} {what}labels."
            )
    members = {one: np.flatnonzero(labels == one) for one in np.unique(labels).tolist()}
    if len(members) < 2:
        raise InvalidRequest(f"A few-shot curve needs at least two classes, got {len(members)}.")
    unknown = [one for one in np.unique(test_labels).tolist() if one not in members]
    if unknown:
        raise InvalidRequest(f"The test labels have classes that the training labels lack: {unknown[:5]}.")
    if seeds < 1:
        raise InvalidRequest(f"seeds must be at least 1, got {seeds}.")
    largest = max(map(len, members.values()))
    possible = [n for n in sorted(set(shots)) if 0 < n <= largest]
    if not possible:
        raise InvalidRequest(f"shots must contain a number between 1 and {largest}, got {list(shots)}.")
    top1: dict[int, list[float]] = {n: [] for n in possible}
    balanced: dict[int, list[float]] = {n: [] for n in possible}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        order = {one: rng.permutation(rows) for one, rows in members.items()}
        for n in possible:
            rows = np.concatenate([one[:n] for one in order.values()])
            probe = fit_linear_probe(features[rows], labels[rows], l2=l2)
            scores = probe.scores(test_features)
            places = np.searchsorted(np.array(probe.classes), test_labels)
            top1[n].append(top_k_accuracy(scores, places))
            balanced[n].append(mean_per_class(scores.argmax(axis=1), places))
    return [Shots(n, tuple(top1[n]), tuple(balanced[n])) for n in possible]
