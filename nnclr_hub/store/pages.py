"""All items of a collection, page by page."""

from __future__ import annotations

from collections.abc import Iterator

from nnclr_hub.store.base import Collection, Item, Where


def pages(
    collection: Collection, where: Where | None = None, *, limit: int = 1000, with_vector: bool = True
) -> Iterator[list[Item]]:
    """Yield items in the order of their ids, in lists of 1 to `limit`; see `Collection.scroll`.

    Items may be stored or deleted during the iteration.
    """
    cursor = None
    while True:
        page = collection.scroll(cursor, limit, where, with_vector=with_vector)
        if page.items:
            yield page.items
        cursor = page.cursor
        if cursor is None:
            return
