"""The values of a table for the items of a collection.

found = table_values(collection, read_rows(LabelTable(Path("labels.csv"))))
bench.update_each("photos", found.values, by_path=True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.checks import is_item_id
from nnclr_hub.store.facets import MAX_VALUES, Counts, count_values
from nnclr_hub.store.pages import pages
from nnclr_hub.store.where import value_of
from nnclr_hub.table_rows import LABEL, UNCERTAIN, Matched, Named, TableRows

AT_ONCE = 1000  # ids in one request


@dataclass(frozen=True)
class TableValues:
    """What a table says about the items of a collection.

    values: by id, the value of each metadata key or path; items whose cells are empty have none.
    matched: number of items that rows name.
    unmatched_rows: the ids or paths of rows that name no item.
    unmatched_items: number of items without a row.
    """

    values: dict[str, dict[str, Any]]
    matched: int
    unmatched_rows: tuple[str, ...]
    unmatched_items: int


def table_values(collection: Collection, rows: TableRows, key: str = LABEL) -> TableValues:
    """Return the values of a table for the items that it names, as the type that the existing values have.

    Args:
        key: metadata key of labels.
    """
    found = match_items(collection, rows)
    keys = {column: key if column == LABEL else column for column in rows.rows[0].cells if column != UNCERTAIN}
    known = _existing_values(collection, list(keys.values()))
    values: dict[str, dict[str, Any]] = {}
    for id, cells in found.cells.items():
        for column, own in keys.items():
            if made := [typed(cell, known[own]) for cell in cells[column]]:
                values.setdefault(id, {})[own] = made if column in rows.several else made[0]
    lost = tuple(row.path for row in found.lost)
    return TableValues(values, len(found.cells), lost, max(0, collection.count() - len(found.cells)))


def _existing_values(collection: Collection, keys: Sequence[str]) -> dict[str, list[Any]]:
    """Return the most frequent scalars under metadata keys by key, without null; `facets` does not work on Milvus."""
    counts = {key: Counts() for key in keys}
    for items in pages(collection, with_vector=False):
        for key in keys:
            count_values(counts[key], [value_of(item.metadata, key) for item in items])
    ranked = {key: sorted(found, key=lambda name, found=found: -found[name]) for key, found in counts.items()}
    return {key: [value for _, value in names if value is not None][:MAX_VALUES] for key, names in ranked.items()}


def match_items(collection: Collection, rows: TableRows) -> Matched[str]:
    """Find the items that rows name, by id; see `TableRows.match` and `TableRows.check` for errors."""
    ids = [row.id for row in rows.rows if is_item_id(row.id)]
    found = rows.match(named_item(item) for some in batches(ids, AT_ONCE) for item in collection.get(some))
    if not found.cells:  # no row has the id of an item
        found = rows.match(named_item(item) for items in pages(collection, with_vector=False) for item in items)
    return rows.check(found, collection.name)


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
