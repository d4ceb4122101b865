"""In what one collection differs from another that is to hold the same items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.pages import pages

PAGE = 1000


@dataclass(frozen=True)
class Change:
    """What would have to be done for one item.

    passed: how many items of the model were passed so far.
    metadata: to store the item with; None: to delete it.
    """

    passed: int
    id: str
    metadata: Mapping[str, Any] | None


def differences(model: Collection, copy: Collection) -> Iterator[Change]:
    """Items that the copy lacks, has with other metadata, or has too many, in the order of their ids.

    Both are read page by page, so what is stored or deleted meanwhile, behind the last change, does no harm.
    """
    theirs = _walk(copy)
    other = next(theirs, None)
    passed = 0
    for item in _walk(model):
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
