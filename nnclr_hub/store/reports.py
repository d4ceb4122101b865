"""What stores report: the state of a collection, its changes, and the results of checks and repairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nnclr_hub.store.spec import CollectionSpec

MIN_RECALL = 0.9


@dataclass(frozen=True)
class CollectionInfo:
    """The state of a collection.

    count: number of items.
    durable_seq: number of the last change on disk.
    indexed_seq: number of the last change that searches see.
    state: "ready"; "building", with how far; "degraded", "read-only" or "damaged", with the reason.
    index: the kind of index that answers searches now; "closed" for a closed collection, "none" for a damaged one.
    recall_estimate: share of the ten nearest items that searches find, measured on a sample; 1.0 for an exact index,
        None if it is unknown.
    """

    name: str
    spec: CollectionSpec
    count: int
    durable_seq: int
    indexed_seq: int
    state: str
    index: str = "flat"
    recall_estimate: float | None = None


@dataclass(frozen=True)
class Statistics:
    """Numbers of an open collection for monitoring, which cost neither a query nor a lock.

    items, durable_seq, indexed_seq, index, state: as in `CollectionInfo`.
    index_bytes: approximate memory of the index.
    file_bytes: size of the collection's file and its log on disk.
    disk_free: bytes that are free on that disk.
    commits: number of commits since the collection was opened.
    commit_seconds: duration of the last commit; 0.0 before the first.
    """

    items: int
    durable_seq: int
    indexed_seq: int
    index: str
    state: str
    index_bytes: int = 0
    file_bytes: int = 0
    disk_free: int = 0
    commits: int = 0
    commit_seconds: float = 0.0


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`.

    items: number of vectors that were read back.
    damaged: ids that fail a checksum, or whose metadata is not a JSON object.
    parts: for each of them what is damaged: "vector", "metadata", "id", or "id, metadata or thumbnail" if only their
        common checksum is wrong; empty if the store does not say.
    missing: ids that the index lacks.
    disagreements: ids of the sample for which the index returns other scores than an exhaustive search.
    recall: share of the sample's ten nearest that the index finds; an approximate one may miss a few.
    """

    items: int
    damaged: tuple[str, ...]
    disagreements: tuple[str, ...]
    missing: tuple[str, ...] = ()
    recall: float = 1.0
    parts: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong and the recall is at least 0.9."""
        return not self.damaged and not self.disagreements and not self.missing and self.recall >= MIN_RECALL


@dataclass(frozen=True)
class RepairReport:
    """The result of `repair`.

    items: number of items in the collection afterwards.
    removed: ids that were removed because their vector or their metadata was damaged.
    kept_in: file with what could be read of their metadata; None if nothing was removed.
    """

    items: int
    removed: tuple[str, ...]
    kept_in: str | None = None


@dataclass(frozen=True)
class SalvageReport:
    """The result of `salvage`.

    saved: number of items in the new file.
    lost: ids of items that certainly existed and could not be saved; "row N" where the id is unknown.
    suspected: number of unreadable rows that may have held an item.
    thumbnails: number of items that were saved without a thumbnail that they may have had.
    original: path of the damaged file.
    """

    saved: int
    lost: tuple[str, ...]
    suspected: int
    thumbnails: int
    original: str

    @property
    def complete(self) -> bool:
        """Whether every item was saved."""
        return not self.lost and not self.suspected


@dataclass(frozen=True)
class Change:
    """One change of an item. An upsert says nothing of its content, which `Collection.get` returns.

    seq: number of the change.
    commit: number of the last change of the same commit. A request is always in one commit.
    at: time of the commit, seconds since 1970.
    """

    seq: int
    op: Literal["upsert", "delete"]
    id: str
    commit: int
    at: float


@dataclass(frozen=True)
class ChangePage:
    """Part of the log of changes.

    changes: in their order; of each item only the last one of a commit.
    next: the number to continue after, although there may be no change with that number.
    last: number of the collection's last change.
    log: identifies the log that the numbers belong to; a collection that is created again or restored has another.
    """

    changes: list[Change]
    next: int
    last: int
    log: str = ""
