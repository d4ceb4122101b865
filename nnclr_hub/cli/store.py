"""nnclr store: create, list, check, move, edit and back up collections."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from nnclr_hub.cli.options import Place, on_store
from nnclr_hub.cli.verbs import (
    Json,
    Model,
    bar,
    confirm,
    described,
    err,
    fail,
    list_broken,
    megabytes,
    new_table,
    note_unknown_keys,
    parse_numbers,
    parse_where,
    place_of,
    show,
)
from nnclr_hub.errors import CollectionNotFound, InvalidRequest, ItemNotFound, StoreCorrupt
from nnclr_hub.json_text import parse_json
from nnclr_hub.plural import counted
from nnclr_hub.read_ahead import batches
from nnclr_hub.table_rows import LabelTable, read_rows

if TYPE_CHECKING:
    from nnclr_hub.store.base import Collection
    from nnclr_hub.store.reports import CollectionInfo, RepairReport, SalvageReport, VerifyReport
    from nnclr_hub.workbench.requests import ImportFormat

group = typer.Typer(no_args_is_help=True, help="Manage a vector store: list, verify, repair, move, rename.")
FEW = 5  # ids per kind of damage that are listed; the others are only counted
GROUPS = 20  # groups of duplicates that are printed before they are only counted
CHUNK = 500
MEGABYTE = 10**6
# ---- arguments and options, each once

Name = Annotated[str, Argument(help="Collection or alias.")]
NameOrNone = Annotated[str | None, Argument(help="Collection or alias. Default: the catalog.")]
NewName = Annotated[str, Argument(help="Name of the new collection.")]
OwnName = Annotated[str, Argument(help="Collection; not an alias.")]
Names = Annotated[list[str] | None, Argument(help="Collections. Default: all.")]
Alias = Annotated[str, Argument(metavar="ALIAS", help="The alias.")]
To = Annotated[str, Argument(help="Its new name; its aliases stay.")]
Ids = Annotated[list[str] | None, Option("--id", help="Id of an item. Repeatable.")]
FROM = "CSV that names items in its column id or path, such as a table of `nnclr inspect`."
From = Annotated[Path | None, Option("--from", help=FROM)]
PathColumn = Annotated[str | None, Option(help="Column of --from with ids or paths.")]
Where = Annotated[str | None, Option(help="Filter on metadata, as JSON, instead of ids.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")]
# of create
Dim = Annotated[int | None, Option(help="Length of the vectors, for a collection without a model.")]
Metric = Annotated[str, Option(help="cosine, dot or l2.")]
Index = Annotated[str, Option(help="auto, flat, hnsw, ivf, ivf_sq8, ivf_pq; on Milvus diskann.")]
Precision = Annotated[str, Option(help="f32, or f16 for half the space.")]
COMPARED = "What searches compare: raw, center, half_whiten or whiten. auto: half_whiten, if of a model."
Compared = Annotated[str, Option(help=COMPARED)]
Indexed = Annotated[list[str], Option(help="Metadata key for fast filters. Repeatable.")]
# of reembed
NEW_MODEL = "The new encoder, as in `nnclr models`; with --server, one that it serves."
NewModel = Annotated[str, Option("--model", help=NEW_MODEL)]
SkipMissing = Annotated[bool, Option("--skip-missing", help="Leave out items whose file is missing or changed.")]
# of duplicates
NEAR = "Lowest score of a pair, or auto: above chance here. Default: equal pixels."
Near = Annotated[str | None, Option(help=NEAR)]
Exact = Annotated[bool, Option("--exact", help="With --near: compare every pair; slow for large collections.")]
# of export and import
NewFolder = Annotated[Path, Argument(help="Folder to write; must not exist.")]
Thumbnails = Annotated[bool, Option("--thumbnails/--no-thumbnails", help="Include thumbnails.")]
SOURCE = "Folder of `nnclr store export` or `nnclr embed`; zip or tar of images; vectors as NDJSON, Arrow or Parquet."
Source = Annotated[Path, Argument(help=SOURCE)]
Target = Annotated[str | None, Option("--collection", help="Name of the collection. Default: the exported name.")]
Into = Annotated[bool, Option("--into", help="Add to a collection that holds other items.")]
# of set, facets and indexed
Metadata = Annotated[str | None, Argument(help="JSON object. null removes a key, objects are merged.")]
COLUMN = "Column of --from to write, with the type of the key's values, or as text; or KEY=COLUMN. Repeatable."
Columns = Annotated[list[str], Option("--column", help=COLUMN)]
Replace = Annotated[bool, Option("--replace", help="Replace all metadata instead of merging.")]
Keys = Annotated[list[str], Argument(help="Metadata keys, or paths such as camera.model.")]
Limit = Annotated[int, Option(help="Values per key, 1 to 1000.")]
NewKeys = Annotated[list[str] | None, Argument(help="Metadata keys to index instead of the present ones.")]
NoKey = Annotated[bool, Option("--none", help="Index no key.")]
# of backups
DESTINATION = "Folder, or address such as s3://bucket/nnclr. With --server, leave it out."
Destination = Annotated[str | None, Argument(help=DESTINATION)]
Keep = Annotated[int | None, Option(help="Number of backups to keep; older ones are removed. Default: all.", min=1)]
Backups = Annotated[str, Argument(help="Folder or address with backups, for example s3://bucket/nnclr.")]
Restored = Annotated[Path, Argument(help="Folder of the new store; does not exist, or is empty.")]
AT = (
    "Id of a backup, or a time (2026-05-01T12:00, local; 2026-05-01T12:00Z, UTC): the last until then. Default: newest."
)
At = Annotated[str | None, Option(help=AT)]


def register(app: typer.Typer) -> None:
    """Add the verb group."""
    app.add_typer(group, name="store")


def verb(name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a verb with the options of a store."""
    return lambda function: group.command(name)(on_store(function))


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:FEW]) + (", ..." if len(ids) > FEW else "")


