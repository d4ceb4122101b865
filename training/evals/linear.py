"""A linear classifier on frozen features, quick enough to be asked at each checkpoint.

L-BFGS on the features of the centre crops with one fixed penalty: no crops, no sweep, so not the paper's
linear evaluation, but it ranks encoders as that does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nnclr_hub.probe.linear import fit_linear_probe

from .labelled import Features

L2 = 1e-4  # on unit rows
MOST = 100_000  # rows; a larger set waits for the evaluation proper


def linear(features: Features) -> Iterator[tuple[str, float]]:
    """Yields ("linear/NAME", top-1 accuracy in [0, 1]); nothing for a set that is too large."""
    if len(features.train) <= MOST:
        probe = fit_linear_probe(features.train, features.train_labels, l2=L2)
        predicted = np.array(probe.predict(features.test).labels)
        yield f"linear/{features.name}", float((predicted == features.test_labels).mean())
