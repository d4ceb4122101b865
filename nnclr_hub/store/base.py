"""What every store offers, and the words it speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np

from nnclr_hub.store.records import Records
from nnclr_hub.store.reports import RepairReport, VerifyReport
from nnclr_hub.store.spec import CollectionSpec, Embeds

Where = Mapping[str, Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Item:
    """One entry of a collection.

    id: [A-Za-z0-9._~-], 1 to 128 characters.
    vector: (D,) float32.
    metadata: JSON values by key, at most 64 KiB as JSON.
    thumbnail: JPEG bytes to show, at most 32 KiB, or None.
    """

    id: str
    vector: np.ndarray
    metadata: Mapping[str, Any] = field(default_factory=dict)
    thumbnail: bytes | None = None


@dataclass(frozen=True)
class Match:
    """One neighbor; a higher score is nearer: cosine, dot product, or minus the L2 distance."""

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
    state: "ready"; "degraded", "read-only" or "damaged", with the reason.
    index: the kind of index that answers searches now; "closed" while the collection is, "none" if it is damaged.
    """

    name: str
    spec: CollectionSpec
    count: int
    durable_seq: int
    indexed_seq: int
    state: str
    index: str = "flat"


class Collection(Protocol):
    """A named set of items under one specification."""

    name: str
    spec: CollectionSpec

    def upsert(self, items: Sequence[Item]) -> int:
        """Adds items or replaces those of the same id, all or none; returns the number of the change when durable.

        Raises:
            InvalidRequest: an item is not possible; names it.
            DiskFull, StoreReadOnly: nothing was written.
        """
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

    def scroll(
        self, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
    ) -> Page:
        """Items in the order of their ids, without thumbnails; the cursor is the last id of the page before.

        Args:
            cursor: of the page before; None: the first page.
            limit: 1 to 10,000.
            where: only items that pass.
            with_vector: False: items carry an empty vector (0,), which is much faster.
        """
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
        effort: int | None = None,
    ) -> list[Match]:
        """The k nearest items, best first; fewer only if fewer exist.

        Args:
            vector: (D,) float32.
            k: 1 to 10,000.
            where: only items that pass; see `store.where`.
            exact: compare with every item.
            score_threshold: leave out matches that score lower.
            with_vector: matches carry their vectors.
            effort: how far an approximate index looks (efSearch or nprobe); None: as far as it was found to need.
        """
        ...

    def search_batch(
        self,
        vectors: np.ndarray,
        k: int = 10,
        where: Where | None = None,
        *,
        exact: bool = False,
        score_threshold: float | None = None,
        with_vector: bool = False,
        effort: int | None = None,
    ) -> list[list[Match]]:
        """`search` for each row of vectors (n, D), several at a time."""
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

    def compact(self, progress: Progress = lambda done, total: None) -> None:
        """Builds the index anew without what was deleted; searches and writes go on."""
        ...

    def verify(self, progress: Progress = lambda done, total: None) -> VerifyReport:
        """Reads every vector back and compares the index with an exhaustive search on a sample."""
        ...

    def repair(self, progress: Progress = lambda done, total: None) -> RepairReport:
        """Takes out what is damaged, keeping its metadata beside the store, and builds the index anew."""
        ...


class VectorStore(Protocol):
    """Collections by name, and aliases for them; `records` for what is kept beside them."""

    records: Records
    read_only: bool  # whatever would change something raises OpenedForReading
    single_writer: bool  # no other process writes to it as long as this one does

    def create(self, name: str, spec: CollectionSpec) -> Collection:
        """A new, empty collection; CollectionExists if the name is taken by one or by an alias."""
        ...

    def get(self, name: str) -> Collection:
        """The collection of that name or alias; CollectionNotFound names those that exist."""
        ...

    def drop(self, name: str) -> None:
        """Deletes a collection with everything in it and the aliases that mean it."""
        ...

    def rename(self, name: str, to: str) -> None:
        """Gives a collection another name; its aliases go with it."""
        ...

    def list(self) -> list[CollectionInfo]:
        """How each collection stands, by name."""
        ...

    def alias(self, alias: str, name: str) -> None:
        """Makes `alias` mean a collection, whatever it meant before; CollectionExists if a collection is called so."""
        ...

    def unalias(self, alias: str) -> None:
        """Forgets an alias; CollectionNotFound if there is none."""
        ...

    def aliases(self) -> dict[str, str]:
        """Names of collections by alias."""
        ...

    def promote(self, name: str, alias: str) -> str | None:
        """Makes `alias` mean the collection `name`, in one step for whoever asks.

        Other aliases of what went by `alias` mean `name` from then on as well, except `...~next`: of one in the making.

        Returns:
            The free name, `alias.old`, `alias.old2`, ..., of a collection that itself was called `alias`; else None.
        """
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
