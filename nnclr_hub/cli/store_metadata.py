"""nnclr store set, delete, facets, indexed: the metadata of items."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from nnclr_hub.cli.place import Place, on_store
from nnclr_hub.cli.stores import Name
from nnclr_hub.cli.verbs import Json, confirm, err, out, parse_where, print_json
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.table_rows import LabelTable, read_rows

Ids = Annotated[list[str] | None, typer.Option("--id", help="Id of an item. Repeatable.")]
From = Annotated[
    Path | None,
    typer.Option("--from", help="CSV that names items in its column id or path, such as a table of `nnclr inspect`."),
]
PathColumn = Annotated[str | None, typer.Option("--path-column", help="Column of --from with ids or paths.")]
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
        typer.Option(
            "--column",
            help="With --from: write this column, as the type that the values of the key have, or else as text; "
            "KEY=COLUMN for another key. Repeatable.",
        ),
    ] = [],  # noqa: B006
    path_column: PathColumn = None,
    where: Where = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace all metadata instead of merging.")] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Change the metadata of items; vectors and the index stay as they are.

    Example: nnclr store set photos '{"label": "cat", "draft": null}' --id tom --id felix

    Example: nnclr store set photos --from report/suspect_labels.csv --column label

    Example: nnclr store set photos --from excel.csv --path-column Datei --column label=Art
    """
    from nnclr_hub.workbench.key_paths import patches_of
    from nnclr_hub.workbench.metadata_keys import HASHES
    from nnclr_hub.workbench.table_items import table_values

    counts: dict[str, int] = {}
    if (metadata is None) == (not columns):
        raise InvalidRequest("Give METADATA, or --from FILE with --column; exactly one of them.")
    if columns and (table is None or ids is not None or where is not None or replace):
        raise InvalidRequest("--column needs --from, and neither --id, --where nor --replace.")
    if columns and table is not None:
        rows = read_rows(LabelTable(table, path_column=path_column), columns)
        with place.opened() as there:
            collection: Any = there.get(name)
            found = table_values(collection, rows)
            updated = collection.update_each(patches_of(collection, found.values)[0], keep=HASHES)
        counts = {"unmatched_rows": len(found.unmatched_rows), "unmatched_items": found.unmatched_items}
    else:
        try:
            patch = json.loads(metadata or "")
        except ValueError as error:
            form = f"give the table with --from {metadata}" if str(metadata).endswith(".csv") else ""
            form = form or 'write it like \'{"label": "cat"}\''
            raise InvalidRequest(f"METADATA is not JSON ({error}); {form}.") from error
        with place.opened() as there:
            chosen = _chosen(there.get(name), ids, where, table, path_column)
            updated = there.get(name).update_metadata(patch, **chosen, replace=replace, keep=HASHES)
    if as_json:
        print_json({"collection": name, "updated": updated, **counts})
        return
    rest = f"; {counts['unmatched_items']} items have no row" if counts else _unknown(ids, updated)
    out.print(f"{name}: metadata of {updated} items set{rest}")


def delete(
    name: Name,
    ids: Ids = None,
    table: From = None,
    path_column: PathColumn = None,
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
    with place.opened() as there:
        collection = there.get(name)
        chosen = _chosen(collection, ids, where, table, path_column)
        if "where" in chosen and not yes and not as_json:
            number = collection.count(chosen["where"])
            confirm(f"Delete {number} items of {name}?")
        deleted = collection.delete(**chosen)
    if as_json:
        print_json({"collection": name, "deleted": deleted})
        return
    out.print(f"{name}: {deleted} items deleted{_unknown(ids, deleted)}")


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
        table = Table(box=None, header_style="bold", title=f"{key}: {one.items} items", title_justify="left")
        table.add_column("value", overflow="fold")
        table.add_column("items", justify="right")
        for value, number in one.values:
            table.add_row(value if isinstance(value, str) else json.dumps(value), f"{number:,}")
        out.print(table)
        if one.distinct > len(one.values):
            err.print(f"{one.distinct - len(one.values)} further values; --limit shows more.")


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

    In Milvus, filters work with indexed keys only.

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
    out.print(f"{name}: {', '.join(known) or 'no key'} indexed")


def _chosen(
    collection: Any, ids: list[str] | None, where: str | None, table: Path | None, path_column: str | None
) -> dict[str, Any]:
    if sum(one is not None for one in (ids, where, table)) != 1:
        raise InvalidRequest("Choose items by --id, repeated as needed, by --from or by --where; give exactly one.")
    if where is not None:
        return {"where": parse_where(where)}
    if table is None:
        return {"ids": ids}
    from nnclr_hub.workbench.table_items import match_items

    return {"ids": list(match_items(collection, read_rows(LabelTable(table, path_column=path_column), [])).cells)}


def _unknown(ids: list[str] | None, found: int) -> str:
    """Return how many of the ids no item has, to append to a report."""
    unknown = len(set(ids or ())) - found
    return f"; {unknown} ids do not exist" if ids and unknown else ""
