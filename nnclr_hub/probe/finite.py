"""Numbers that are numbers: one row of NaN would spoil every average that it enters."""

from __future__ import annotations

import numpy as np

from nnclr_hub.errors import InvalidRequest

PIECE = 1 << 24  # numbers looked at together


def require_finite(features: np.ndarray) -> None:
    """Looks at (N, D) rows piece by piece.

    Raises:
        InvalidRequest: names the first row that is not finite, and how many there are.
    """
    rows = max(1, PIECE // max(1, features.shape[1]))
    bad = [
        start + place
        for start in range(0, len(features), rows)
        for place in np.flatnonzero(~np.isfinite(features[start : start + rows]).all(axis=1))
    ]
    if bad:
        raise InvalidRequest(f"Features must be finite numbers: row {bad[0]} is not, nor are {len(bad) - 1} others.")
