"""The metadata of items: the keys that indexing writes, patches by path, and the values of tables.

patch_of("tom", {"camera": {"model": "X"}}, {"camera.model": "Y"})  # {"camera": {"model": "Y"}}
patch_of("tom", {"camera.model": "X"}, {"camera.model": "Y"})       # {"camera.model": "Y"}

found = table_values(collection, read_rows(LabelTable(Path("labels.csv"))))
bench.update_each("photos", found.values, by_path=True)

The client imports this module, without Pillow.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection as Container
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import ById, Collection, Item
from nnclr_hub.store.checks import is_item_id
from nnclr_hub.store.facets import MAX_VALUES, Counts, count_values
from nnclr_hub.store.where import ABSENT, paths, value_of
from nnclr_hub.table_rows import LABEL, UNCERTAIN, Matched, Named, TableRows

# metadata key of every indexed image: SHA-256 of its size and upright RGB pixels
PIXEL_HASH = "pixel_sha256"
# metadata key of an uploaded image whose file is kept: SHA-256 of the bytes of the file
FILE_HASH = "file_sha256"
HASHES = (PIXEL_HASH, FILE_HASH)  # which no edit of metadata changes
BOX, WINDOW = "box", "window"  # metadata keys of a tile; see `Tile`
OFFSET = "archive_offset"  # metadata key of an image in an archive; see `Source`
PLACE = frozenset({"root", "path", "size", "mtime"})  # in the metadata of all images that indexing sends
OWNED = PLACE | {PIXEL_HASH, FILE_HASH, BOX, WINDOW, OFFSET}  # metadata keys that users do not write
AT_ONCE = 1000  # items that are read at a time


# ---- patches: camera.model is that key, or else `model` in `camera`, as filters read it


def patch_of(
    id: str, metadata: Mapping[str, Any], values: Mapping[str, Any], literal: Container[str] = ()
) -> dict[str, Any]:
    """Return the merge patch that writes values where filters read them: camera.model may be a key, or in `camera`.

    Args:
        id, metadata: id and metadata of the item.
        values: by key or path.
        literal: keys with a dot that an item without a value gets as they are.
    """
    patch: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(held := value_of(metadata, key), Mapping):
            inner = f", such as {key}.{next(iter(held))}" if held else ""
            raise InvalidRequest(f"The key {key!r} of item {id!r} holds an object; choose a key in it{inner}.")
        ways = paths(key)
        way = (key,) if key in metadata or (held is ABSENT and key in literal) else ways[-1]
        at, inside = patch, metadata
        for step in way[:-1]:
            at, inside = at.setdefault(step, {}), inside.get(step) or {}
            if not isinstance(inside, Mapping):
                raise InvalidRequest(
                    f"The key {step!r} of item {id!r} holds {inside!r:.80}, so {key!r} cannot be written; choose "
                    "another key."
                )
            if not isinstance(at, dict):
                break
        if not isinstance(at, dict) or way[-1] in at:
            raise InvalidRequest(f"{key!r} and another key of item {id!r} are one inside the other; write one of them.")
        at[way[-1]] = value
    return patch


def patches_of(
    collection: Collection, values: ById, expected: ById | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]] | None]:
    """Return merge patches, and what they expect, for values by id and key; see `patch_of`."""
    literal: set[str] = set()  # keys with a dot that the collection has as they are, and not as paths in objects
    for key in {key for own in values.values() for key in own if len(paths(key)) > 1}:
        page = collection.scroll(None, 1, {"must": [{"key": key, "exists": True}]}, with_vector=False)
        literal |= {key for item in page.items if key in item.metadata}
    patches = {id: dict(own) for id, own in values.items()}
    conditions = None if expected is None else {id: dict(own) for id, own in expected.items()}
    for ids in batches(values, AT_ONCE):
        for item in collection.get(ids):
            for made in (patches, conditions or {}):
                if item.id in made:
                    made[item.id] = patch_of(item.id, item.metadata, made[item.id], literal)
    return patches, conditions


# ---- tables


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
    columns = rows.rows[0].cells if rows.rows else ()
    keys = {column: key if column == LABEL else column for column in columns if column != UNCERTAIN}
    counts = {own: Counts() for own in keys.values()}
    for items in collection.pages(with_vector=False):  # `facets` does not work on Milvus
        for own, counted in counts.items():
            count_values(counted, [value_of(item.metadata, own) for item in items])
    known: dict[str, list[Any]] = {}  # the most frequent scalars
    for own, counted in counts.items():
        ranked = sorted(counted, key=lambda name, counted=counted: -counted[name])
        known[own] = [value for _, value in ranked if value is not None][:MAX_VALUES]
    values: dict[str, dict[str, Any]] = {}
    for id, cells in found.cells.items():
        for column, own in keys.items():
            if made := [typed(cell, known[own]) for cell in cells[column]]:
                values.setdefault(id, {})[own] = made if column in rows.several else made[0]
    lost = tuple(row.path for row in found.lost)
    return TableValues(values, len(found.cells), lost, max(0, collection.count() - len(found.cells)))


def match_items(collection: Collection, rows: TableRows) -> Matched[str]:
    """Find the items that rows name, by id; see `TableRows.match` and `TableRows.check` for errors."""
    if not rows.rows:
        return Matched({}, ())
    ids = [row.id for row in rows.rows if is_item_id(row.id)]
    found = rows.match(named_item(item) for some in batches(ids, AT_ONCE) for item in collection.get(some))
    if not found.cells:  # no row has the id of an item
        found = rows.match(named_item(item) for items in collection.pages(with_vector=False) for item in items)
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

    So a class that is a number stays a number. Composed and decomposed letters, which look the same, are one text.
    """
    text = unicodedata.normalize("NFC", text)
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
    number = isinstance(value, float) and value.is_integer()
    return str(int(value)) if number else unicodedata.normalize("NFC", str(value))
