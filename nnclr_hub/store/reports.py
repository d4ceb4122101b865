"""What looking after a collection came to."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_RECALL = 0.9


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found; all is well when the lists are empty and the recall is not below 0.9.

    items: vectors read back.
    damaged: ids whose vector no longer has its checksum, or whose metadata are no JSON object any more.
    missing: ids that the index lacks.
    disagreements: ids of the sample for which the index gives other scores than an exhaustive search.
    recall: share of the sample's ten nearest that the index finds; an approximate one may miss a few.
    """

    items: int
    damaged: tuple[str, ...]
    disagreements: tuple[str, ...]
    missing: tuple[str, ...] = ()
    recall: float = 1.0

    @property
    def ok(self) -> bool:
        return not self.damaged and not self.disagreements and not self.missing and self.recall >= LEAST_RECALL


@dataclass(frozen=True)
class RepairReport:
    """What `repair` did.

    items: how many the collection holds now.
    removed: ids that had to go, because their vector or their metadata were damaged; what is left of the metadata
        lies in the file `kept_in`.
    """

    items: int
    removed: tuple[str, ...]
    kept_in: str | None = None


@dataclass(frozen=True)
class SalvageReport:
    """What could be read of a damaged file.

    saved: items in the new file.
    lost: ids of items that are known to have been there, as far as their ids are known, else "row N".
    suspected: rows of which nothing can be read, so that nobody can say whether they held an item.
    thumbnails: items that were saved without a thumbnail that they may have had.
    original: where the damaged file lies now.
    """

    saved: int
    lost: tuple[str, ...]
    suspected: int
    thumbnails: int
    original: str

    @property
    def complete(self) -> bool:
        return not self.lost and not self.suspected
