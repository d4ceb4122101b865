"""Embedder: what turns pictures into vectors, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np
from PIL import Image
from torch import Tensor

from nnclr_hub.errors import ImageError

if TYPE_CHECKING:
    from nnclr_hub.encoder.attention import AttentionMap, Query

ImageLike = Path | str | bytes | Image.Image | np.ndarray


class Embedder(Protocol):
    """An encoder, or a server's engine around one.

    name: the source it was loaded from.
    fingerprint: hash of weights and preprocessing; equal fingerprints give comparable vectors.
    embed_dim: D.
    """

    name: str

    @property
    def fingerprint(self) -> str: ...

    @property
    def embed_dim(self) -> int: ...

    def embed_each(self, images: Iterable[ImageLike] | Tensor) -> list[np.ndarray | ImageError]:
        """One entry a picture: its (D,) float32 unit vector, or why it has none."""
        ...

    def embed(self, images: Iterable[ImageLike] | Tensor) -> np.ndarray:
        """(N, D) float32 unit rows; raises the first ImageError."""
        ...

    def tokens(self, images: Iterable[ImageLike] | Tensor) -> np.ndarray:
        """(N, h, w, D) float32, the feature map before pooling; raises the first ImageError."""
        ...

    @overload
    def attention(
        self,
        image: ImageLike,
        query: Query | None = None,
        target: ImageLike | None = None,
        similarity: str = "dot",
        head: int | None = None,
        threshold: float | None = None,
        max_side: int = 1024,
    ) -> AttentionMap: ...

    @overload
    def attention(
        self,
        image: ImageLike,
        query: Query | None = None,
        *,
        target: list[Any] | tuple[Any, ...],
        similarity: str = "dot",
        head: int | None = None,
        threshold: float | None = None,
        max_side: int = 1024,
    ) -> list[AttentionMap]: ...

    def attention(
        self,
        image: ImageLike,
        query: Query | None = None,
        target: ImageLike | list[Any] | tuple[Any, ...] | None = None,
        similarity: str = "dot",
        head: int | None = None,
        threshold: float | None = None,
        max_side: int = 1024,
    ) -> AttentionMap | list[AttentionMap]:
        """What it looks at: the map of the image or of the one target, a list for a list; see `Encoder.attention`."""
        ...
