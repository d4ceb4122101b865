"""What looking after a collection came to."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_RECALL = 0.9


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found; all is well when the lists are empty and the recall is not below 0.9.

    items: vectors read back.
    damaged: ids whose vector no longer has its checksum.
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
    removed: ids that had to go, because their vector was damaged; their metadata lie in the file `kept_in`.
    """

    items: int
    removed: tuple[str, ...]
    kept_in: str | None = None
