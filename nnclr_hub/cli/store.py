"""nnclr store: create, list, check, move, edit and back up collections."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnclr_hub.cli.options import Place, on_store
from nnclr_hub.cli.verbs import (
    Json,
    Model,
    confirm,
    err,
    list_broken,
    new_table,
    out,
    parse_numbers,
    parse_where,
    place_of,
    print_json,
    show,
)
from nnclr_hub.errors import CollectionNotFound, InvalidRequest, StoreCorrupt
from nnclr_hub.table_rows import LabelTable, read_rows

if TYPE_CHECKING:
    from nnclr_hub.store.base import Collection
    from nnclr_hub.store.reports import CollectionInfo, RepairReport, SalvageReport, VerifyReport
    from nnclr_hub.workbench.requests import ImportFormat

group = typer.Typer(no_args_is_help=True, help="Manage a vector store: list, verify, repair, move, rename.")
Name = Annotated[str, typer.Argument(help="Collection or alias.")]
Names = Annotated[list[str] | None, typer.Argument(help="Collections. Default: all.")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Id of an item. Repeatable.")]
From = Annotated[
    Path | None,
    typer.Option("--from", help="CSV that names items in its column id or path, such as a table of `nnclr inspect`."),
]
PathColumn = Annotated[str | None, typer.Option("--path-column", help="Column of --from with ids or paths.")]
Where = Annotated[str | None, typer.Option(help="Filter on metadata, as JSON, instead of ids.")]
Backups = Annotated[str, typer.Argument(help="Folder or address with backups, for example s3://bucket/nnclr.")]
FEW = 5  # ids per kind of damage that are listed; the others are only counted
GROUPS = 20  # groups of duplicates that are printed before they are only counted
CHUNK = 500
MEGABYTE = 10**6


def register(app: typer.Typer) -> None:
    """Add the verb group."""
    app.add_typer(group, name="store")


def _some(ids: Any) -> str:
    return ", ".join(ids[:FEW]) + (", ..." if len(ids) > FEW else "")


# ---- collections


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
    headings = ("name", "items", "dim", "metric", "index", "state", "aliases", "model")
    table = new_table(*headings, right=("items", "dim"))
    for row in rows:
        late = row["durable_seq"] - row["indexed_seq"]
        state = row["state"] + (f", index {late} changes behind" if late else "")
        metric = row["metric"] if row["vectors"] == "raw" else f"{row['metric']}, {row['vectors']}"
        cells = [row["name"], row["items"], row["dim"], metric, row["index"], state, ", ".join(row["aliases"])]
        model = f"{row['model']} ({row['fingerprint'][:8]})" if row["fingerprint"] else row["model"]
        table.add_row(*map(str, [*cells, model]))
    show(as_json, rows, table if rows else "The store is empty; add images with `nnclr index`.")


def _row(info: CollectionInfo, aliases: dict[str, str]) -> dict[str, Any]:
    spec = {one: getattr(info.spec, one) for one in ("dim", "metric", "precision", "vectors", "model", "fingerprint")}
    state = {one: getattr(info, one) for one in ("index", "state", "recall_estimate", "durable_seq", "indexed_seq")}
    own = sorted(alias for alias, name in aliases.items() if name == info.name)
    return {"name": info.name, "aliases": own, "items": info.count, **spec, **state}


@group.command()
@on_store
def create(
    name: Annotated[str, typer.Argument(help="Name of the new collection.")],
    model: Model = None,
    dim: Annotated[int | None, typer.Option(help="Length of the vectors, for a collection without a model.")] = None,
    metric: Annotated[str, typer.Option(help="cosine, dot or l2.")] = "cosine",
    index: Annotated[str, typer.Option(help="auto, flat, hnsw, ivf, ivf_sq8, ivf_pq; on Milvus diskann.")] = "auto",
    precision: Annotated[str, typer.Option(help="f32, or f16 for half the space.")] = "f32",
    vectors: Annotated[
        str,
        typer.Option(
            help="What searches compare: raw (vectors as they are), center, half_whiten or whiten. auto: "
            "half_whiten, if of a model."
        ),
    ] = "auto",
    indexed: Annotated[list[str], typer.Option(help="Metadata key for fast filters. Repeatable.")] = ["label"],  # noqa: B006
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Create an empty collection with options that `nnclr index` and `import` would set to defaults.

    Example: nnclr store create photos --precision f16 --indexed label --indexed path
    """
    from nnclr_hub.workbench.requests import NewCollection

    options: Any = {"metric": metric, "index": index, "precision": precision, "vectors": vectors, "indexed": indexed}
    request = NewCollection(model, dim, **options)
    with place.bench(create=True) as bench:
        spec = bench.create_collection(name, request).spec
    by = f" by {spec.model}" if spec.model else ""
    made = f"Created {name}: vectors of length {spec.dim}{by}, {metric}, {precision}, {spec.vectors}."
    show(as_json, {"name": name, **asdict(spec)}, made)


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
    with place.bench() as bench:
        try:
            info = bench.store.get(name).info()
            known, items = info.name, f"with its {info.count} items"
        except StoreCorrupt:
            known, items = name, "whose file cannot be read"
        if not yes and known == name:  # an alias is refused below, without a question
            confirm(f"Permanently delete {name} {items}?")
        bench.drop(name)
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
    with place.bench() as bench:
        bench.rename(name, to)
    out.print(f"{name} is now {to}")


