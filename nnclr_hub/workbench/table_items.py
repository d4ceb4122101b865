"""Which items of a collection the rows of a table name: by id, by path, or by a path that begins further up.

rows = TableItems(Path("labels.csv"), [("", "cat/a.jpg", "cat"), ("", "dog/b.jpg", "dog")])
for items in pages(collection):
    rows.add(items)
rows.values()               # {"9f86d081": "cat", ...}
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any, Generic, TypeVar

from nnclr_hub.csv_table import name_key
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import Item

log = logging.getLogger(__name__)
Value = TypeVar("Value")


class TableItems(Generic[Value]):
    """The rows of a table.

    Rows name items by id. If no item has one of the ids, they name items by path, and all tiles of an image.

    Args:
        table: its name, for messages.
        rows: id, path and value of each row; "" for a column that it has not.
    """

    def __init__(self, table: object, rows: Iterable[tuple[str, str, Value]]) -> None:
        self._table, self._rows = table, list(rows)
        self._by_id = {id: i for i, (id, _, _) in enumerate(self._rows) if id}
        self._by_path = {name_key(path or id): i for i, (id, path, _) in enumerate(self._rows) if path or id}
        self._with_id: dict[str, int] = {}  # rows by id of an item
        self._with_path: dict[str, int] = {}
        self._roots: dict[int, set[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._with_id)

    def add(self, items: Iterable[Item]) -> None:
        """Look for the rows of items."""
        for item in items:
            if (row := self._by_id.get(item.id)) is not None:
                self._with_id[item.id] = row
            if (name := next(filter(self._by_path.__contains__, _paths(item)), None)) is not None:
                row = self._with_path[item.id] = self._by_path[name]
                self._roots.setdefault(row, set()).add(item.metadata.get("root"))

    def values(self) -> dict[str, Value]:
        """Return the value of each item that a row names, by id, and report the other rows.

        Raises:
            InvalidRequest: no row names an item, or a path names images of several folders.
        """
        found = self._with_id or self._with_path
        used = set(found.values())
        lost = [id or path for i, (id, path, _) in enumerate(self._rows) if i not in used]
        if not found:
            raise InvalidRequest(
                f"No row of {self._table} names an item of the collection, such as {lost[0]}; write ids, or paths as "
                "they were indexed."
            )
        if lost:
            log.warning("%d rows of %s name no item of the collection, such as %s", len(lost), self._table, lost[0])
        for row, roots in self._roots.items() if found is self._with_path else ():
            if len(roots) > 1:
                raise InvalidRequest(
                    f"{self._rows[row][1]} in {self._table} names images of {' and '.join(map(str, roots))}; write "
                    "longer paths, or ids."
                )
        return {id: self._rows[row][2] for id, row in found.items()}


def _paths(item: Item) -> Iterator[str]:
    """Yield the path of an item, with an increasing number of the last parts of its root before it."""
    path = item.metadata.get("path")
    if isinstance(path, str):
        yield (path := name_key(path))
        for part in reversed(PurePosixPath(name_key(str(item.metadata.get("root", "")))).parts):
            yield (path := f"{part.rstrip('/')}/{path}")


def path_of(item: Item) -> str:
    """Return the path of an item for a table; its id if it has none."""
    path = item.metadata.get("path")
    return path if isinstance(path, str) else item.id
