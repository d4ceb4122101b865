"""The specification of a collection: vectors of one length, by one encoder, compared and stored in one way.

spec = CollectionSpec(dim=256, metric="cosine", indexed=("label",))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Literal, Protocol, Self, get_args

import numpy as np

from nnclr_hub.errors import FingerprintMismatch, InvalidRequest
from nnclr_hub.json_text import is_utf8
from nnclr_hub.store.index_kinds import AUTO, INDEX_KINDS
from nnclr_hub.store.vector_transform import POWERS, Kind

Metric = Literal["cosine", "dot", "l2"]
Precision = Literal["f32", "f16"]
Compared = Literal["auto", Kind]
DISKANN = "diskann"  # an index that only Milvus has
# for schemas, which list the names
if TYPE_CHECKING:
    IndexName = str
else:
    IndexName = Literal[(AUTO, *INDEX_KINDS, DISKANN)]
MAX_DIM = 65_536
MAX_WHITENED = 4096  # whose matrix takes 64 MiB, and about a minute to fit
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
    """The contents of a collection, fixed when it is created."""

    dim: int  # D, length of its vectors
    metric: Metric = "cosine"  # vectors are stored normalized for the cosine
    fingerprint: str = ""  # identifies the encoder whose vectors it holds; "" for vectors of unknown origin
    model: str = ""  # source of that encoder
    indexed: tuple[str, ...] = ("label",)  # metadata keys with an index for filters
    # kind of index, see `store.index_kinds`; "auto" changes it with size and memory as the collection grows. "diskann"
    # needs a Milvus server of version 2.5 or later
    index: IndexName = AUTO
    precision: Precision = "f32"  # in which vectors are stored; "f16" takes half the space
    # What searches compare. "raw": the stored vectors. "center", "half_whiten" or "whiten", for the metric cosine: them
    # after a transform that is fitted on the collection, see `store.vector_transform`. "auto": "half_whiten" for
    # vectors of an encoder where the store can do so, else "raw"; the store decides when it creates the collection
    vectors: Compared = "raw"

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int | np.integer) or not 1 <= self.dim <= MAX_DIM:
            raise InvalidRequest(f"dim must be a whole number between 1 and {MAX_DIM}, got {self.dim!r}.")
        object.__setattr__(self, "dim", int(self.dim))
        for name in ("fingerprint", "model"):
            if not isinstance(value := getattr(self, name), str) or not is_utf8(value):
                raise InvalidRequest(f"{name} must be a text in UTF-8, got {value!r:.150}.")
        choices = {
            "metric": get_args(Metric),
            "index": (AUTO, *INDEX_KINDS, DISKANN),
            "precision": get_args(Precision),
            "vectors": get_args(Compared),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidRequest(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")
        if self.vectors not in (AUTO, "raw") and self.metric != "cosine":
            raise InvalidRequest(f"vectors={self.vectors!r} needs the metric cosine, got {self.metric!r}.")
        if self.vectors in POWERS and self.dim > MAX_WHITENED:
            raise InvalidRequest(
                f"vectors={self.vectors!r} allows at most {MAX_WHITENED} numbers, got {self.dim}; use 'center'."
            )
        is_list = isinstance(self.indexed, list | tuple | set | frozenset)
        if not is_list or len(self.indexed) > MAX_INDEXED or not all(isinstance(key, str) for key in self.indexed):
            raise InvalidRequest(
                f"indexed must be a list of at most {MAX_INDEXED} metadata keys, got {self.indexed!r:.80}."
            )
        object.__setattr__(self, "indexed", tuple(dict.fromkeys(self.indexed)))

    @classmethod
    def of(cls, embedder: Embeds) -> Self:
        """Return the specification for an embedder's vectors, which are compared as the store does best."""
        if not all(hasattr(embedder, name) for name in ("embed_dim", "fingerprint", "name")):
            raise InvalidRequest(
                f"CollectionSpec.of takes an encoder, got {embedder!r:.80}; for other vectors, use CollectionSpec(DIM)."
            )
        return cls(embedder.embed_dim, fingerprint=embedder.fingerprint, model=embedder.name, vectors=AUTO)

    def decided(self, *, transforms: bool) -> Self:
        """Replace "auto" of `vectors`, for a store in a folder, which can transform vectors, or one in Milvus."""
        if transforms and self.index == DISKANN:
            raise InvalidRequest(f"index={DISKANN!r} needs a Milvus server; use 'auto' for a store in a folder.")
        if self.vectors != AUTO:
            return self
        whitens = transforms and self.fingerprint and self.metric == "cosine" and self.dim <= MAX_WHITENED
        return replace(self, vectors="half_whiten" if whitens else "raw")

    def check(self, embedder: Embeds, collection: str, *, reembeds: bool) -> None:
        """Raise FingerprintMismatch if an embedder's vectors cannot be compared with those of the collection.

        `reembeds`: whether the store can re-embed the collection.
        """
        if self.fingerprint and embedder.fingerprint != self.fingerprint:
            names = [(self.model or "").partition("?"), embedder.name.partition("?")]
            step = next_step(collection, embedder.name, reembeds=reembeds)
            if names[0][0] == names[1][0] and names[0] != names[1]:  # thumbnails lack other channels
                step = "index the images into another collection"
            ours, other = self.model or "another encoder", ""
            if ours == embedder.name:  # its weights or its preprocessing have changed since
                ours, other = f"a different version of {ours}", "that version"
            raise FingerprintMismatch(
                f"Collection {collection!r} holds vectors of {ours} ({self.fingerprint[:8]}), not of {embedder.name} "
                f"({embedder.fingerprint[:8]}). Use {other or 'its model'}, or {step}."
            )


def next_step(collection: str, model: str, *, reembeds: bool) -> str:
    """Return what to do to use a collection with another model, as the end of a sentence."""
    if reembeds:
        return f"re-embed it with `nnclr store reembed {collection} --model {quote(model)}`"
    return (
        f"index the images into another one with `nnclr index FOLDER --collection OTHER --model {quote(model)}`, and "
        "use an alias: `nnclr store alias ALIAS OTHER`"
    )
