"""Embedder: what turns images into vectors, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nnclr_hub.encoder.given import ImageLike
from nnclr_hub.errors import ImageError

if TYPE_CHECKING:  # whoever has no model yet need not wait for torch
    from torch import Tensor

    from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings


class Embedder(Protocol):
    """An encoder, or a server's engine around one.

    name: the source it was loaded from.
    fingerprint: hash of weights and preprocessing; equal fingerprints give comparable vectors.
    embed_dim: D.
    heads: of the last block's attention, where one can be asked for; None: there are none, as in a ResNet.
    """

    name: str

    @property
    def fingerprint(self) -> str: ...

    @property
    def embed_dim(self) -> int: ...

    @property
    def heads(self) -> int | None: ...

    def embed_each(self, images: Iterable[ImageLike] | Tensor) -> list[np.ndarray | ImageError]:
        """One entry an image: its (D,) float32 unit vector, or why it has none."""
        ...

    def embed(self, images: Iterable[ImageLike] | Tensor) -> np.ndarray:
        """(N, D) float32 unit rows; raises the first ImageError."""
        ...

    def tokens(self, images: Iterable[ImageLike] | Tensor) -> np.ndarray:
        """(N, h, w, D) float32, the feature map before pooling; raises the first ImageError."""
        ...

    def look(
        self, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike] = ()
    ) -> list[AttentionMap]:
        """The attention map of an image, or one for each target; see `encoder.attending.Attends`."""
        ...
