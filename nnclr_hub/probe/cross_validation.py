"""Cross-validation: predictions for every row by classifiers that have not seen it.

    found = out_of_fold(features, labels)           # found.probabilities: (N, C)
    confidence_interval(found.right)                # interval of the accuracy; see `probe.uncertainty`

Each row is predicted once, by a classifier fitted on the other folds. Folds are stratified by class. The predictions
do not depend on the order of the rows: a folder and its collection list the same images in different orders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.knn import knn_classify

if TYPE_CHECKING:
    from nnclr_hub.probe.linear_probe import LinearProbe

FOLDS = 5
SWEEP = (1e-5, 1e-4, 1e-3, 1e-2)  # penalties on unit rows, of which the first fold selects one
TOLERANCE = 1e-4  # predictions are the same to about a percent, in a fraction of the time
K = 10


@dataclass(frozen=True)
class OutOfFold:
    """Predictions for N rows.

    probabilities: (N, C) float32; for k-NN, 1 for the predicted class.
    predicted: (N,) int64.
    right: (N,) float64, 1 where the prediction is the label.
    """

    probabilities: np.ndarray
    predicted: np.ndarray
    right: np.ndarray


def stratified_folds(labels: np.ndarray) -> np.ndarray:
    """Return the fold (N,) int64 of each row; the rows of each class are spread evenly.

    Args:
        labels: (N,) int.
    """
    random = np.random.default_rng(0)
    fold = np.zeros(len(labels), np.int64)
    offset = 0
    for one in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == one))
        # continued from class to class, so that classes of one row do not all fall into fold 0
        fold[rows] = (offset + np.arange(len(rows))) % FOLDS
        offset += len(rows)
    return fold


def out_of_fold(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    classifier: Literal["linear", "knn"] = "linear",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> OutOfFold:
    """Predict every row from the others.

    A class whose rows are all in one fold is never predicted for them; its probability is 0.

    Args:
        features: (N, D) float, unit rows.
        labels: (N,) int64, 0 ... C - 1, of at least two classes.
        classifier: "linear": `fit_linear_probe`, with calibrated probabilities; "knn": `knn_classify` with k = 10.
        progress: called with (done, total), counted in folds.
    """
    count, classes = len(labels), int(labels.max(initial=-1)) + 1
    if count < FOLDS or len(np.unique(labels)) < 2 or len(features) != count:
        raise InvalidRequest(
            f"Cross-validation needs a label for each row, at least {FOLDS} rows and 2 classes; got {len(features)} "
            f"rows, {count} labels and {len(np.unique(labels))} classes."
        )
    from nnclr_hub.probe.linear import fit_linear_probe  # imports torch

    order = _order_of(features, labels)
    features, labels = features[order], labels[order]
    fold = stratified_folds(labels)
    probabilities = np.zeros((count, classes), np.float32)
    probe: LinearProbe | None = None
    for one in range(FOLDS):
        progress(one, FOLDS)
        held, kept = fold == one, fold != one
        if classifier == "knn":
            predicted = knn_classify(features[kept], labels[kept], features[held], k=K)
            probabilities[np.flatnonzero(held), predicted] = 1
            continue
        if probe is None:
            probe = _first_probe(features[kept], labels[kept])
        else:
            fitted = fit_linear_probe(features[kept], labels[kept], l2=probe.l2, tolerance=TOLERANCE)
            probe = replace(fitted, temperature=probe.temperature)
        columns = np.array(probe.classes, np.int64)
        probabilities[np.ix_(held, columns)] = probe.predict(features[held]).probabilities
    progress(FOLDS, FOLDS)
    place = np.argsort(order)
    probabilities, labels = probabilities[place], labels[place]
    predicted = probabilities.argmax(axis=1)
    return OutOfFold(probabilities, predicted, (predicted == labels).astype(np.float64))


def _order_of(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return positions (N,) of the rows in an order that depends on their values alone."""
    # one number for each row; einsum sums a row as it does alone, unlike a matrix product
    direction = np.random.default_rng(0).standard_normal(features.shape[1])
    return np.lexsort((labels, np.einsum("ij,j->i", features, direction)))


def _first_probe(features: np.ndarray, labels: np.ndarray) -> LinearProbe:
    """Fit with the penalty and the temperature that a held-out part selects; middle ones if none can be held out."""
    from nnclr_hub.probe.linear import fit_linear_probe

    alone = (np.bincount(labels) < 2)[np.unique(labels)].all()
    l2 = SWEEP[1] if alone else None
    return fit_linear_probe(features, labels, l2=l2, sweep=SWEEP, tolerance=TOLERANCE)
