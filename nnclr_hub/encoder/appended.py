"""Shapes and colors in addition to what an encoder learned: `NAME+shape`, `NAME+color`, `NAME+shape+color`.

    encoder = load_encoder("nnclr_resnet18_starter+shape")
    encoder.embed(["cat.jpg"])      # (1, 512 + 324) float32, unit rows

A network that saw few images does not describe everything that separates yours. Shapes help with clothing, for example,
and colors with groceries; docs/results/starter.md has the numbers. Feature maps and attention remain those of the
network.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nnclr_hub.encoder.descriptors import PARTS, resized
from nnclr_hub.encoder.features import unit_rows
from nnclr_hub.encoder.preprocessing import EvalTransform
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.sources import split_reading

if TYPE_CHECKING:
    from nnclr_hub.encoder.encoder import Encoder


@dataclass(frozen=True)
class Appended:
    """Parts that are appended to the vectors of a network.

    names: keys of PARTS, in their order there; see `nnclr_hub.hub.sources.split_appended`.
    """

    names: tuple[str, ...]

    @property
    def dim(self) -> int:
        """Number of elements that a vector gains."""
        return sum(PARTS[name].dim for name in self.names)

    def joined_fingerprint(self, fingerprint: str) -> str:
        """Return the fingerprint of the joined vectors, from that of the network."""
        parts = [f"{name}-{PARTS[name].version}" for name in self.names]
        parts += [f"{name}:{PARTS[name].length:g}" for name in self.names if PARTS[name].length != 1]
        return hashlib.sha256("+".join([fingerprint, *parts]).encode()).hexdigest()[:32]

    def join(self, vectors: np.ndarray, crops: np.ndarray, *, unit: bool) -> np.ndarray:
        """Return (N, D + dim) float32 from the network's unit vectors (N, D) and its crops (N, S, S, 3) uint8."""
        images = resized(crops)
        parts = [PARTS[name] for name in self.names]
        joined = np.hstack([vectors, *(unit_rows(part.describe(images)) * part.length for part in parts)])
        return unit_rows(joined) if unit else joined


def append_parts(encoder: Encoder, parts: Appended) -> None:
    """Join the parts to all vectors of this encoder.

    Raises:
        InvalidRequest: its crops are not RGB pixels.
    """
    if encoder.transform.preprocessing.in_chans != 3 or not isinstance(encoder.transform, EvalTransform):
        raise InvalidRequest(
            f"Nothing can be appended to {encoder.name}: its crops are not RGB pixels. Name it without "
            f"+{'+'.join(parts.names)}."
        )
    encoder.appended = parts
    encoder.name = encoder.reading.within("+".join([split_reading(encoder.name)[0], *parts.names]))
