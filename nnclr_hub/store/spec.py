"""The specification of a collection: vectors of one length, by one encoder, compared and stored in one way.

spec = CollectionSpec(dim=256, metric="cosine", indexed=("label",))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, Self, get_args

import numpy as np

from nnclr_hub.errors import FingerprintMismatch, InvalidRequest
from nnclr_hub.store.index_kinds import AUTO, INDEX_KINDS, IndexName

Metric = Literal["cosine", "dot", "l2"]
Precision = Literal["f32", "f16"]
MAX_DIM = 65_536
MAX_INDEXED = 32


class Embeds(Protocol):
    """The attributes of an embedder that a collection depends on."""

    @property
    def name(self) -> str: ...
    @property
    def embed_dim(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...


@dataclass(frozen=True)
class CollectionSpec:
    """The contents of a collection, fixed when it is created.

    dim: D, length of its vectors.
    metric: "cosine" (vectors are stored normalized), "dot" or "l2".
    fingerprint: of the encoder whose vectors it holds; "" for vectors of unknown origin.
    model: source of that encoder.
    indexed: metadata keys with an index for filters.
    index: kind of index, see `store.index_kinds`; "auto" changes it with size and memory as the collection grows.
    precision: of the stored vectors, "f32" or "f16", which takes half the space.
    """

    dim: int
    metric: Metric = "cosine"
    fingerprint: str = ""
    model: str = ""
    indexed: tuple[str, ...] = ("label",)
    index: IndexName = AUTO
    precision: Precision = "f32"

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int | np.integer):
            raise InvalidRequest(f"dim must be a whole number, got {self.dim!r}.")
        object.__setattr__(self, "dim", int(self.dim))
        if not 1 <= self.dim <= MAX_DIM:
            raise InvalidRequest(f"dim must be between 1 and {MAX_DIM}, got {self.dim}.")
        choices = {"metric": get_args(Metric), "index": (AUTO, *INDEX_KINDS), "precision": get_args(Precision)}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidRequest(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")
        if not isinstance(self.indexed, list | tuple | set | frozenset) or len(self.indexed) > MAX_INDEXED:
            raise InvalidRequest(
                f"indexed must be a list of at most {MAX_INDEXED} metadata keys, got {self.indexed!r:.80}."
            )
        object.__setattr__(self, "indexed", tuple(dict.fromkeys(self.indexed)))

    @classmethod
    def of(cls, embedder: Embeds) -> Self:
        """Return the specification for an embedder's vectors."""
        return cls(embedder.embed_dim, fingerprint=embedder.fingerprint, model=embedder.name)

    def check(self, embedder: Embeds, collection: str) -> None:
        """Refuse an embedder whose vectors cannot be compared with those of the collection.

        Raises:
            FingerprintMismatch: the message names the next step.
        """
        if self.fingerprint and embedder.fingerprint != self.fingerprint:
            raise FingerprintMismatch(
                f"Collection {collection!r} holds vectors of {self.model or 'another encoder'} "
                f"({self.fingerprint[:8]}), not of {embedder.name} ({embedder.fingerprint[:8]}). Use the collection's "
                f"model, or move it to this one with `nnclr store reembed {collection} --model {embedder.name}`."
            )
