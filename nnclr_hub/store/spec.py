"""What a collection is made for: vectors of one length, by one encoder, compared and kept in one way.

spec = CollectionSpec(dim=256, metric="cosine", indexed=("label",))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, Self, get_args

import numpy as np

from nnclr_hub.errors import FingerprintMismatch, InvalidRequest

Metric = Literal["cosine", "dot", "l2"]
Precision = Literal["f32", "f16"]
IndexKind = Literal["auto", "flat", "hnsw", "ivf", "ivf_pq"]
MAX_DIM = 65_536
MAX_INDEXED = 32


class Embeds(Protocol):
    """As much of an embedder as a collection is bound to."""

    @property
    def name(self) -> str: ...
    @property
    def embed_dim(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...


@dataclass(frozen=True)
class CollectionSpec:
    """What a collection holds, fixed when it is made.

    dim: D, length of its vectors.
    metric: "cosine" (vectors are kept normalized), "dot" or "l2".
    fingerprint: of the encoder whose vectors it holds; "" for vectors of unknown origin.
    model: source of that encoder, for finding it again.
    indexed: metadata keys with an index for filters.
    index: how neighbors are found; "auto" goes by size and memory as the collection grows.
    precision: of the vectors as they are kept, "f32" or, in half the room, "f16".
    """

    dim: int
    metric: Metric = "cosine"
    fingerprint: str = ""
    model: str = ""
    indexed: tuple[str, ...] = ("label",)
    index: IndexKind = "auto"
    precision: Precision = "f32"

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int | np.integer):
            raise InvalidRequest(f"dim={self.dim!r} is not possible: it is a whole number, the length of the vectors.")
        object.__setattr__(self, "dim", int(self.dim))
        if not 1 <= self.dim <= MAX_DIM:
            raise InvalidRequest(f"dim={self.dim} is not possible: vectors have 1 to {MAX_DIM} numbers.")
        for name, kinds in (("metric", Metric), ("index", IndexKind), ("precision", Precision)):
            if getattr(self, name) not in get_args(kinds):
                raise InvalidRequest(f"{name}={getattr(self, name)!r} is none of {', '.join(get_args(kinds))}.")
        if not isinstance(self.indexed, list | tuple | set | frozenset) or len(self.indexed) > MAX_INDEXED:
            raise InvalidRequest(f"indexed={self.indexed!r:.80} is no list of at most {MAX_INDEXED} metadata keys.")
        object.__setattr__(self, "indexed", tuple(dict.fromkeys(self.indexed)))

    @classmethod
    def of(cls, embedder: Embeds) -> Self:
        """The specification for an embedder's vectors."""
        return cls(embedder.embed_dim, fingerprint=embedder.fingerprint, model=embedder.name)

    def check(self, embedder: Embeds, collection: str) -> None:
        """Refuses an embedder whose vectors mean something else.

        Raises:
            FingerprintMismatch: names the way on.
        """
        if self.fingerprint and embedder.fingerprint != self.fingerprint:
            raise FingerprintMismatch(
                f"Collection {collection!r} holds vectors of {self.model or 'another encoder'} "
                f"({self.fingerprint[:8]}), not of {embedder.name} ({embedder.fingerprint[:8]}): use the collection's "
                f"own model, or move it to this one with `nnclr store reembed {collection} --model {embedder.name}`."
            )
