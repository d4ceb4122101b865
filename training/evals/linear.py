"""A linear classifier on frozen features.

`linear` is the paper's transfer protocol (BYOL's, and before it Kornblith's): logistic regression on features of the
center crop. Validation images select the penalty among 45 values; the classifier is then fitted on train and
validation together. It is also the quick form of the paper's linear evaluation, `linear_images`. In contrast to that,
it sees each image once, without crops and flips, and reaches the optimum instead of stopping after 90 epochs of LARS.

`quick_linear` is the form that a run computes at each checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nnclr_hub.probe.linear import fit_linear_probe
from nnclr_hub.probe.metrics import top_k_accuracy

from .features import Features
from .task import metric_values

PENALTIES = tuple(np.logspace(-6, 5, 45))  # of the sum over rows, as BYOL states them
QUICK_L2 = 1e-4  # of the mean, on unit rows
MOST = 100_000  # rows; larger sets are scored by `linear` after the run


def linear(features: Features, *, seed: int = 0) -> Iterator[tuple[str, float]]:
    """Yield ("linear/NAME", the set's metric), ("linear/NAME/top5", ...) and the penalty per row.

    Args:
        features: of the set; without validation images, a fifth of each class is held out to select the penalty.
        seed: of that split.
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
        yield f"linear/{features.name}", top_k_accuracy(probe.scores(features.test.unit()), features.test.labels)
