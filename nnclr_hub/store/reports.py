"""What stores report: the state of a collection, its changes, and the results of checks and repairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nnclr_hub.store.spec import CollectionSpec

MIN_RECALL = 0.9


@dataclass(frozen=True)
class CollectionInfo:
    """The state of a collection."""

    name: str
    spec: CollectionSpec
    count: int  # items
    durable_seq: int  # the last change on disk
    indexed_seq: int  # the last change that searches see
    state: str  # "ready"; "building", with how far; "degraded", "read-only" or "damaged", with the reason
    # the kind of index that answers searches now; "closed" for a closed collection, "none" for a damaged one
    index: str = "flat"
    # share of the ten nearest items that searches find, measured on a sample; 1.0 for an exact index
    recall_estimate: float | None = None
    vectors_seq: int = 0  # the last change that stored or deleted items; later ones edited metadata only
    bytes: int | None = None  # of the collection's file and its log; None if unknown, as for Milvus


@dataclass(frozen=True)
class Statistics:
    """Numbers of an open collection for monitoring, which cost neither a query nor a lock."""

    items: int
    durable_seq: int
    indexed_seq: int
    index: str
    state: str
    index_bytes: int = 0  # approximate memory of the index
    file_bytes: int = 0  # the collection's file and its log
    disk_free: int = 0  # bytes
    commits: int = 0  # since the collection was opened
    commit_seconds: float = 0.0  # duration of the last commit; 0.0 before the first


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`."""

    items: int
    damaged: tuple[str, ...]  # ids that fail a checksum, or whose metadata is not a JSON object
    disagreements: tuple[str, ...]  # ids of the sample for which the index returns other scores than exact search
    missing: tuple[str, ...] = ()  # ids that the index lacks
    recall: float = 1.0  # share of the sample's ten nearest that the index finds; an approximate one may miss a few
    # for each id of `damaged`: "vector", "metadata", "id", or "id, metadata or thumbnail" if only their common checksum
    # is wrong
    parts: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong and the recall is at least 0.9."""
        return not self.damaged and not self.disagreements and not self.missing and self.recall >= MIN_RECALL


@dataclass(frozen=True)
class RepairReport:
    """The result of `repair`."""

    items: int  # in the collection afterwards
    removed: tuple[str, ...]  # ids of items whose vector or metadata was damaged
    kept_in: str | None = None  # file with what could be read of their metadata


@dataclass(frozen=True)
class SalvageReport:
    """The result of `salvage`."""

    saved: int  # items in the new file
    lost: tuple[str, ...]  # ids of items that certainly existed; "row N" where the id is unknown
    suspected: int  # unreadable rows that may have held an item
    thumbnails: int  # items that were saved without a thumbnail that they may have had
    original: str  # path of the damaged file

    @property
    def complete(self) -> bool:
        """Whether every item was saved."""
        return not self.lost and not self.suspected


@dataclass(frozen=True)
class Change:
    """One change of an item. An upsert says nothing of its content, which `Collection.get` returns."""

    seq: int
    op: Literal["upsert", "delete"]
    id: str
    commit: int  # the last change of the same commit; a request is always in one commit
    at: float  # time of the commit, seconds since 1970


@dataclass(frozen=True)
class ChangePage:
    """Part of the log of changes."""

    changes: list[Change]  # in their order; of each item only the last one of a commit
    next: int  # the number to continue after, although there may be no change with that number
    last: int  # the collection's last change
    log: str = ""  # identifies the log; a collection that is created again or restored has another
