"""nnclr store set, delete, facets, indexed: the metadata of items."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from nnclr_hub.cli.place import Place, on_store
from nnclr_hub.cli.stores import Name
from nnclr_hub.cli.verbs import Json, confirm, err, out, parse_where, print_json
from nnclr_hub.csv_table import read_csv
from nnclr_hub.errors import InvalidRequest

Ids = Annotated[list[str] | None, typer.Option("--id", help="Id of an item. Repeatable.")]
From = Annotated[
    Path | None, typer.Option("--from", help="CSV whose column id has the ids, such as a table of `nnclr inspect`.")
]
Where = Annotated[str | None, typer.Option(help="Filter on metadata, as JSON, instead of ids.")]


def register(group: typer.Typer) -> None:
    """Add the verbs."""
    group.command(name="set")(on_store(set_metadata))
    for verb in (delete, facets, indexed):
        group.command()(on_store(verb))


def set_metadata(
    name: Name,
    metadata: Annotated[str | None, typer.Argument(help="JSON object. null removes a key, objects are merged.")] = None,
    ids: Ids = None,
    table: From = None,
    columns: Annotated[
        list[str],
        typer.Option("--column", help="With --from: write this column, of each item its value as text; repeatable."),
    ] = [],  # noqa: B006
    where: Where = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace all metadata instead of merging.")] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Change the metadata of items; vectors and the index stay as they are.

    Example: nnclr store set photos '{"label": "cat", "draft": null}' --id tom --id felix

    Example: nnclr store set photos --from report/suspect_labels.csv --column label
    """
    from nnclr_hub.workbench.image_record import PIXEL_HASH

    if (metadata is None) == (not columns):
        raise InvalidRequest("Give METADATA, or --from FILE with --column; exactly one of them.")
    if columns and (table is None or ids is not None or where is not None or replace):
        raise InvalidRequest("--column needs --from, and neither --id, --where nor --replace.")
    if columns and table is not None:
        rows = _rows(table)
        if missing := [one for one in columns if one not in rows[0]]:
            raise InvalidRequest(f"{table} has no column {missing[0]}; it has {', '.join(rows[0])}.")
        patches = {row["id"]: {one: row[one] for one in columns} for row in rows}
        chosen: dict[str, Any] = {"ids": list(patches)}
        with place.opened() as there:
            updated = there.get(name).update_each(patches, keep=[PIXEL_HASH])
    else:
        try:
            patch = json.loads(metadata or "")
        except ValueError as error:
            form = f"give the table with --from {metadata}" if str(metadata).endswith(".csv") else ""
            form = form or 'write it like \'{"label": "cat"}\''
            raise InvalidRequest(f"METADATA is not JSON ({error}); {form}.") from error
        chosen = _chosen(ids, where, table)
        with place.opened() as there:
            updated = there.get(name).update_metadata(patch, **chosen, replace=replace, keep=[PIXEL_HASH])
    if as_json:
        print_json({"collection": name, "updated": updated})
        return
    out.print(f"{name}: metadata of {updated} items set{_unknown(chosen.get('ids'), updated)}", markup=False)


def delete(
    name: Name,
    ids: Ids = None,
    table: From = None,
    where: Where = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --where: do not ask.")] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Delete items by ids, or those that pass a filter.

    Example: nnclr store delete photos --where '{"must": [{"key": "draft", "match": true}]}'

    Example: nnclr store delete photos --from report/duplicates.csv
    """
    chosen = _chosen(ids, where, table)
    with place.opened() as there:
        collection = there.get(name)
        if "where" in chosen and not yes and not as_json:
            number = collection.count(chosen["where"])
            confirm(f"Delete {number} items of {name}?")
        deleted = collection.delete(**chosen)
    if as_json:
        print_json({"collection": name, "deleted": deleted})
        return
    out.print(f"{name}: {deleted} items deleted{_unknown(chosen.get('ids'), deleted)}", markup=False)


def facets(
    name: Name,
    keys: Annotated[list[str], typer.Argument(help="Metadata keys, or paths such as camera.model.")],
    where: Where = None,
    limit: Annotated[int, typer.Option(help="Values per key, 1 to 1000.")] = 10,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Count the values of metadata keys. Works while a server uses the store.

    Example: nnclr store facets photos label camera.model
    """
    with place.opened(read_only=True) as there:
        found = there.get(name).facets(keys, parse_where(where), limit)
    if as_json:
        values = {
            key: [{"value": value, "count": number} for value, number in one.values] for key, one in found.items()
        }
        print_json([{**asdict(one), "values": values[key]} for key, one in found.items()])
        return
    for key, one in found.items():
        table = Table(box=None, header_style="bold", title=f"{escape(key)}: {one.items} items", title_justify="left")
        table.add_column("value", overflow="fold")
        table.add_column("items", justify="right")
        for value, number in one.values:
            table.add_row(escape(value if isinstance(value, str) else json.dumps(value)), f"{number:,}")
        out.print(table)
        if one.distinct > len(one.values):
            err.print(f"{one.distinct - len(one.values)} further values; --limit shows more.", markup=False)


def indexed(
    name: Name,
    keys: Annotated[
        list[str] | None, typer.Argument(help="Metadata keys to index instead of the present ones.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Index no key.")] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Show or change which metadata keys are indexed. Filters work with every key; those of others start slower.

    Example: nnclr store indexed photos label camera.model
    """
    if keys and none:
        raise InvalidRequest("Name keys to index, or give --none; not both.")
    with place.opened(read_only=not keys and not none) as there:
        collection = there.get(name)
        if keys or none:
            collection.change_indexed(keys or [])
        known = list(collection.spec.indexed)
    if as_json:
        print_json({"collection": name, "indexed": known})
        return
    out.print(f"{name}: {', '.join(known) or 'no key'} indexed", markup=False)


def _chosen(ids: list[str] | None, where: str | None, table: Path | None) -> dict[str, Any]:
    if sum(one is not None for one in (ids, where, table)) != 1:
        raise InvalidRequest("Choose items by --id, repeated as needed, by --from or by --where; give exactly one.")
    if where is not None:
        return {"where": parse_where(where)}
    return {"ids": [row["id"] for row in _rows(table)] if table is not None else ids}


def _unknown(ids: list[str] | None, found: int) -> str:
    """Return how many of the ids no item has, to append to a report."""
    unknown = len(set(ids or ())) - found
    return f"; {unknown} ids do not exist" if ids and unknown else ""


def _rows(table: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV with a column id.

    Raises:
        InvalidRequest: it cannot be read, or has no such column or no rows.
    """
    columns, rows = read_csv(table, "id")
    if "id" not in columns:
        existing = f"it has {', '.join(columns)}" if columns else "it is empty"
        raise InvalidRequest(f"{table} has no column id ({existing}); give a table with the ids of the items.")
    if not rows:
        raise InvalidRequest(f"{table} has no rows, so nothing is changed; give a table with a row for each item.")
    return rows
