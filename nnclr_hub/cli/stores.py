"""nnclr store list, verify, repair, snapshot, compact, drop, alias, unalias, rename.

The other verbs are in store_contents.py, store_import.py and store_backups.py.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from nnclr_hub.cli.place import Place, on_store
from nnclr_hub.cli.verbs import Json, confirm, err, out, print_json
from nnclr_hub.errors import InvalidRequest, StoreCorrupt

if TYPE_CHECKING:
    from nnclr_hub.store.reports import CollectionInfo, RepairReport, SalvageReport, VerifyReport

group = typer.Typer(no_args_is_help=True, help="Manage a vector store: list, verify, repair, move, rename.")
Name = Annotated[str, typer.Argument(help="Collection or alias.")]
Names = Annotated[list[str] | None, typer.Argument(help="Collections. Default: all.")]
SHOWN = 5  # ids per kind of damage that are listed; the others are only counted


def register(app: typer.Typer) -> None:
    """Add the verb group."""
    app.add_typer(group, name="store")


@group.command(name="list")
@on_store
def list_collections(as_json: Json = False, *, place: Place) -> None:
    """List the collections with their size and state. Works while a server uses the store.

    Example: nnclr store list

    Example: nnclr store list --server http://127.0.0.1:8000
    """
    with place.opened(read_only=True) as there:
        aliases = there.aliases()
        rows = [_row(info, aliases) for info in there.list()]
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, header_style="bold")
    for heading in ("name", "items", "dim", "metric", "index", "state", "aliases", "model"):
        right = heading in ("items", "dim")
        table.add_column(
            heading, justify="right" if right else "left", no_wrap=heading in ("name", "index"), overflow="fold"
        )
    for row in rows:
        late = row["durable_seq"] - row["indexed_seq"]
        state = row["state"] + (f", index {late} changes behind" if late else "")
        metric = row["metric"] if row["vectors"] == "raw" else f"{row['metric']}, {row['vectors']}"
        cells = [row["name"], row["items"], row["dim"], metric, row["index"], state, ", ".join(row["aliases"])]
        model = f"{row['model']} ({row['fingerprint'][:8]})" if row["fingerprint"] else row["model"]
        table.add_row(*(str(one) for one in [*cells, model]))
    out.print(table if rows else "The store is empty; add images with `nnclr index`.")


def _row(info: CollectionInfo, aliases: dict[str, str]) -> dict[str, Any]:
    return {
        "name": info.name,
        "aliases": sorted(alias for alias, name in aliases.items() if name == info.name),
        "items": info.count,
        "dim": info.spec.dim,
        "metric": info.spec.metric,
        "precision": info.spec.precision,
        "vectors": info.spec.vectors,
        "model": info.spec.model,
        "fingerprint": info.spec.fingerprint,
        "index": info.index,
        "state": info.state,
        "recall_estimate": info.recall_estimate,
        "durable_seq": info.durable_seq,
        "indexed_seq": info.indexed_seq,
    }


@group.command()
@on_store
def verify(names: Names = None, as_json: Json = False, *, place: Place) -> None:
    """Read every vector back and compare the index with an exhaustive search. Works while a server uses the store.

    The exit code is 1 if anything is wrong. With --server, at most 1000 ids of each kind of damage are counted.

    Example: nnclr store verify photos
    """
    from nnclr_hub.progress import bar

    reports: dict[str, VerifyReport] = {}
    unreadable: dict[str, str] = {}
    with place.opened(read_only=True) as there:
        for name in names or [info.name for info in there.list()]:
            with bar(err, f"verifying {name}", unit="items") as advance:
                try:
                    reports[name] = there.get(name).verify(advance)
                except StoreCorrupt as error:  # the others are checked, too
                    unreadable[name] = str(error)
    if as_json:
        print_json(
            [{"name": name, "ok": report.ok, **asdict(report)} for name, report in reports.items()]
            + [{"name": name, "ok": False, "error": error} for name, error in unreadable.items()]
        )
    else:
        for name, report in reports.items():
            _print_report(name, report)
        for name, error in unreadable.items():
            out.print(f"{name}: {error}", style="red")
    if unreadable or not all(report.ok for report in reports.values()):
        raise typer.Exit(1)


def _print_report(name: str, report: VerifyReport) -> None:
    from nnclr_hub.store.reports import MIN_RECALL

    if report.ok:
        out.print(f"{name}: all {report.items} items are intact (recall {report.recall:.3f})")
        return
    damaged: dict[str, list[str]] = {}
    for id, part in zip_longest(report.damaged, report.parts, fillvalue="vector"):
        damaged.setdefault(part, []).append(id)
    for sentence, ids in (
        *((f"items have a damaged {part}", ids) for part, ids in damaged.items()),
        ("items are missing from the index", report.missing),
        ("items of the sample are not found as an exhaustive search finds them", report.disagreements),
    ):
        if ids:
            examples = ", ".join(ids[:SHOWN]) + (", ..." if len(ids) > SHOWN else "")
            out.print(f"{name}: {len(ids)} of {report.items} {sentence}: {examples}", style="red")
    if report.recall < MIN_RECALL:
        out.print(
            f"{name}: its index finds {report.recall:.3f} of the ten nearest: search with --exact or more --effort, "
            "or give the store more memory.",
            style="red",
        )
    if report.damaged or report.missing or report.disagreements:
        out.print(f"Repair it with `nnclr store repair {name}`.")


@group.command()
@on_store
def repair(
    name: Annotated[str | None, typer.Argument(help="Collection or alias. Default: the catalog.")] = None,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Remove damaged items, keep their metadata in a file, and rebuild the index.

    If a whole file is damaged, everything readable is copied to a new one; the exit code is 1 if anything was lost.
    Without a name, a damaged or missing catalog is rebuilt from the files of the collections.

    Example: nnclr store repair photos
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.store.folder.store import EmbeddedStore

    if name is None:
        _repair_catalog(place, as_json)
        return
    salvaged: SalvageReport | None = None
    with place.opened() as there, bar(err, "repairing", unit="items") as advance:
        try:
            report = there.get(name).repair(advance)
        except StoreCorrupt:
            # Milvus manages its own files
            if not isinstance(there, EmbeddedStore):
                raise
            salvaged = there.salvage(name, advance)
            report = there.get(name).repair(advance)
    if as_json:
        print_json({"name": name, **asdict(report), "salvaged": asdict(salvaged) if salvaged else None})
    else:
        _print_repaired(name, report, salvaged)
    if salvaged and not salvaged.complete:
        raise typer.Exit(1)


def _repair_catalog(place: Place, as_json: bool) -> None:
    from nnclr_hub.store.folder.catalog import rebuild_catalog
    from nnclr_hub.store.records import RECORDS, repair_records

    if place.server is not None:
        raise InvalidRequest("Repair the catalog on the machine of the server, with --store.")
    try:
        with place.opened():
            pass
    except StoreCorrupt:
        names = list(rebuild_catalog(Path(place.store)))
    else:
        names = None
    saved = repair_records(Path(place.store) / RECORDS)
    if as_json:
        print_json({"rebuilt": names is not None, "collections": names, "records_saved": saved})
        return
    if saved is not None:
        out.print(f"The file of jobs and probes was damaged; {saved} of its records were saved.")
    if names is None:
        out.print("The catalog is intact; name a collection to repair it.")
    else:
        out.print(f"Rebuilt the catalog: {', '.join(names)}. Aliases that it could not read are lost; set them again.")


def _print_repaired(name: str, report: RepairReport, salvaged: SalvageReport | None) -> None:
    if salvaged:
        out.print(
            f"{name}: the file was damaged; {salvaged.saved} items saved, {len(salvaged.lost)} lost, "
            f"{salvaged.suspected} more rows unreadable, {salvaged.thumbnails} thumbnails lost; "
            f"the damaged file is {salvaged.original}",
            soft_wrap=True,
        )
        if salvaged.lost:
            examples = ", ".join(salvaged.lost[:SHOWN]) + (", ..." if len(salvaged.lost) > SHOWN else "")
            out.print(f"Lost were {examples}. Index them again.", style="red")
    out.print(f"{name}: {report.items} items, {len(report.removed)} removed")
    if report.removed:
        kept = f"; their metadata are in {report.kept_in}" if report.kept_in else ""
        out.print(f"Removed were {', '.join(report.removed[:SHOWN])}{kept}. Index them again.")


@group.command()
@on_store
def snapshot(names: Names = None, *, place: Place) -> None:
    """Write the index to disk now, so that the next start is fast.

    Example: nnclr store snapshot
    """
    with place.opened() as there:
        for name in names or [info.name for info in there.list()]:
            there.get(name).snapshot()
            out.print(f"{name}: snapshot written")


@group.command()
@on_store
def compact(names: Names = None, *, place: Place) -> None:
    """Rebuild the index without deleted items.

    Example: nnclr store compact photos
    """
    from nnclr_hub.progress import bar

    with place.opened() as there:
        for name in names or [info.name for info in there.list()]:
            with bar(err, f"compacting {name}", unit="items") as advance:
                there.get(name).compact(advance)
            out.print(f"{name}: compacted, {there.get(name).count()} items")


@group.command()
@on_store
def drop(
    name: Annotated[str, typer.Argument(help="Collection; not an alias.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    *,
    place: Place,
) -> None:
    """Delete a collection with all its items.

    Example: nnclr store drop photos.old --yes
    """
    with place.opened() as there:
        info = there.get(name).info()
        if not yes and info.name == name:  # an alias is refused below, without a question
            confirm(f"Permanently delete {name} with its {info.count} items?")
        there.drop(name)
    out.print(f"{name}: dropped")


@group.command()
@on_store
def alias(
    new: Annotated[str, typer.Argument(metavar="ALIAS", help="The alias.")],
    name: Name,
    *,
    place: Place,
) -> None:
    """Point an alias to a collection, whatever it pointed to before.

    Example: nnclr store alias current photos
    """
    with place.opened() as there:
        target = there.get(name).info().name
        there.alias(new, target)
    out.print(f"{new} -> {target}")


@group.command()
@on_store
def unalias(
    old: Annotated[str, typer.Argument(metavar="ALIAS", help="The alias to delete.")],
    *,
    place: Place,
) -> None:
    """Delete an alias; its collection stays.

    Example: nnclr store unalias current
    """
    with place.opened() as there:
        there.unalias(old)
    out.print(f"{old}: alias deleted")


@group.command()
@on_store
def rename(
    name: Annotated[str, typer.Argument(help="Collection; not an alias.")],
    to: Annotated[str, typer.Argument(help="Its new name; its aliases stay.")],
    *,
    place: Place,
) -> None:
    """Rename a collection.

    Example: nnclr store rename photos.old photos-2024
    """
    with place.opened() as there:
        there.rename(name, to)
    out.print(f"{name} is now {to}")