# ---- collections


@verb("list")
def list_collections(place: Place, as_json: Json = False) -> None:
    """List the collections with their size and state. Works while a server uses the store.

    Example: nnclr store list

    Example: nnclr store list --server http://127.0.0.1:8000
    """
    with place.opened(read_only=True) as store:
        aliases = store.aliases()
        rows = [_row(info, aliases) for info in store.list()]
    headings = ("name", "items", "MB", "dim", "metric", "index", "state", "aliases", "model")
    table = new_table(*headings, right=("items", "MB", "dim"))
    for row in rows:
        late = row["durable_seq"] - row["indexed_seq"]
        state = row["state"] + (f", index {counted(late, 'change')} behind" if late else "")
        metric = row["metric"] if row["vectors"] == "raw" else f"{row['metric']}, {row['vectors']}"
        model = f"{row['model']} ({row['fingerprint'][:8]})" if row["fingerprint"] else row["model"]
        size = "" if row["bytes"] is None else f"{row['bytes'] / 1e6:,.1f}"
        cells = [row["name"], row["items"], size, row["dim"], metric, row["index"], state]
        table.add_row(*map(str, cells), ", ".join(row["aliases"]), model)
    index = place.command("index FOLDER --collection NAME")
    show(as_json, rows, table if rows else f"The store is empty; add images with {index}.")


def _row(info: CollectionInfo, aliases: dict[str, str]) -> dict[str, Any]:
    spec = {one: getattr(info.spec, one) for one in ("dim", "metric", "precision", "vectors", "model", "fingerprint")}
    names = ("index", "state", "recall_estimate", "durable_seq", "indexed_seq", "bytes")
    state = {one: getattr(info, one) for one in names}
    own = sorted(alias for alias, name in aliases.items() if name == info.name)
    return {"name": info.name, "aliases": own, "items": info.count, **spec, **state}


