"""Write the values of a table to the items that its rows name, under the keys by which filters read them.

found = table_patches(collection, read_rows(LabelTable(Path("labels.csv"))))
collection.update_each(found.patches)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.checks import is_item_id
from nnclr_hub.store.facets import MAX_VALUES
from nnclr_hub.store.pages import pages
from nnclr_hub.table_rows import LABEL, UNCERTAIN, Matched, Named, TableRows
from nnclr_hub.workbench.key_paths import literal_keys, patch_of

AT_ONCE = 1000  # ids in one request


@dataclass(frozen=True)
class TablePatches:
    """What a table changes.

    values: by id, the value of each metadata key.
    patches: the same as merge patches.
    matched: number of items that rows name, with a value or not.
    unmatched_rows: the ids or paths of rows that name no item.
    unmatched_items: number of items without a row.
    """

    values: dict[str, dict[str, Any]]
    patches: dict[str, dict[str, Any]]
    matched: int
    unmatched_rows: tuple[str, ...]
    unmatched_items: int


def table_patches(collection: Collection, rows: TableRows, key: str = LABEL) -> TablePatches:
    """Return the values of a table for the items that it names; empty cells change nothing.

    Args:
        key: metadata key of labels.

    Raises:
        InvalidRequest: see `TableRows.match`, `patch_of`.
    """
    columns = {column: key if column == LABEL else column for column in rows.rows[0].cells if column != UNCERTAIN}
    firsts = {first for own in columns.values() for first in (own, own.partition(".")[0])}
    held: dict[str, dict[str, Any]] = {}  # of each item, what decides where a value goes

    def named(items: Iterable[Item]) -> Iterator[Named[str]]:
        for item in items:
            own = {first: item.metadata[first] for first in firsts if first in item.metadata}
            if len(firsts) > len(columns) or any(isinstance(value, Mapping) for value in own.values()):
                held[item.id] = own
            yield named_item(item)

    found = match_items(collection, rows, named)
    known = {own: _known_values(collection, own) for own in columns.values()}
    values = {
        id: {
            own: [typed(one, known[own]) for one in cells[column]]
            if column in rows.several
            else typed(cells[column][0], known[own])
            for column, own in columns.items()
            if cells[column]
        }
        for id, cells in found.cells.items()
    }
    values = {id: own for id, own in values.items() if own}
    literal = literal_keys(collection, columns.values())
    return TablePatches(
        values,
        {id: patch_of(id, held.get(id, {}), own, literal) for id, own in values.items()},
        len(found.cells),
        tuple(row.path for row in found.lost),
        max(0, collection.count() - len(found.cells)),
    )


def match_items(
    collection: Collection, rows: TableRows, named: Any = lambda items: map(named_item, items)
) -> Matched[str]:
    """Find the items that rows name, by id.

    Args:
        named: turns items into what a row may name; sees each item that is read.

    Raises:
        InvalidRequest: see `TableRows.match`.
    """
    ids = [row.id for row in rows.rows if is_item_id(row.id)]
    found = rows.look_up(one for some in batches(ids, AT_ONCE) for one in named(collection.get(some)))
    if not found.cells:  # no row has the id of an item
        found = rows.look_up(one for items in pages(collection, with_vector=False) for one in named(items))
    rows.check(found, collection.name)
    return found


def named_item(item: Item) -> Named[str]:
    """Return an item as an image that a row may name."""
    path = next((own for key in ("path", "name") if isinstance(own := item.metadata.get(key), str)), "")
    return Named(item.id, str(item.metadata.get("root", "")), path, item.id)


def path_of(item: Item) -> str:
    """Return the path of an item for a table; its id if it has none."""
    path = item.metadata.get("path")
    return path if isinstance(path, str) else item.id


def typed(text: str, known: Sequence[Any]) -> Any:
    """Return the known value that reads like a text, else one of the type that all known values have.

    So a class that is a number stays a number.
    """
    for value in known:
        if _text(value) == text:
            return value
    if known and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        try:
            number = float(text.replace("_", "x"))  # which Python accepts between digits
        except ValueError:
            return text
        return int(number) if number.is_integer() else number if math.isfinite(number) else text
    if known and all(isinstance(value, bool) for value in known) and text in ("true", "false"):
        return text == "true"
    return text


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _known_values(collection: Collection, key: str) -> list[Any]:
    return [value for value, _ in collection.facets([key], limit=MAX_VALUES)[key].values if value is not None]
