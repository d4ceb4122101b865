"""A linear classifier on frozen features.

`linear` is the paper's transfer protocol (BYOL's, and Kornblith's before it): logistic regression on features of the
center crop, its penalty chosen among 45 on validation images, then fitted on train and validation together.
It is also the quick form of linear evaluation: it differs from the paper's, `linear_images`, in that it sees each
image once, without crops and flips, and stands at the optimum instead of at the end of 90 epochs of LARS.

`quick_linear` is what a run asks at each checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nnclr_hub.probe.linear import fit_linear_probe
from nnclr_hub.probe.metrics import top_k_accuracy

from .features import Features
from .merit import merits

PENALTIES = tuple(np.logspace(-6, 5, 45))  # of the sum over rows, as BYOL states them
QUICK_L2 = 1e-4  # of the mean, on unit rows
MOST = 100_000  # rows; a larger set waits for the evaluation proper


def linear(features: Features, *, seed: int = 0) -> Iterator[tuple[str, float]]:
    """Yields ("linear/NAME", the set's metric), ("linear/NAME/top5", ...) and the penalty, a row's share of it.

    Args:
        features: of the set; without validation images, a fifth of each class is held out for the choice.
        seed: of that fifth.
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
    yield from merits("linear", features, probe.scores(test.raw), test.labels)
    yield f"linear/{features.name}/l2", probe.l2


def quick_linear(features: Features) -> Iterator[tuple[str, float]]:
    """Yields ("linear/NAME", top-1 accuracy in [0, 1]) at one fixed penalty; nothing for a set that is too large."""
    if len(features.train.raw) <= MOST:
        probe = fit_linear_probe(
            features.train.unit(),
            features.train.labels,
            classes=range(len(features.classes)),
            l2=QUICK_L2,
            device=features.device,
        )
        yield f"linear/{features.name}", top_k_accuracy(probe.scores(features.test.unit()), features.test.labels)
