"""Vectors and matches as requests and answers carry them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import Match


def vector_text(vector: Any) -> str:
    """A vector (D,) as base64 of little-endian float32.

    Raises:
        InvalidRequest: it is no vector.
    """
    row = np.asarray(vector)
    if row.ndim != 1 or row.dtype.kind not in "fiu":
        raise InvalidRequest(f"A vector of shape {row.shape} and type {row.dtype} is not possible: give (D,) floats.")
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def read_vector(told: str | list[float] | None) -> np.ndarray:
    """(D,) float32 of numbers, or of base64 of little-endian float32; (0,) of nothing."""
    if isinstance(told, str):
        return np.frombuffer(base64.b64decode(told), "<f4").astype(np.float32)
    return np.asarray(told or (), np.float32)


def read_matches(told: list[dict[str, Any]]) -> list[Match]:
    """Matches of a search, best first."""
    return [_match(one) for one in told]


def _match(told: dict[str, Any]) -> Match:
    vector = None if told.get("vector") is None else read_vector(told["vector"])
    return Match(told["id"], told["score"], told["metadata"], vector)