@group.command()
@on_store
def reembed(
    name: Name,
    model: Annotated[
        str | None,
        typer.Option("--model", help="The new encoder, as in `nnclr models`; with --server, one that it serves."),
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out items whose file is missing or changed.")
    ] = False,
    writes_stopped: Annotated[
        bool, typer.Option("--writes-stopped", help="Nothing else writes to it now; required on Milvus.")
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Cancel: drop what was built so far.")] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Embed a collection again with another encoder, from its images. Run it again to continue after an interruption.

    With --server, the server reads the images. At most 100 of the items that are left out are named.

    Example: nnclr store reembed photos --model runs/my/encoder
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.workbench.reembedding import ReembedRequest

    if abandon == (model is not None):
        raise InvalidRequest("Name the new encoder with --model, or cancel with --abandon.")
    with place.bench() as bench:
        if model is None:
            bench.abandon_reembed(name)
            out.print(f"{name} has no unfinished copy now; it was not changed.")
            return
        with bar(err, "embedding") as advance:
            report = bench.run("reembed", ReembedRequest(name, model, skip_missing, writes_stopped), advance)
    skipped, kept = report["skipped_count"], report["kept"]
    if not as_json:
        list_broken([(one["item"], f"left out: {one['reason']}") for one in report["skipped"]], skipped)
    done = (
        f"{name}: {report['items']} items by {model} ({report['embedded']} embedded now, {skipped} left out). "
        f"The old collection is kept as {kept}; `nnclr store drop {kept}{place.words}` deletes it."
    )
    if report["collection"] is None:
        done = f"{name} already holds vectors of {model}; nothing to do."
    show(as_json, {"name": name, "model": model, **report}, done)


# ---- look after


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
            out.print(f"{name}: {len(ids)} of {report.items} {sentence}: {_some(ids)}", style="red")
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
            if not isinstance(there, EmbeddedStore):  # Milvus manages its own files
                raise
            salvaged = there.salvage(name, advance)
            report = there.get(name).repair(advance)
    value = {"name": name, **asdict(report), "salvaged": asdict(salvaged) if salvaged else None}
    show(as_json, value, *_repaired(name, report, salvaged))
    if salvaged and not salvaged.complete:
        raise typer.Exit(1)


def _repaired(name: str, report: RepairReport, salvaged: SalvageReport | None) -> list[str]:
    lines = []
    if salvaged:
        lines.append(
            f"{name}: the file was damaged; {salvaged.saved} items saved, {len(salvaged.lost)} lost, "
            f"{salvaged.suspected} more rows unreadable, {salvaged.thumbnails} thumbnails lost; "
            f"the damaged file is {salvaged.original}"
        )
        lines += [f"Lost were {_some(salvaged.lost)}. Index them again."] if salvaged.lost else []
    lines.append(f"{name}: {report.items} items, {len(report.removed)} removed")
    if report.removed:
        kept = f"; their metadata are in {report.kept_in}" if report.kept_in else ""
        lines.append(f"Removed were {', '.join(report.removed[:FEW])}{kept}. Index them again.")
    return lines


def _repair_catalog(place: Place, as_json: bool) -> None:
    from nnclr_hub.store.folder.catalog import rebuild_catalog
    from nnclr_hub.store.records import RECORDS, repair_records

    folder, names = place.require_folder("Repair the catalog"), None
    try:
        with place.opened():
            pass
    except StoreCorrupt:
        names = list(rebuild_catalog(folder))
    saved = repair_records(folder / RECORDS)
    show(
        as_json,
        {"rebuilt": names is not None, "collections": names, "records_saved": saved},
        "" if saved is None else f"The file of jobs and probes was damaged; {saved} of its records were saved.",
        "The catalog is intact; name a collection to repair it."
        if names is None
        else f"Rebuilt the catalog: {', '.join(names)}. Aliases that it could not read are lost; set them again.",
    )


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
def duplicates(
    name: Name,
    near: Annotated[
        str | None,
        typer.Option("--near", help="Lowest score of a pair, or auto: above chance here. Default: equal pixels."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --near: compare every pair; slow for large collections.")
    ] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """List duplicate images: with equal pixels, or nearly equal. Works while a server uses the store.

    At most 10,000 groups and 1,000 items of each are listed; with --server, only the name of the indexed folder.

    Example: nnclr store duplicates photos --near auto
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.store.checks import MAX_LIMIT
    from nnclr_hub.workbench.duplicates import DuplicatesRequest
    from nnclr_hub.workbench.metadata import PIXEL_HASH

    if exact and near is None:
        raise InvalidRequest("--exact needs --near SCORE; without it, pixels are compared exactly anyway.")
    threshold: Any = near if near in (None, "auto") else parse_numbers("--near", near, "SCORE or auto")[0]
    with place.bench(read_only=True) as bench, bar(err, "comparing", unit="items") as advance:
        collection = bench.collection(name)
        request = DuplicatesRequest(name, threshold, exact=exact, limit=MAX_LIMIT if as_json else GROUPS)
        found = bench.run("duplicates", request, advance)
        unknown = collection.count({"must_not": [{"key": PIXEL_HASH, "exists": True}]}) if near is None else 0
        places = _places(collection, [id for one in found["groups"] for id in one["ids"]])
    # an item may just have been deleted
    groups = [[id for id in one["ids"] if id in places] for one in found["groups"]]
    counts = {"found": found["found"], "surplus": found["surplus"]}
    if as_json:
        named = [[{"id": id, "root": places[id][0], "path": places[id][1]} for id in group] for group in groups]
        print_json({"collection": name, **counts, "groups": named, "without_hash": unknown})
        return
    roots = {places[id][0] for group in groups for id in group}
    shared = roots.pop() if len(roots) == 1 else ""  # then paths are relative to it
    if shared:
        out.print(f"In {shared}:\n")
    for group, size in zip(groups, (one["size"] for one in found["groups"]), strict=True):
        files = [f"  {places[id][1] if shared else Path(*places[id])}\n" for id in group]
        more = f"  and {size - len(group)} more\n" if size > len(group) else ""
        out.print(f"{size} alike:\n{''.join(files)}{more}")
    more = f", of which {GROUPS} are shown (--json has more)" if counts["found"] > GROUPS else ""
    out.print(f"{counts['found']} groups with {sum(counts.values())} items{more}")
    if unknown:
        hint = "have no pixel hash and were not compared; use --near 0.999 to compare their vectors."
        err.print(f"{unknown} items {hint}", style="yellow", soft_wrap=True)


def _places(collection: Collection, ids: list[str]) -> dict[str, tuple[str, str]]:
    """Return the folder and the path there of each item."""
    return {
        item.id: place_of(item.id, item.metadata)
        for start in range(0, len(ids), CHUNK)
        for item in collection.get(ids[start : start + CHUNK])
    }


# ---- export and import


@group.command()
@on_store
def export(
    name: Name,
    folder: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    thumbnails: Annotated[bool, typer.Option("--thumbnails/--no-thumbnails", help="Include thumbnails.")] = True,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Export a collection as Parquet and safetensors files. Works while a server uses the store.

    Example: nnclr store export photos photos-export
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.store.exchange import export_collection

    with place.opened(read_only=True) as there, bar(err, "exporting", unit="items") as advance:
        manifest = export_collection(there.get(name), folder, thumbnails=thumbnails, progress=advance)
    written = f"{folder}: {manifest.items} items of {name}, {manifest.size / MEGABYTE:.1f} MB"
    show(as_json, {"folder": str(folder), **asdict(manifest), "bytes": manifest.size}, written)


@group.command(name="import")
@on_store
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder that `nnclr store export`, or `nnclr embed`, wrote; or a file: a zip or tar of images, or "
            "vectors as NDJSON, Arrow or Parquet."
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--collection", help="Name of the collection. Default: the exported name.")
    ] = None,
    into: Annotated[bool, typer.Option("--into", help="Add to a collection that holds other items.")] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Import an exported folder, shards of `nnclr embed`, or a file. Run it again to continue after an interruption.

    A file is imported into an existing collection. With --server, the server imports it, and stores no thumbnails of an
    exported folder.

    Example: nnclr store import photos-export --collection photos
    """
    from nnclr_hub.bulk.plan import PLAN

    if not source.exists():
        raise InvalidRequest(f"{source} does not exist.")
    if source.is_file():
        _import_file(source, name, place, as_json)
    elif (source / PLAN).exists():
        _import_shards(source, name, place, into, as_json)
    else:
        _import_export(source, name, place, into, as_json)


def _import_export(folder: Path, name: str | None, place: Place, into: bool, as_json: bool) -> None:
    from nnclr_hub.progress import bars, in_megabytes
    from nnclr_hub.store.checks import check_collection_name
    from nnclr_hub.store.exchange import import_collection, read_manifest

    manifest = read_manifest(folder)  # a wrong folder or name must not leave an empty store behind
    name = check_collection_name(name or manifest.name)
    with place.opened(create=True) as there, bars(err) as new_bar:
        checking, storing = in_megabytes(new_bar("checking", "MB")), new_bar("importing", "items")
        report = import_collection(there, name, folder, into=into, checking=checking, progress=storing)
    existing = f", the other {report.items - report.written} existed already" if report.written < report.items else ""
    written = f"{name}: {report.written} of {report.items} items written{existing}"
    show(as_json, {"collection": name, **asdict(report)}, written)


def _import_shards(folder: Path, name: str | None, place: Place, into: bool, as_json: bool) -> None:
    from nnclr_hub.bulk import open_shards
    from nnclr_hub.bulk.collection_import import collect
    from nnclr_hub.progress import bar
    from nnclr_hub.store.checks import check_collection_name

    if name is None:
        raise InvalidRequest(f"{folder} holds shards of `nnclr embed`; name a collection with --collection.")
    name = check_collection_name(name)  # a wrong name must not leave an empty store behind
    shards = open_shards(folder)
    shards.require_all()
    with place.opened(create=True) as there, bar(err, "importing", unit="items") as advance:
        total, written = collect(shards, there, name, into=into, progress=advance)
    value = {"collection": name, "items": total, "written": written}
    show(as_json, value, f"{name}: {written} of {total} items written")


def _import_file(file: Path, name: str | None, place: Place, as_json: bool) -> None:
    from nnclr_hub.progress import bar
    from nnclr_hub.workbench.file_import import ImportRequest
    from nnclr_hub.workbench.requests import format_of_file

    if name is None:
        raise InvalidRequest(f"Name the collection for {file} with --collection; it must exist.")
    format = format_of_file(file)

    def create() -> str:
        dim = _dim_of(file, format)
        return f"`nnclr store create {name}{'' if dim is None else f' --dim {dim}'}{place.words}` creates it"

    if not place.exists:
        raise InvalidRequest(f"{place.address} does not exist; {create()} with the collection.")
    with place.bench(backend="auto") as bench:
        try:
            bench.store.get(name)
        except CollectionNotFound as error:
            raise CollectionNotFound(f"{error} {create()}.") from error
        with bar(err, "importing", unit="steps") as advance:
            result = bench.run("import", ImportRequest(name, str(file), format.name), advance)
    counted = ("added", "replaced", "unchanged")
    if not as_json:
        list_broken([(error["name"], error["detail"]) for error in result["errors"]], result["errors_count"])
        if left_out := ", ".join(f"{n} {suffix or 'without suffix'}" for suffix, n in result["left_out"].items()):
            err.print(f"left out: {left_out}")
    counts = ", ".join(f"{result[what]} {what}" for what in counted)
    show(as_json, result, f"{name}: {counts}, {result['errors_count']} invalid")
    if result["errors_count"] and not any(result[what] for what in counted):
        raise InvalidRequest(f"Nothing in {file} could be imported; each error above says why.")


def _dim_of(file: Path, format: ImportFormat) -> int | None:
    """Return the length of the first vector of a file; None if it has none."""
    from nnclr_hub.store.base import Item
    from nnclr_hub.workbench.item_file import read_items

    if format.images:
        return None
    return next((len(item.vector) for _, item, _ in read_items(file, format) if isinstance(item, Item)), None)


# ---- metadata


@group.command(name="set")
@on_store
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
    from nnclr_hub.workbench.metadata import HASHES, patches_of, table_values

    if (metadata is None) == (not columns):
        raise InvalidRequest("Give METADATA, or --from FILE with --column; exactly one of them.")
    if columns and (table is None or ids is not None or where is not None or replace):
        raise InvalidRequest("--column needs --from, and neither --id, --where nor --replace.")
    if columns and table is not None:
        rows = read_rows(LabelTable(table, path_column=path_column), columns)
        with place.opened() as there:
            collection = there.get(name)
            found = table_values(collection, rows)
            updated = collection.update_each(patches_of(collection, found.values)[0], keep=HASHES)
        counts = {"unmatched_rows": len(found.unmatched_rows), "unmatched_items": found.unmatched_items}
        rest = f"; {found.unmatched_items} items have no row"
    else:
        try:
            patch = json.loads(metadata or "")
        except ValueError as error:
            form = f"give the table with --from {metadata}" if str(metadata).endswith(".csv") else ""
            form = form or 'write it like \'{"label": "cat"}\''
            raise InvalidRequest(f"METADATA is not JSON ({error}); {form}.") from error
        with place.opened() as there:
            collection = there.get(name)
            chosen = _chosen(collection, ids, where, table, path_column)
            updated = collection.update_metadata(patch, **chosen, replace=replace, keep=HASHES)
        counts, rest = {}, _unknown(ids, updated)
    value = {"collection": name, "updated": updated, **counts}
    show(as_json, value, f"{name}: metadata of {updated} items set{rest}")


@group.command()
@on_store
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
    value = {"collection": name, "deleted": deleted}
    show(as_json, value, f"{name}: {deleted} items deleted{_unknown(ids, deleted)}")


def _chosen(
    collection: Collection, ids: list[str] | None, where: str | None, table: Path | None, path_column: str | None
) -> dict[str, Any]:
    if sum(one is not None for one in (ids, where, table)) != 1:
        raise InvalidRequest("Choose items by --id, repeated as needed, by --from or by --where; give exactly one.")
    if where is not None:
        return {"where": parse_where(where)}
    if table is None:
        return {"ids": ids}
    from nnclr_hub.workbench.metadata import match_items

    return {"ids": list(match_items(collection, read_rows(LabelTable(table, path_column=path_column), [])).cells)}


def _unknown(ids: list[str] | None, found: int) -> str:
    """Return how many of the ids no item has, to append to a report."""
    unknown = len(set(ids or ())) - found
    return f"; {unknown} ids do not exist" if ids and unknown else ""


@group.command()
@on_store
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
        values = {key: [{"value": value, "count": n} for value, n in one.values] for key, one in found.items()}
        print_json([{**asdict(one), "values": values[key]} for key, one in found.items()])
        return
    for key, one in found.items():
        rows = [(value if isinstance(value, str) else json.dumps(value), f"{n:,}") for value, n in one.values]
        title = f"{key}: {one.items} items"
        out.print(new_table("value", "items", right=("items",), rows=rows, title=title, title_justify="left"))
        if one.distinct > len(one.values):
            err.print(f"{one.distinct - len(one.values)} further values; --limit shows more.")


@group.command()
@on_store
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
    show(as_json, {"collection": name, "indexed": known}, f"{name}: {', '.join(known) or 'no key'} indexed")


# ---- backups


@group.command()
@on_store
def backup(
    destination: Annotated[
        str | None,
        typer.Argument(help="Folder, or address such as s3://bucket/nnclr. With --server, leave it out."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Number of backups to keep; older ones are removed. Default: all.")
    ] = None,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Back up all collections, aliases, jobs and probes. Works while a server uses the store.

    Backups to the same destination copy only what is new. The exit code is 1 if a collection is damaged: then the
    backup has all others, and no older backup is removed.

    Example: nnclr store backup /mnt/backups/nnclr --keep 30
    """
    from nnclr_hub.progress import bar, in_megabytes
    from nnclr_hub.workbench.maintenance import BackupRequest

    with place.bench(read_only=True) as bench, bar(err, "copying", unit="MB") as advance:
        report = bench.run("backup", BackupRequest(keep, destination), in_megabytes(advance))
    where = destination or "the folder that NNCLR_BACKUP_TO names on the server"
    show(
        as_json,
        {"destination": destination, **report},
        f"Backup {report['id']} in {where}: {report['items']} items in {report['collections']} collections, "
        f"{report['written'] / MEGABYTE:.1f} MB copied, {report['size'] / MEGABYTE:.1f} MB in all.",
        f"{report['removed']} older backups were removed; {report['freed'] / MEGABYTE:.1f} MB were freed."
        if report["removed"] or report["freed"]
        else "",
    )


@group.command()
def backups(source: Backups, as_json: Json = False) -> None:
    """List the backups, oldest first. Ids are times in UTC.

    Example: nnclr store backups /mnt/backups/nnclr
    """
    from nnclr_hub.store.backup import list_backups

    rows = [
        {name: getattr(one, name) for name in ("id", "collections", "aliases", "size")} for one in list_backups(source)
    ]
    lines = []
    for row in rows:
        counts = ", ".join(f"{name} ({items} items)" for name, items in row["collections"].items())
        lines.append(f"{row['id']}: {row['size'] / MEGABYTE:.1f} MB, {counts or 'no collections'}")
    show(as_json, rows, *lines)


@group.command()
def restore(
    source: Backups,
    folder: Annotated[Path, typer.Argument(help="Folder of the new store; does not exist, or is empty.")],
    at: Annotated[
        str | None,
        typer.Option(
            help="Id of a backup, or a time such as 2026-05-01T12:00 in the time zone of this machine, or "
            "2026-05-01T12:00Z in UTC: the last backup until then. Default: the newest."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Restore a backup to a new store.

    Example: nnclr store restore /mnt/backups/nnclr restored-store --at 2026-05-01T12:00
    """
    from nnclr_hub.progress import bar, in_megabytes
    from nnclr_hub.store.backup import restore as restore_store

    with bar(err, "restoring", unit="MB") as advance:
        backup = restore_store(source, folder, at, progress=in_megabytes(advance))
    lines = [f"{name}: {items} items" for name, items in backup.collections.items()]
    value = {"folder": str(folder), "backup": backup.id, "collections": backup.collections}
    show(as_json, value, *lines, f"Restored backup {backup.id} to {folder}.")


@group.command(name="verify-backup")
def verify_backup(source: Backups, as_json: Json = False) -> None:
    """Read every file of the backups back, without restoring them. The exit code is 1 if anything is wrong.

    Delete a file that is reported as damaged: the next backup writes its content again.

    Example: nnclr store verify-backup /mnt/backups/nnclr
    """
    from nnclr_hub.progress import bar, in_megabytes
    from nnclr_hub.store.backup import verify_backups

    with bar(err, "verifying", unit="MB") as advance:
        problems = verify_backups(source, progress=in_megabytes(advance))
    value = [{"id": one, "ok": problem is None, "problem": problem} for one, problem in problems.items()]
    show(as_json, value, *(f"{one}: {problem or 'intact'}" for one, problem in problems.items()))
    if any(problems.values()):
        raise typer.Exit(1)
