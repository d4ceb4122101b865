"""A check for NaN and infinity: one such row would spoil every average."""

from __future__ import annotations

import numpy as np

from nnclr_hub.errors import InvalidRequest

PIECE = 1 << 24  # numbers checked at a time


def require_finite(features: np.ndarray) -> None:
    """Check rows (N, D) for NaN and infinity, piece by piece.

    Raises:
        InvalidRequest: with the first such row and their number.
    """
    rows = max(1, PIECE // max(1, features.shape[1]))
    bad = [
        start + place
        for start in range(0, len(features), rows)
        for place in np.flatnonzero(~np.isfinite(features[start : start + rows]).all(axis=1))
    ]
    if bad:
        raise InvalidRequest(
            f"Features must be finite: {len(bad)} rows contain NaN or infinity, the first is row {bad[0]}."
        )
