"""What every store offers, and the words it speaks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

import numpy as np

from nnclr_hub.errors import FingerprintMismatch, InvalidRequest

Metric = Literal["cosine", "dot", "l2"]
METRICS = ("cosine", "dot", "l2")
Where = Mapping[str, Any]
_NAME = re.compile(r"[A-Za-z0-9._~-]{1,128}")
MAX_DIM = 65_536


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
    metric: "cosine" (vectors are kept normalised), "dot" or "l2".
    fingerprint: of the encoder whose vectors it holds; "" for vectors of unknown origin.
    model: source of that encoder, for finding it again.
    indexed: metadata keys with an index for filters.
    """

    dim: int
    metric: Metric = "cosine"
    fingerprint: str = ""
    model: str = ""
    indexed: tuple[str, ...] = ("label",)

    def __post_init__(self) -> None:
        if not 1 <= self.dim <= MAX_DIM:
            raise InvalidRequest(f"dim={self.dim} is not possible: vectors have 1 to {MAX_DIM} numbers.")
        if self.metric not in METRICS:
            raise InvalidRequest(f"metric={self.metric!r} is none of {', '.join(METRICS)}.")
        object.__setattr__(self, "indexed", tuple(self.indexed))

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
                f"({self.fingerprint[:8]}), not of {embedder.name} ({embedder.fingerprint[:8]}): "
                "use the collection's own model, or index the pictures into a new collection with this one."
            )


@dataclass(frozen=True)
class Item:
    """One entry of a collection.

    id: [A-Za-z0-9._~-], 1 to 128 characters.
    vector: (D,) float32.
    metadata: JSON values by key.
    thumbnail: JPEG bytes to show, or None.
    """

    id: str
    vector: np.ndarray
    metadata: Mapping[str, Any] = field(default_factory=dict)
    thumbnail: bytes | None = None


@dataclass(frozen=True)
class Match:
    """One neighbour; a higher score is nearer: cosine, dot product, or minus the L2 distance."""

    id: str
    score: float
    metadata: Mapping[str, Any]
    vector: np.ndarray | None = None


@dataclass(frozen=True)
class Page:
    """Part of a listing; cursor is None at the end."""

    items: list[Item]
    cursor: str | None


@dataclass(frozen=True)
class CollectionInfo:
    """How a collection stands.

    durable_seq: number of the last change on disk.
    indexed_seq: number of the last change that searches see.
    state: "ready", or "read-only" with the reason after an I/O error.
    """

    name: str
    spec: CollectionSpec
    count: int
    durable_seq: int
    indexed_seq: int
    state: str


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found; all is well when both lists are empty.

    items: vectors read back.
    damaged: ids whose vector no longer has its checksum.
    disagreements: ids for which the index and an exhaustive search differ.
    """

    items: int
    damaged: tuple[str, ...]
    disagreements: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.damaged and not self.disagreements


class Collection(Protocol):
    """A named set of items under one specification."""

    name: str
    spec: CollectionSpec

    def upsert(self, items: Sequence[Item]) -> int:
        """Adds items or replaces those of the same id; returns, with a number, when they are durable and searchable."""
        ...

    def delete(self, ids: Sequence[str]) -> int:
        """Deletes; returns how many there were."""
        ...

    def get(self, ids: Sequence[str]) -> list[Item]:
        """The items of these ids that exist, in the order asked for, thumbnails included."""
        ...

    def count(self, where: Where | None = None) -> int:
        """How many items there are, or pass the filter."""
        ...

    def scroll(self, cursor: str | None = None, limit: int = 100, where: Where | None = None) -> Page:
        """Items in the order of their ids, without thumbnails."""
        ...

    def search(
        self,
        vector: np.ndarray,
        k: int = 10,
        where: Where | None = None,
        *,
        exact: bool = False,
        score_threshold: float | None = None,
        with_vector: bool = False,
    ) -> list[Match]:
        """The k nearest items, best first; fewer only if fewer exist."""
        ...

    def thumbnail(self, id: str) -> bytes | None:
        """The item's JPEG; None if it has none.

        Raises:
            ItemNotFound: no such item.
        """
        ...

    def info(self) -> CollectionInfo: ...

    def check(self, embedder: Embeds) -> None:
        """Raises FingerprintMismatch unless the embedder's vectors belong here."""
        ...

    def snapshot(self) -> None:
        """Writes the index to disk now, so that the next start is quick."""
        ...

    def verify(self) -> VerifyReport:
        """Reads every vector back and compares the index with an exhaustive search on a sample."""
        ...


class VectorStore(Protocol):
    """Collections by name."""

    def create(self, name: str, spec: CollectionSpec) -> Collection: ...
    def get(self, name: str) -> Collection: ...
    def drop(self, name: str) -> None: ...
    def list(self) -> list[CollectionInfo]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...


def check_name(name: str, what: str) -> str:
    """Returns the name of a collection or item if it may be one.

    Raises:
        InvalidRequest: it may not.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(f"{what} {name!r} is not possible: use 1 to 128 of the characters A-Z a-z 0-9 . _ ~ -")
    return name


def check_vector(vector: np.ndarray, spec: CollectionSpec, what: str) -> np.ndarray:
    """(D,) float32 as the collection keeps it: normalised if the metric is cosine.

    Raises:
        InvalidRequest: another length, NaN or infinity, or zero where a direction is needed.
    """
    try:
        with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, and is refused below
            checked = np.asarray(vector, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"The vector of {what} is no list of numbers.") from error
    if checked.shape != (spec.dim,):
        raise InvalidRequest(f"The vector of {what} has shape {checked.shape}; the collection takes ({spec.dim},).")
    if not np.isfinite(checked).all():
        raise InvalidRequest(f"The vector of {what} holds NaN or infinity.")
    if spec.metric == "cosine":
        length = float(np.linalg.norm(checked.astype(np.float64)))
        if length == 0:
            raise InvalidRequest(f"The vector of {what} is zero, which has no direction to compare by cosine.")
        checked = (checked / length).astype(np.float32)
    return checked