@verb()
def create(
    place: Place,
    name: NewName,
    model: Model = None,
    dim: Dim = None,
    metric: Metric = "cosine",
    index: Index = "auto",
    precision: Precision = "f32",
    vectors: Compared = "auto",
    indexed: Indexed = ["label"],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Create an empty collection with options that `nnclr index` and `import` would set to defaults.

    Example: nnclr store create photos --precision f16 --indexed label --indexed path
    """
    from nnclr_hub.workbench.requests import NewCollection

    options: Any = {"metric": metric, "index": index, "precision": precision, "vectors": vectors, "indexed": indexed}
    with place.bench(create=True) as bench:
        spec = bench.create_collection(name, NewCollection(model, dim, **options)).spec
    by = f" by {spec.model}" if spec.model else ""
    made = f"Created {name}: vectors of length {spec.dim}{by}, {metric}, {precision}, {spec.vectors}."
    show(as_json, {"name": name, **asdict(spec)}, made)


@verb()
def drop(place: Place, name: OwnName, yes: Yes = False, as_json: Json = False) -> None:
    """Delete a collection with all its items.

    Example: nnclr store drop photos.old --yes
    """
    with place.bench() as bench:
        try:
            info = bench.store.get(name).info()
            known, items = info.name, f"with its {counted(info.count, 'item')}"
        except StoreCorrupt:
            known, items = name, "whose file cannot be read"
        if not yes and known == name:  # an alias is refused below, without a question
            confirm(f"Permanently delete {name} {items}?")
        bench.drop(name)
    show(as_json, {"dropped": name}, f"{name}: dropped")


@verb()
def alias(place: Place, new: Alias, name: Name, as_json: Json = False) -> None:
    """Point an alias to a collection, whatever it pointed to before.

    Example: nnclr store alias current photos
    """
    with place.opened() as store:
        target = store.get(name).info().name
        store.alias(new, target)
    show(as_json, {"alias": new, "name": target}, f"{new} -> {target}")


@verb()
def unalias(place: Place, old: Alias, as_json: Json = False) -> None:
    """Delete an alias; its collection stays.

    Example: nnclr store unalias current
    """
    with place.opened() as store:
        store.unalias(old)
    show(as_json, {"deleted": old}, f"{old}: alias deleted")


@verb()
def rename(place: Place, name: OwnName, to: To, as_json: Json = False) -> None:
    """Rename a collection.

    Example: nnclr store rename photos.old photos-2024
    """
    with place.bench() as bench:
        bench.rename(name, to)
    show(as_json, {"name": to}, f"{name} is now {to}")


@verb()
def reembed(
    place: Place,
    name: Name,
    model: NewModel,
    skip_missing: SkipMissing = False,
    as_json: Json = False,
) -> None:
    """Embed a collection again with another encoder, from its images. Run it again to continue after an interruption.

    With --server, the server reads the images. At most 100 of the items that are left out are named.

    Example: nnclr store reembed photos --model runs/my/encoder
    """
    from nnclr_hub.workbench.reembedding import ReembedRequest

    with place.bench() as bench, bar("embedding") as advance:
        report = bench.run("reembed", ReembedRequest(name, model, skip_missing), advance)
    skipped, kept = report["skipped_count"], report["kept"]
    list_broken([(one["item"], f"left out: {one['reason']}") for one in report["skipped"]], skipped)
    done = (
        f"{name}: {counted(report['items'], 'item')} by {model} ({report['embedded']} embedded now, {skipped} left "
        f"out). The old collection is kept as {kept}; {place.command(f'store drop {kept}')} deletes it."
    )
    if report["collection"] is None:
        done = f"{name} already holds vectors of {model}; nothing to do."
    show(as_json, {"name": name, "model": model, **report}, done)


# ---- look after


@verb()
def verify(place: Place, names: Names = None, as_json: Json = False) -> None:
    """Read every vector back and compare the index with an exhaustive search. Works while a server uses the store.

    The exit code is 1 if anything is wrong. With --server, at most 1000 ids of each kind of damage are counted.

    Example: nnclr store verify photos
    """
    found: list[dict[str, Any]] = []
    lines: list[str] = []
    with place.opened(read_only=True) as store:
        for name in names or [info.name for info in store.list()]:
            with bar(f"verifying {name}", "items") as advance:
                try:
                    report = store.get(name).verify(advance)
                    found.append({"name": name, "ok": report.ok, **asdict(report)})
                    lines += _verified(name, report, place)
                except StoreCorrupt as error:  # the others are checked, too
                    error.args = (place.completed(str(error), name),)
                    found.append({"name": name, "ok": False, "error": described(error)})
                    lines.append(f"{name}: {error}")
    show(as_json, found, *lines)
    if not all(one["ok"] for one in found):
        raise typer.Exit(1)


def _verified(name: str, report: VerifyReport, place: Place) -> list[str]:
    from nnclr_hub.store.reports import MIN_RECALL

    items = counted(report.items, "item")
    if report.ok:
        return [f"{name}: intact, {items} (recall {report.recall:.3f})"]
    damaged: dict[str, list[str]] = {}
    for id, part in zip_longest(report.damaged, report.parts, fillvalue="vector"):
        damaged.setdefault(part, []).append(id)
    kinds: dict[str, Sequence[str]] = {f"damaged {part}": ids for part, ids in damaged.items()}
    kinds["missing from the index"] = report.missing
    kinds["not found as an exhaustive search finds it"] = report.disagreements
    lines = [f"{name}: {kind}: {len(ids)} of {items}: {_some(ids)}" for kind, ids in kinds.items() if ids]
    hint = [f"Repair it with {place.command(f'store repair {name}')}."] if lines else []
    if report.recall < MIN_RECALL:
        lines.append(
            f"{name}: its index finds {report.recall:.3f} of the ten nearest: search with --exact or more --effort, "
            "or give the store more memory."
        )
    return [*lines, *hint]


@verb()
def repair(place: Place, name: NameOrNone = None, as_json: Json = False) -> None:
    """Remove damaged items, keep their metadata in a file, and rebuild the index.

    If a whole file is damaged, everything readable is copied to a new one; the exit code is 1 if anything was lost.
    Without a name, a damaged or missing catalog is rebuilt from the files of the collections.

    Example: nnclr store repair photos
    """
    from nnclr_hub.store.folder.store import EmbeddedStore

    if name is None:
        _repair_catalog(place, as_json)
        return
    salvaged: SalvageReport | None = None
    with place.opened() as store, bar("repairing", "items") as advance:
        try:
            report = store.get(name).repair(advance)
        except StoreCorrupt:
            if not isinstance(store, EmbeddedStore):  # Milvus manages its own files
                raise
            salvaged = store.salvage(name, advance)
            report = store.get(name).repair(advance)
    value = {"name": name, **asdict(report), "salvaged": asdict(salvaged) if salvaged else None}
    show(as_json, value, *_repaired(name, report, salvaged))
    if salvaged and not salvaged.complete:
        raise typer.Exit(1)


def _repaired(name: str, report: RepairReport, salvaged: SalvageReport | None) -> list[str]:
    lines = []
    if salvaged:
        lines.append(
            f"{name}: the file was damaged; items: {salvaged.saved} saved, {len(salvaged.lost)} lost, "
            f"{salvaged.suspected} more unreadable; thumbnails: {salvaged.thumbnails} lost; the damaged file is "
            f"{salvaged.original}"
        )
        lines += [f"Lost: {_some(salvaged.lost)}. Index them again."] if salvaged.lost else []
    lines.append(f"{name}: {counted(report.items, 'item')}, {len(report.removed)} removed")
    if report.removed:
        kept = f"; their metadata are in {report.kept_in}" if report.kept_in else ""
        lines.append(f"Removed: {_some(report.removed)}{kept}. Index them again.")
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
    done = "The catalog is intact; name a collection to repair it."
    if names is not None:
        done = f"Rebuilt the catalog: {', '.join(names)}. Aliases that it could not read are lost; set them again."
    lost = "" if saved is None else f"The file of jobs and probes was damaged; records saved: {saved}."
    show(as_json, {"rebuilt": names is not None, "collections": names, "records_saved": saved}, lost, done)


@verb()
def snapshot(place: Place, names: Names = None, as_json: Json = False) -> None:
    """Write the index to disk now, so that the next start is fast.

    Example: nnclr store snapshot
    """
    with place.opened() as store:
        done = names or [info.name for info in store.list()]
        for collection in [store.get(name) for name in done]:  # a wrong name is refused before the first one
            collection.snapshot()
    show(as_json, done, *(f"{name}: snapshot written" for name in done))


@verb()
def compact(place: Place, names: Names = None, as_json: Json = False) -> None:
    """Rebuild the index without deleted items.

    Example: nnclr store compact photos
    """
    counts = {}
    with place.opened() as store:
        chosen = {name: store.get(name) for name in names or [info.name for info in store.list()]}
        for name, collection in chosen.items():
            with bar(f"compacting {name}", "items") as advance:
                collection.compact(advance)
            counts[name] = collection.count()
    show(as_json, counts, *(f"{name}: compacted, {counted(count, 'item')}" for name, count in counts.items()))


@verb()
def duplicates(place: Place, name: Name, near: Near = None, exact: Exact = False, as_json: Json = False) -> None:
    """List duplicate images: with equal pixels, or nearly equal. Works while a server uses the store.

    At most 10,000 groups and 1,000 items of each are listed; with --server, only the name of the indexed folder.

    Example: nnclr store duplicates photos --near auto
    """
    from nnclr_hub.store.checks import MAX_LIMIT
    from nnclr_hub.workbench.duplicates import DuplicatesRequest
    from nnclr_hub.workbench.metadata import PIXEL_HASH

    if exact and near is None:
        raise InvalidRequest("--exact needs --near SCORE; without it, pixels are compared exactly anyway.")
    threshold: Any = near if near in (None, "auto") else parse_numbers("--near", near, "SCORE or auto")[0]
    request = DuplicatesRequest(name, threshold, exact=exact, limit=MAX_LIMIT if as_json else GROUPS)
    with place.bench(read_only=True) as bench, bar("comparing", "items") as advance:
        collection = bench.collection(name)
        found = bench.run("duplicates", request, advance)
        unknown = collection.count({"must_not": [{"key": PIXEL_HASH, "exists": True}]}) if near is None else 0
        ids = [id for one in found["groups"] for id in one["ids"]]
        files = {
            item.id: place_of(item.id, item.metadata) for some in batches(ids, CHUNK) for item in collection.get(some)
        }
    # an item may just have been deleted
    groups = [[(id, *files[id]) for id in one["ids"] if id in files] for one in found["groups"]]
    counts = {"found": found["found"], "surplus": found["surplus"]}
    named = [[dict(zip(("id", "root", "path"), one, strict=True)) for one in group] for group in groups]
    value = {"collection": name, **counts, "groups": named, "without_hash": unknown}
    roots = {root for group in groups for _, root, _ in group}
    shared = next(iter(roots)) if len(roots) == 1 else ""  # then paths are relative to it
    lines = [f"In {shared}:\n" if shared else ""]
    for group, size in zip(groups, (one["size"] for one in found["groups"]), strict=True):
        paths = [f"  {path if shared else Path(root, path)}\n" for _, root, path in group]
        more = f"  and {size - len(group)} more\n" if size > len(group) else ""
        lines.append(f"{size} alike:\n{''.join(paths)}{more}")
    more = f", of which {GROUPS} are shown (--json has more)" if counts["found"] > GROUPS else ""
    if unknown and not as_json:
        hint = "without a pixel hash, not compared; use --near 0.999 to compare their vectors."
        err.print(f"{counted(unknown, 'item')} {hint}", style="yellow", soft_wrap=True)
    total = f"{counted(counts['found'], 'group')} with {counted(sum(counts.values()), 'item')}{more}"
    show(as_json, value, *lines, total)


# ---- export and import


@verb()
def export(place: Place, name: Name, folder: NewFolder, thumbnails: Thumbnails = True, as_json: Json = False) -> None:
    """Export a collection as Parquet files. Works while a server uses the store.

    Example: nnclr store export photos photos-export
    """
    from nnclr_hub.store.exchange import export_collection

    with place.opened(read_only=True) as store, bar("exporting", "items") as advance:
        manifest = export_collection(store.get(name), folder, thumbnails=thumbnails, progress=advance)
    written = f"{folder}: {counted(manifest.items, 'item')} of {name}, {manifest.size / MEGABYTE:.1f} MB"
    show(as_json, {"folder": str(folder), **asdict(manifest), "bytes": manifest.size}, written)


@verb("import")
def import_(place: Place, source: Source, name: Target = None, into: Into = False, as_json: Json = False) -> None:
    """Import an exported folder, shards of `nnclr embed`, or a file. Run it again to continue after an interruption.

    A file is imported into an existing collection. With --server, the server imports it, and stores no thumbnails of an
    exported folder.

    Example: nnclr store import photos-export --collection photos
    """
    if not source.exists():
        raise InvalidRequest(f"{source} does not exist.")
    if source.is_file():
        _import_file(source, name, place, as_json)
    else:
        _import_folder(source, name, into, place, as_json)


def _import_folder(source: Path, name: str | None, into: bool, place: Place, as_json: bool) -> None:
    from nnclr_hub.bulk import open_shards
    from nnclr_hub.bulk.collection_import import collect
    from nnclr_hub.bulk.plan import PLAN
    from nnclr_hub.progress import bars, in_megabytes
    from nnclr_hub.store.checks import check_collection_name
    from nnclr_hub.store.exchange import import_collection, read_manifest

    shards = open_shards(source) if (source / PLAN).exists() else None
    if shards is None:
        exported = read_manifest(source).name
        name = name or exported
    elif name is None:
        raise InvalidRequest(f"{source} holds shards of `nnclr embed`; name a collection with --collection.")
    else:
        shards.require_all()
    name = check_collection_name(name)  # a wrong folder or name must not leave an empty store behind
    with place.opened(create=True) as store, bars(err) as new_bar:
        checking, storing = in_megabytes(new_bar("checking", "MB")), new_bar("importing", "items")
        if shards is not None:
            items, written = collect(shards, store, name, into=into, progress=storing)
            value: dict[str, Any] = {"items": items, "written": written}
        else:
            value = asdict(import_collection(store, name, source, into=into, checking=checking, progress=storing))
    left = value["items"] - value["written"]
    existing = f"; {left} existed already" if left and shards is None else ""
    line = f"{name}: {value['written']} of {counted(value['items'], 'item')} written{existing}"
    show(as_json, {"collection": name, **value}, line)


def _import_file(file: Path, name: str | None, place: Place, as_json: bool) -> None:
    from nnclr_hub.workbench.file_import import ImportRequest
    from nnclr_hub.workbench.requests import format_of_file

    if name is None:
        raise InvalidRequest(f"Name the collection for {file} with --collection; it must exist.")
    format = format_of_file(file)

    def create() -> str:
        dim = _dim_of(file, format)
        return place.command(f"store create {name}{'' if dim is None else f' --dim {dim}'}")

    if not place.exists:
        raise InvalidRequest(f"{place.name} does not exist; {create()} creates it with the collection.")
    with place.bench(backend="auto") as bench:
        try:
            bench.store.get(name)
        except CollectionNotFound as error:
            raise CollectionNotFound(f"{error} {create()} creates it.") from error
        with bar("importing", "steps") as advance:
            result = bench.run("import", ImportRequest(name, str(file), format.name), advance)
    kinds = ("added", "replaced", "unchanged")
    list_broken([(error["name"], error["detail"]) for error in result["errors"]], result["errors_count"])
    if left_out := ", ".join(f"{n} {suffix or 'without suffix'}" for suffix, n in result["left_out"].items()):
        err.print(f"left out: {left_out}")
    counts = ", ".join(f"{result[kind]} {kind}" for kind in kinds)
    nothing = InvalidRequest(f"Nothing in {file} could be imported; each error above says why.")
    failed = result["errors_count"] and not any(result[kind] for kind in kinds)
    value = {**result, "error": described(nothing)} if failed else result
    show(as_json, value, f"{name}: {counts}, {result['errors_count']} invalid")
    if failed:
        fail(nothing)


def _dim_of(file: Path, format: ImportFormat) -> int | None:
    from nnclr_hub.store.base import Item
    from nnclr_hub.workbench.item_file import read_items

    rows = () if format.images else read_items(file, format)
    return next((len(item.vector) for _, item, _ in rows if isinstance(item, Item)), None)


# ---- metadata


@verb("set")
def set_metadata(
    place: Place,
    name: Name,
    metadata: Metadata = None,
    ids: Ids = None,
    table: From = None,
    columns: Columns = [],  # noqa: B006
    path_column: PathColumn = None,
    where: Where = None,
    replace: Replace = False,
    as_json: Json = False,
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
    with place.opened() as store:
        collection = store.get(name)
        if columns and table is not None:
            found = table_values(collection, read_rows(LabelTable(table, path_column=path_column), columns, empty=True))
            updated = collection.update_each(patches_of(collection, found.values)[0], keep=HASHES)
            counts = {"unmatched_rows": len(found.unmatched_rows), "unmatched_items": found.unmatched_items}
            rest = f"; items without a row: {found.unmatched_items}"
        else:
            try:
                patch = parse_json(metadata or "")
            except ValueError as error:
                form = f"give the table with --from {metadata}" if str(metadata).endswith(".csv") else ""
                form = form or 'write it like \'{"label": "cat"}\''
                raise InvalidRequest(f"METADATA is not valid: {error}. To fix it, {form}.") from error
            if not isinstance(patch, dict):
                raise InvalidRequest(f'METADATA must be an object such as {{"label": "cat"}}, got {metadata:.80}.')
            chosen = _chosen(collection, ids, where, table, path_column)
            updated = collection.update_metadata(patch, **chosen, replace=replace, keep=HASHES)
            counts, rest = {}, _unknown(name, ids, updated)
    value = {"collection": name, "updated": updated, **counts}
    show(as_json, value, f"{name}: metadata of {counted(updated, 'item')} set{rest}")


@verb()
def delete(
    place: Place,
    name: Name,
    ids: Ids = None,
    table: From = None,
    path_column: PathColumn = None,
    where: Where = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete items by ids, or those that pass a filter after a question.

    Example: nnclr store delete photos --where '{"must": [{"key": "draft", "match": true}]}'

    Example: nnclr store delete photos --from report/duplicates.csv
    """
    with place.opened() as store:
        collection = store.get(name)
        chosen = _chosen(collection, ids, where, table, path_column)
        if "where" in chosen and not yes:
            confirm(f"Delete {counted(collection.count(chosen['where']), 'item')} of {name}?")
        deleted = collection.delete(**chosen)
    rest = _unknown(name, ids, deleted)
    show(as_json, {"collection": name, "deleted": deleted}, f"{name}: {counted(deleted, 'item')} deleted{rest}")


def _chosen(
    collection: Collection, ids: list[str] | None, where: str | None, table: Path | None, path_column: str | None
) -> dict[str, Any]:
    from nnclr_hub.store.edits import check_choice
    from nnclr_hub.workbench.metadata import match_items

    if sum(one is not None for one in (ids, where, table)) != 1:
        raise InvalidRequest("Choose items by --id, repeated as needed, by --from or by --where; give exactly one.")
    if table is not None:
        rows = read_rows(LabelTable(table, path_column=path_column), [], empty=True)
        return {"ids": list(match_items(collection, rows).cells)}
    if (condition := parse_where(where)) is None:
        return {"ids": ids}
    check_choice(None, condition)  # before a question
    note_unknown_keys(collection, condition)
    return {"where": condition}


def _unknown(name: str, ids: list[str] | None, found: int) -> str:
    if ids and not found:
        raise ItemNotFound(f"No item of {name} has the id {_some(ids)}.")
    unknown = len(set(ids or ())) - found
    return f"; unknown ids: {unknown}" if ids and unknown else ""


@verb()
def facets(place: Place, name: Name, keys: Keys, where: Where = None, limit: Limit = 10, as_json: Json = False) -> None:
    """Count the values of metadata keys. Works while a server uses the store.

    Example: nnclr store facets photos label camera.model
    """
    with place.opened(read_only=True) as store:
        collection, chosen = store.get(name), parse_where(where)
        found = collection.facets(keys, chosen, limit)
        empty = [key for key, one in found.items() if not one.items]
        note_unknown_keys(collection, chosen if len(empty) == len(found) else None, *empty)
    values = {key: [{"value": value, "count": n} for value, n in one.values] for key, one in found.items()}
    lines: list[Any] = []
    for key, one in found.items():
        rows = [(value if isinstance(value, str) else json.dumps(value), f"{n:,}") for value, n in one.values]
        title = f"{key}: {counted(one.items, 'item')}"
        lines.append(new_table("value", "items", right=("items",), rows=rows, title=title, title_justify="left"))
        if more := one.distinct - len(one.values):
            lines.append(f"{counted(more, 'further value')}; --limit shows more.")
    show(as_json, [{**asdict(one), "values": values[key]} for key, one in found.items()], *lines)


@verb()
def indexed(place: Place, name: Name, keys: NewKeys = None, none: NoKey = False, as_json: Json = False) -> None:
    """Show or change which metadata keys are indexed. Filters work with every key; those of others start slower.

    In Milvus, filters work with indexed keys only.

    Example: nnclr store indexed photos label camera.model
    """
    if keys and none:
        raise InvalidRequest("Name keys to index, or give --none; not both.")
    with place.opened(read_only=not keys and not none) as store:
        collection = store.get(name)
        if keys or none:
            collection.change_indexed(keys or [])
            note_unknown_keys(collection, None, *(keys or ()))
        known = list(collection.spec.indexed)
    show(as_json, {"collection": name, "indexed": known}, f"{name}: {', '.join(known) or 'no key'} indexed")


# ---- backups


@verb()
def backup(place: Place, destination: Destination = None, keep: Keep = None, as_json: Json = False) -> None:
    """Back up all collections, aliases, jobs and probes. Works while a server uses the store.

    Backups to the same destination copy only what is new. The exit code is 1 if a collection is damaged: then the
    backup has all others, and no older backup is removed.

    Example: nnclr store backup /mnt/backups/nnclr --keep 30
    """
    from nnclr_hub.workbench.maintenance import BackupRequest

    with place.bench(read_only=True) as bench, megabytes("copying") as advance:
        report = bench.run("backup", BackupRequest(keep, destination), advance)
    where = destination or "the folder that NNCLR_BACKUP_TO names on the server"
    collections = counted(report["collections"], "collection")
    made = (
        f"Backup {report['id']} in {where}: {counted(report['items'], 'item')} in {collections}, "
        f"{report['written'] / MEGABYTE:.1f} MB copied, {report['size'] / MEGABYTE:.1f} MB in all."
    )
    freed = f"Older backups removed: {report['removed']}; {report['freed'] / MEGABYTE:.1f} MB freed."
    value = {"destination": destination, **report}
    show(as_json, value, made, freed if report["removed"] or report["freed"] else "")


@group.command()
def backups(source: Backups, as_json: Json = False) -> None:
    """List the backups, oldest first. Ids are times in UTC.

    Example: nnclr store backups /mnt/backups/nnclr
    """
    from nnclr_hub.store.backup import list_backups

    names = ("id", "collections", "aliases", "size", "missing")
    rows = [{name: getattr(one, name) for name in names} for one in list_backups(source)]
    lines = []
    for row in rows:
        counts = ", ".join(f"{name} ({counted(items, 'item')})" for name, items in row["collections"].items())
        without = f", without {', '.join(row['missing'])} (damaged)" if row["missing"] else ""
        lines.append(f"{row['id']}: {row['size'] / MEGABYTE:.1f} MB, {counts or 'no collections'}{without}")
    if not rows:
        raise InvalidRequest(f"{source} has no backup; check the address.")
    show(as_json, rows, *lines)


@group.command()
def restore(source: Backups, folder: Restored, at: At = None, as_json: Json = False) -> None:
    """Restore a backup to a new store.

    Example: nnclr store restore /mnt/backups/nnclr restored-store --at 2026-05-01T12:00
    """
    from nnclr_hub.store.backup import restore as restore_store

    with megabytes("restoring") as advance:
        backup = restore_store(source, folder, at, progress=advance)
    lines = [f"{name}: {counted(items, 'item')}" for name, items in backup.collections.items()]
    lines += [f"{name}: not in this backup, because it was damaged; see --at" for name in backup.missing]
    value = {"folder": str(folder), "backup": backup.id, "collections": backup.collections, "missing": backup.missing}
    show(as_json, value, *lines, f"Restored backup {backup.id} to {folder}.")


@group.command("verify-backup")
def verify_backup(source: Backups, as_json: Json = False) -> None:
    """Read every file of the backups back, without restoring them. The exit code is 1 if anything is wrong.

    Example: nnclr store verify-backup /mnt/backups/nnclr
    """
    from nnclr_hub.store.backup import verify_backups

    with megabytes("verifying") as advance:
        problems = verify_backups(source, progress=advance)
    value = [{"id": one, "ok": problem is None, "problem": problem} for one, problem in problems.items()]
    show(as_json, value, *(f"{one}: {problem or 'intact'}" for one, problem in problems.items()))
    if any(problems.values()):
        raise typer.Exit(1)
