"""The difference between a collection and a copy that should hold the same items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.pages import pages

PAGE = 1000


@dataclass(frozen=True)
class Change:
    """What must be done for one item of the copy.

    passed: how many items of the original were compared so far.
    metadata: store the item with it; None: delete the item.
    """

    passed: int
    id: str
    metadata: Mapping[str, Any] | None


def differences(original: Collection, copy: Collection) -> Iterator[Change]:
    """Yield the items that the copy lacks, has with other metadata, or should not have, in the order of their ids.

    Both are read page by page, so items before the last change may be stored or deleted during the iteration.
    """
    theirs = _walk(copy)
    other = next(theirs, None)
    passed = 0
    for item in _walk(original):
        while other is not None and other.id < item.id:
            yield Change(passed, other.id, None)
            other = next(theirs, None)
        passed += 1
        if other is None or other.id != item.id:
            yield Change(passed, item.id, item.metadata)
            continue
        if other.metadata != item.metadata:
            yield Change(passed, item.id, item.metadata)
        other = next(theirs, None)
    while other is not None:
        yield Change(passed, other.id, None)
        other = next(theirs, None)


def _walk(collection: Collection) -> Iterator[Item]:
    for items in pages(collection, limit=PAGE, with_vector=False):
        yield from items
