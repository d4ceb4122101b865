"""The protocols on frozen features: k-NN, a linear classifier, few-shot curves and retrieval.

`linear` is the paper's transfer protocol (BYOL's, and before it Kornblith's): logistic regression on features of the
center crop. Validation images select the penalty among 45 values; the classifier is then fitted on train and
validation together. It is also the quick form of the paper's linear evaluation, `linear_images`. In contrast to that,
it sees each image once, without crops and flips, and reaches the optimum instead of stopping after 90 epochs of LARS.

`knn` and `quick_linear` are what a run computes at each checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nnclr_hub.encoder.preprocessing import unit_rows
from nnclr_hub.probe.few_shot import SEEDS, SHOTS, few_shot_curve
from nnclr_hub.probe.knn import knn_classify
from nnclr_hub.probe.linear import fit_linear_probe
from nnclr_hub.probe.metrics import retrieval as rank
from nnclr_hub.store.vector_transform import Kind, VectorTransform

from .features import Features, Score, accuracy, metric_values, require_single_label

K = 20
TEMPERATURE = 0.07
PENALTIES = tuple(np.logspace(-6, 5, 45))  # on the sum over rows, as BYOL states them
QUICK_L2 = 1e-4  # on the mean, for unit rows
MOST = 100_000  # rows; larger sets are scored by `linear` after the run


def knn(
    features: Features, *, k: int = K, temperature: float = TEMPERATURE, vectors: Kind = "raw"
) -> Iterator[tuple[str, float]]:
    """Yield ("knn20/NAME", the set's metric in [0, 1]): the nearest training images vote, weighted by similarity.

    Scores for different k and temperature are not comparable, so k is part of the name, and so are other values than
    the defaults of the rest.

    Args:
        features: features of the set.
        k: number of neighbors.
        temperature: temperature of the votes.
        vectors: "center", "half_whiten" or "whiten" fits `VectorTransform` on the training images, without labels.
    """
    require_single_label(features, "knn")
    train, test = _transformed(features, vectors)
    labels = features.test.labels
    right = knn_classify(train, features.train.labels, test, k=k, temperature=temperature) == labels
    name = f"knn{min(k, len(train))}"
    name += f"_T{temperature:g}" if temperature != TEMPERATURE else ""
    name += f"_{vectors}" if vectors != "raw" else ""
    yield f"{name}/{features.name}", accuracy(right, labels, features.metric)


def linear(features: Features, *, seed: int = 0) -> Iterator[tuple[str, float]]:
    """Yield ("linear/NAME", the set's metric), ("linear/NAME/top5", ...) and the penalty per row.

    Args:
        features: those of the set; without validation images, a fifth of each class is held out to select the penalty.
    """
    train, test, val = features.train, features.test, features.val
    probe = fit_linear_probe(
        train.raw,
        train.labels,
        classes=range(len(features.classes)),
        sweep=[penalty / len(train.raw) for penalty in PENALTIES],
        validation=None if val is None else (val.raw, val.labels),
        metric=features.metric,  # type: ignore[arg-type]
        device=features.device,
        seed=seed,
    )
    yield from metric_values("linear", features, probe.scores(test.raw), test.labels)
    yield f"linear/{features.name}/l2", probe.l2


def quick_linear(features: Features) -> Iterator[tuple[str, float]]:
    """Yield ("linear/NAME", top-1 accuracy in [0, 1]) at one fixed penalty; nothing for a set that is too large."""
    if len(features.train.raw) <= MOST:
        probe = fit_linear_probe(
            features.train.unit(),
            features.train.labels,
            classes=range(len(features.classes)),
            l2=QUICK_L2,
            device=features.device,
        )
        right = probe.scores(features.test.unit()).argmax(axis=1) == features.test.labels
        yield f"linear/{features.name}", Score(right)


def few_shot(
    features: Features, *, shots: tuple[int, ...] = SHOTS, seeds: int = SEEDS, vectors: Kind = "raw"
) -> Iterator[tuple[str, float]]:
    """Yield ("few_shot/NAME/5", mean accuracy over seeds) and ("few_shot/NAME/5/std", ...) per number of labels."""
    require_single_label(features, "few_shot")
    train, test = (unit_rows(rows) for rows in _transformed(features, vectors))
    labels = features.train.labels, features.test.labels
    for point in few_shot_curve(train, labels[0], test, labels[1], shots=shots, seeds=seeds):
        values = point.mean_per_class if features.metric == "mean_per_class" else point.accuracy
        yield f"few_shot/{features.name}/{point.per_class}", float(np.mean(values))
        yield f"few_shot/{features.name}/{point.per_class}/std", float(np.std(values))


def retrieval(features: Features, *, vectors: Kind = "raw") -> Iterator[tuple[str, float]]:
    """Yield ("retrieval/NAME", mean average precision), ("retrieval/NAME/recall@1", ...) at 1, 5 and 10, and the number
    of queries that have any right answer; the others are left out.

    Args:
        features: test is the queries, train the gallery; if they are one object, each searches the others.
        vectors: see `knn`; fitted on the gallery.

    Raises:
        InvalidRequest: several labels per image, or no query has a right answer in the gallery.
    """
    require_single_label(features, "retrieval")
    gallery, queries = features.train, features.test
    searched, asking = _transformed(features, vectors)
    if gallery is queries:
        found = rank(asking, queries.labels)
    else:
        found = rank(asking, queries.labels, searched, gallery.labels)
    yield f"retrieval/{features.name}", Score(found.average_precision)
    for k, value in found.recall.items():
        yield f"retrieval/{features.name}/recall@{k}", value
    yield f"retrieval/{features.name}/queries", float(found.queries)


def _transformed(features: Features, vectors: Kind) -> tuple[np.ndarray, np.ndarray]:
    train, test = features.train.raw, features.test.raw
    if vectors == "raw":
        return train, test
    transform = VectorTransform.fit(train, vectors)
    return transform(train), transform(test)
