"""Embedder: the protocol of everything that turns images into vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nnclr_hub.encoder.preprocessing import ImageLike
from nnclr_hub.errors import ImageError
from nnclr_hub.images.reading import ImageReading

if TYPE_CHECKING:  # programs without a model need not import torch
    from torch import Tensor

    from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings


class Embedder(Protocol):
    """An encoder, or the engine of a server that runs one.

    name: the source that it was loaded from.
    fingerprint: hash of weights and preprocessing; vectors with equal fingerprints are comparable.
    embed_dim: D.
    reading: the page and the channels that it reads of a file.
    heads: number of attention heads that `AttentionSettings.head` selects from; None without [CLS], as in a ResNet.
    """

    name: str

    @property
    def fingerprint(self) -> str: ...

    @property
    def embed_dim(self) -> int: ...

    @property
    def reading(self) -> ImageReading: ...

    @property
    def heads(self) -> int | None: ...

    def embed_each(self, images: Iterable[ImageLike] | Tensor) -> list[np.ndarray | ImageError]:
        """Return a (D,) float32 unit vector per image, or its ImageError."""
        ...

    def embed(self, images: Iterable[ImageLike] | Tensor) -> np.ndarray:
        """Return (N, D) float32 unit rows; raise the first ImageError."""
        ...

    def tokens(self, images: Iterable[ImageLike] | Tensor) -> np.ndarray:
        """Return (N, h, w, D) float32, the feature maps before pooling; raise the first ImageError."""
        ...

    def attention_maps(
        self, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike] = ()
    ) -> list[AttentionMap]:
        """Return the attention map of an image, or one per target; see `Encoder.attention`."""
        ...
