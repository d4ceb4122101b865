"""nnclr store: create, list, check, move, edit and back up collections."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from nnclr_hub.cli.options import Place, on_store
from nnclr_hub.cli.verbs import (
    Json,
    Model,
    bar,
    confirm,
    err,
    list_broken,
    megabytes,
    new_table,
    note_unknown_keys,
    parse_numbers,
    parse_where,
    place_of,
    show,
)
from nnclr_hub.errors import CollectionNotFound, InvalidRequest, ItemNotFound, NNCLRHubError, StoreCorrupt
from nnclr_hub.table_rows import LabelTable, read_rows

if TYPE_CHECKING:
    from nnclr_hub.client import Client
    from nnclr_hub.store.base import Collection, VectorStore
    from nnclr_hub.store.reports import CollectionInfo, RepairReport, SalvageReport, VerifyReport
    from nnclr_hub.workbench import Workbench
    from nnclr_hub.workbench.requests import ImportFormat

group = typer.Typer(no_args_is_help=True, help="Manage a vector store: list, verify, repair, move, rename.")
FEW = 5  # ids per kind of damage that are listed; the others are only counted
GROUPS = 20  # groups of duplicates that are printed before they are only counted
CHUNK = 500
MEGABYTE = 10**6


def register(app: typer.Typer) -> None:
    """Add the verb group."""
    app.add_typer(group, name="store")


class Shown:
    """What a verb prints: JSON for programs, or lines and tables for people; the exit code is 1 if something failed."""

    def __init__(self, value: Any, *lines: Any, failed: bool = False) -> None:
        self.value, self.lines, self.failed = value, lines, failed
        self.error: NNCLRHubError | None = None  # raised afterwards


def verb(name: str | None = None, opens: str = "opened", **how: bool) -> Callable[[Callable[..., Shown]], object]:
    """Add a verb, with the options of a store and --json; its first argument is what this method of `Place` opens.

    Args:
        name: None: that of the function.
        opens: "opened", "bench", or "" for the place itself.
        how: options of the method.
    """

    def decorate(function: Callable[..., Shown]) -> object:
        _, *others = inspect.signature(function).parameters.values()

        def run(place: Place, as_json: bool, **given: Any) -> None:
            given |= {"as_json": as_json} if others and others[-1].name == "as_json" else {}
            with getattr(place, opens)(**how) if opens else nullcontext(place) as there:
                shown = function(there, **given)
            show(as_json, shown.value, *shown.lines)
            if shown.error is not None:
                raise shown.error
            if shown.failed:
                raise typer.Exit(1)

        fixed = [("as_json", Json, False), ("place", Place, inspect.Parameter.empty)]
        added = [inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, annotation=t, default=d) for one, t, d in fixed]
        parameters = [one for one in others if one.name != "as_json"] + added
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        return group.command(name or function.__name__)(on_store(run))

    return decorate


def _argument(help: str, **more: Any) -> Any:
    return typer.Argument(help=help, **more)


def _option(help: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, help=help, **more)


# ---- arguments and options, each once

Name = Annotated[str, _argument("Collection or alias.")]
NameOrNone = Annotated[str | None, _argument("Collection or alias. Default: the catalog.")]
NewName = Annotated[str, _argument("Name of the new collection.")]
OwnName = Annotated[str, _argument("Collection; not an alias.")]
Names = Annotated[list[str] | None, _argument("Collections. Default: all.")]
Alias = Annotated[str, _argument("The alias.", metavar="ALIAS")]
OldAlias = Annotated[str, _argument("The alias to delete.", metavar="ALIAS")]
To = Annotated[str, _argument("Its new name; its aliases stay.")]
Ids = Annotated[list[str] | None, _option("Id of an item. Repeatable.", "--id")]
FROM = "CSV that names items in its column id or path, such as a table of `nnclr inspect`."
From = Annotated[Path | None, _option(FROM, "--from")]
PathColumn = Annotated[str | None, _option("Column of --from with ids or paths.", "--path-column")]
Where = Annotated[str | None, _option("Filter on metadata, as JSON, instead of ids.")]
Backups = Annotated[str, _argument("Folder or address with backups, for example s3://bucket/nnclr.")]
# of create
COMPARED = (
    "What searches compare: raw (vectors as they are), center, half_whiten or whiten. auto: half_whiten, if of a "
)
Vectors = Annotated[str, _option(f"{COMPARED}model.")]
Yes = Annotated[bool, _option("Do not ask for confirmation.", "--yes", "-y")]
# of reembed
NEW_MODEL = "The new encoder, as in `nnclr models`; with --server, one that it serves."
NewModel = Annotated[str | None, _option(NEW_MODEL, "--model")]
SkipMissing = Annotated[bool, _option("Leave out items whose file is missing or changed.", "--skip-missing")]
STOPPED = "Nothing else writes to it now; required on Milvus."
Stopped = Annotated[bool, _option(STOPPED, "--writes-stopped")]
# of duplicates
NEAR = "Lowest score of a pair, or auto: above chance here. Default: equal pixels."
Near = Annotated[str | None, _option(NEAR, "--near")]
Exact = Annotated[bool, _option("With --near: compare every pair; slow for large collections.", "--exact")]
# of export and import
NewFolder = Annotated[Path, _argument("Folder to write; must not exist.")]
Thumbnails = Annotated[bool, _option("Include thumbnails.", "--thumbnails/--no-thumbnails")]
SOURCE = (
    "Folder that `nnclr store export`, or `nnclr embed`, wrote; or a file: a zip or tar of images, or vectors as "
    "NDJSON, Arrow or Parquet."
)
Imported = Annotated[Path, _argument(SOURCE)]
Target = Annotated[str | None, _option("Name of the collection. Default: the exported name.", "--collection")]
Into = Annotated[bool, _option("Add to a collection that holds other items.", "--into")]
# of set, delete and facets
COLUMN = (
    "With --from: write this column, as the type that the values of the key have, or else as text; KEY=COLUMN for "
    "another key. Repeatable."
)
Keys = Annotated[list[str], _argument("Metadata keys, or paths such as camera.model.")]
Limit = Annotated[int, _option("Values per key, 1 to 1000.")]
NoKey = Annotated[bool, _option("Index no key.", "--none")]
NewKeys = Annotated[list[str] | None, _argument("Metadata keys to index instead of the present ones.")]
# of backups
Destination = Annotated[
    str | None, _argument("Folder, or address such as s3://bucket/nnclr. With --server, leave it out.")
]
Keep = Annotated[int | None, _option("Number of backups to keep; older ones are removed. Default: all.", min=1)]
AT = (
    "Id of a backup, or a time such as 2026-05-01T12:00 in the time zone of this machine, or 2026-05-01T12:00Z in UTC: "
    "the last backup until then. Default: the newest."
)
RESTORED = "Folder of the new store; does not exist, or is empty."


def _some(ids: Any) -> str:
    return ", ".join(ids[:FEW]) + (", ..." if len(ids) > FEW else "")


# ---- collections


@verb("list", read_only=True)
def list_collections(there: VectorStore) -> Shown:
    """List the collections with their size and state. Works while a server uses the store.

    Example: nnclr store list

    Example: nnclr store list --server http://127.0.0.1:8000
    """
    aliases = there.aliases()
    rows = [_row(info, aliases) for info in there.list()]
    headings = ("name", "items", "MB", "dim", "metric", "index", "state", "aliases", "model")
    table = new_table(*headings, right=("items", "MB", "dim"))
    for row in rows:
        late = row["durable_seq"] - row["indexed_seq"]
        state = row["state"] + (f", index {late} changes behind" if late else "")
        metric = row["metric"] if row["vectors"] == "raw" else f"{row['metric']}, {row['vectors']}"
        model = f"{row['model']} ({row['fingerprint'][:8]})" if row["fingerprint"] else row["model"]
        size = "" if row["bytes"] is None else f"{row['bytes'] / 1e6:,.1f}"
        cells = [row["name"], row["items"], size, row["dim"], metric, row["index"], state]
        table.add_row(*map(str, cells), ", ".join(row["aliases"]), model)
    return Shown(rows, table if rows else "The store is empty; add images with `nnclr index`.")


def _row(info: CollectionInfo, aliases: dict[str, str]) -> dict[str, Any]:
    spec = {one: getattr(info.spec, one) for one in ("dim", "metric", "precision", "vectors", "model", "fingerprint")}
    names = ("index", "state", "recall_estimate", "durable_seq", "indexed_seq", "bytes")
    state = {one: getattr(info, one) for one in names}
    own = sorted(alias for alias, name in aliases.items() if name == info.name)
    return {"name": info.name, "aliases": own, "items": info.count, **spec, **state}


@verb(opens="bench", create=True)
def create(
    bench: Workbench | Client,
    name: NewName,
    model: Model = None,
    dim: Annotated[int | None, _option("Length of the vectors, for a collection without a model.")] = None,
    metric: Annotated[str, _option("cosine, dot or l2.")] = "cosine",
    index: Annotated[str, _option("auto, flat, hnsw, ivf, ivf_sq8, ivf_pq; on Milvus diskann.")] = "auto",
    precision: Annotated[str, _option("f32, or f16 for half the space.")] = "f32",
    vectors: Vectors = "auto",
    indexed: Annotated[list[str], _option("Metadata key for fast filters. Repeatable.")] = ["label"],  # noqa: B006
) -> Shown:
    """Create an empty collection with options that `nnclr index` and `import` would set to defaults.

    Example: nnclr store create photos --precision f16 --indexed label --indexed path
    """
    from nnclr_hub.workbench.requests import NewCollection

    options: Any = {"metric": metric, "index": index, "precision": precision, "vectors": vectors, "indexed": indexed}
    spec = bench.create_collection(name, NewCollection(model, dim, **options)).spec
    by = f" by {spec.model}" if spec.model else ""
    made = f"Created {name}: vectors of length {spec.dim}{by}, {metric}, {precision}, {spec.vectors}."
    return Shown({"name": name, **asdict(spec)}, made)


@verb(opens="bench")
def drop(bench: Workbench | Client, name: OwnName, yes: Yes = False) -> Shown:
    """Delete a collection with all its items.

    Example: nnclr store drop photos.old --yes
    """
    try:
        info = bench.store.get(name).info()
        known, items = info.name, f"with its {info.count} items"
    except StoreCorrupt:
        known, items = name, "whose file cannot be read"
    if not yes and known == name:  # an alias is refused below, without a question
        confirm(f"Permanently delete {name} {items}?")
    bench.drop(name)
    return Shown({"dropped": name}, f"{name}: dropped")


@verb()
def alias(there: VectorStore, new: Alias, name: Name) -> Shown:
    """Point an alias to a collection, whatever it pointed to before.

    Example: nnclr store alias current photos
    """
    target = there.get(name).info().name
    there.alias(new, target)
    return Shown({"alias": new, "name": target}, f"{new} -> {target}")


@verb()
def unalias(there: VectorStore, old: OldAlias) -> Shown:
    """Delete an alias; its collection stays.

    Example: nnclr store unalias current
    """
    there.unalias(old)
    return Shown({"deleted": old}, f"{old}: alias deleted")


@verb(opens="bench")
def rename(bench: Workbench | Client, name: OwnName, to: To) -> Shown:
    """Rename a collection.

    Example: nnclr store rename photos.old photos-2024
    """
    bench.rename(name, to)
    return Shown({"name": to}, f"{name} is now {to}")


@verb(opens="")
def reembed(
    place: Place,
    name: Name,
    model: NewModel = None,
    skip_missing: SkipMissing = False,
    writes_stopped: Stopped = False,
    abandon: Annotated[bool, _option("Cancel: drop what was built so far.", "--abandon")] = False,
) -> Shown:
    """Embed a collection again with another encoder, from its images. Run it again to continue after an interruption.

    With --server, the server reads the images. At most 100 of the items that are left out are named.

    Example: nnclr store reembed photos --model runs/my/encoder
    """
    from nnclr_hub.workbench.reembedding import ReembedRequest

    if abandon == (model is not None):
        raise InvalidRequest("Name the new encoder with --model, or cancel with --abandon.")
    with place.bench() as bench:
        if model is None:
            bench.abandon_reembed(name)
            return Shown({"name": name}, f"{name} has no unfinished copy now; it was not changed.")
        with bar("embedding") as advance:
            report = bench.run("reembed", ReembedRequest(name, model, skip_missing, writes_stopped), advance)
    skipped, kept = report["skipped_count"], report["kept"]
    list_broken([(one["item"], f"left out: {one['reason']}") for one in report["skipped"]], skipped)
    done = (
        f"{name}: {report['items']} items by {model} ({report['embedded']} embedded now, {skipped} left out). "
        f"The old collection is kept as {kept}; `nnclr store drop {kept}{place.words}` deletes it."
    )
    if report["collection"] is None:
        done = f"{name} already holds vectors of {model}; nothing to do."
    return Shown({"name": name, "model": model, **report}, done)


# ---- look after


@verb(read_only=True)
def verify(there: VectorStore, names: Names = None) -> Shown:
    """Read every vector back and compare the index with an exhaustive search. Works while a server uses the store.

    The exit code is 1 if anything is wrong. With --server, at most 1000 ids of each kind of damage are counted.

    Example: nnclr store verify photos
    """
    found: list[dict[str, Any]] = []
    lines: list[Text] = []
    for name in names or [info.name for info in there.list()]:
        with bar(f"verifying {name}", "items") as advance:
            try:
                report = there.get(name).verify(advance)
                found.append({"name": name, "ok": report.ok, **asdict(report)})
                lines += _verified(name, report)
            except StoreCorrupt as error:  # the others are checked, too
                found.append({"name": name, "ok": False, "error": str(error)})
                lines.append(Text(f"{name}: {error}", "red"))
    return Shown(found, *lines, failed=not all(one["ok"] for one in found))


def _verified(name: str, report: VerifyReport) -> list[Text]:
    from nnclr_hub.store.reports import MIN_RECALL

    if report.ok:
        return [Text(f"{name}: all {report.items} items are intact (recall {report.recall:.3f})")]
    damaged: dict[str, list[str]] = {}
    for id, part in zip_longest(report.damaged, report.parts, fillvalue="vector"):
        damaged.setdefault(part, []).append(id)
    found: dict[str, Sequence[str]] = {f"items have a damaged {part}": ids for part, ids in damaged.items()}
    found["items are missing from the index"] = report.missing
    found["items of the sample are not found as an exhaustive search finds them"] = report.disagreements
    lines = [f"{name}: {len(ids)} of {report.items} {text}: {_some(ids)}" for text, ids in found.items() if ids]
    hint = [Text(f"Repair it with `nnclr store repair {name}`.")] if lines else []
    if report.recall < MIN_RECALL:
        lines.append(
            f"{name}: its index finds {report.recall:.3f} of the ten nearest: search with --exact or more --effort, "
            "or give the store more memory."
        )
    return [*(Text(line, "red") for line in lines), *hint]


@verb(opens="")
def repair(place: Place, name: NameOrNone = None) -> Shown:
    """Remove damaged items, keep their metadata in a file, and rebuild the index.

    If a whole file is damaged, everything readable is copied to a new one; the exit code is 1 if anything was lost.
    Without a name, a damaged or missing catalog is rebuilt from the files of the collections.

    Example: nnclr store repair photos
    """
    from nnclr_hub.store.folder.store import EmbeddedStore

    if name is None:
        return _repair_catalog(place)
    salvaged: SalvageReport | None = None
    with place.opened() as there, bar("repairing", "items") as advance:
        try:
            report = there.get(name).repair(advance)
        except StoreCorrupt:
            if not isinstance(there, EmbeddedStore):  # Milvus manages its own files
                raise
            salvaged = there.salvage(name, advance)
            report = there.get(name).repair(advance)
    value = {"name": name, **asdict(report), "salvaged": asdict(salvaged) if salvaged else None}
    return Shown(value, *_repaired(name, report, salvaged), failed=bool(salvaged and not salvaged.complete))


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
        lines.append(f"Removed were {_some(report.removed)}{kept}. Index them again.")
    return lines


def _repair_catalog(place: Place) -> Shown:
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
    lost = "" if saved is None else f"The file of jobs and probes was damaged; {saved} of its records were saved."
    return Shown({"rebuilt": names is not None, "collections": names, "records_saved": saved}, lost, done)


@verb()
def snapshot(there: VectorStore, names: Names = None) -> Shown:
    """Write the index to disk now, so that the next start is fast.

    Example: nnclr store snapshot
    """
    done = names or [info.name for info in there.list()]
    for collection in [there.get(name) for name in done]:  # a wrong name is refused before the first one
        collection.snapshot()
    return Shown(done, *(f"{name}: snapshot written" for name in done))


@verb()
def compact(there: VectorStore, names: Names = None) -> Shown:
    """Rebuild the index without deleted items.

    Example: nnclr store compact photos
    """
    counts = {}
    chosen = {name: there.get(name) for name in names or [info.name for info in there.list()]}
    for name, collection in chosen.items():
        with bar(f"compacting {name}", "items") as advance:
            collection.compact(advance)
        counts[name] = collection.count()
    return Shown(counts, *(f"{name}: compacted, {count} items" for name, count in counts.items()))


@verb(opens="bench", read_only=True)
def duplicates(
    bench: Workbench | Client, name: Name, near: Near = None, exact: Exact = False, as_json: Json = False
) -> Shown:
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
    with bar("comparing", "items") as advance:
        collection = bench.collection(name)
        request = DuplicatesRequest(name, threshold, exact=exact, limit=MAX_LIMIT if as_json else GROUPS)
        found = bench.run("duplicates", request, advance)
        unknown = collection.count({"must_not": [{"key": PIXEL_HASH, "exists": True}]}) if near is None else 0
        places = _places(collection, [id for one in found["groups"] for id in one["ids"]])
    # an item may just have been deleted
    groups = [[(id, *places[id]) for id in one["ids"] if id in places] for one in found["groups"]]
    counts = {"found": found["found"], "surplus": found["surplus"]}
    named = [[dict(zip(("id", "root", "path"), one, strict=True)) for one in group] for group in groups]
    value = {"collection": name, **counts, "groups": named, "without_hash": unknown}
    roots = {root for group in groups for _, root, _ in group}
    shared = next(iter(roots)) if len(roots) == 1 else ""  # then paths are relative to it
    lines = [f"In {shared}:\n" if shared else ""]
    for group, size in zip(groups, (one["size"] for one in found["groups"]), strict=True):
        files = [f"  {path if shared else Path(root, path)}\n" for _, root, path in group]
        more = f"  and {size - len(group)} more\n" if size > len(group) else ""
        lines.append(f"{size} alike:\n{''.join(files)}{more}")
    more = f", of which {GROUPS} are shown (--json has more)" if counts["found"] > GROUPS else ""
    if unknown and not as_json:
        hint = "have no pixel hash and were not compared; use --near 0.999 to compare their vectors."
        err.print(f"{unknown} items {hint}", style="yellow", soft_wrap=True)
    return Shown(value, *lines, f"{counts['found']} groups with {sum(counts.values())} items{more}")


def _places(collection: Collection, ids: list[str]) -> dict[str, tuple[str, str]]:
    """Return the folder and the path there of each item."""
    parts = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
    return {item.id: place_of(item.id, item.metadata) for part in parts for item in collection.get(part)}


# ---- export and import


@verb(read_only=True)
def export(there: VectorStore, name: Name, folder: NewFolder, thumbnails: Thumbnails = True) -> Shown:
    """Export a collection as Parquet and safetensors files. Works while a server uses the store.

    Example: nnclr store export photos photos-export
    """
    from nnclr_hub.store.exchange import export_collection

    with bar("exporting", "items") as advance:
        manifest = export_collection(there.get(name), folder, thumbnails=thumbnails, progress=advance)
    written = f"{folder}: {manifest.items} items of {name}, {manifest.size / MEGABYTE:.1f} MB"
    return Shown({"folder": str(folder), **asdict(manifest), "bytes": manifest.size}, written)


@verb("import", opens="")
def import_(place: Place, source: Imported, name: Target = None, into: Into = False) -> Shown:
    """Import an exported folder, shards of `nnclr embed`, or a file. Run it again to continue after an interruption.

    A file is imported into an existing collection. With --server, the server imports it, and stores no thumbnails of an
    exported folder.

    Example: nnclr store import photos-export --collection photos
    """
    from nnclr_hub.bulk import open_shards
    from nnclr_hub.bulk.collection_import import collect
    from nnclr_hub.bulk.plan import PLAN
    from nnclr_hub.progress import bars, in_megabytes
    from nnclr_hub.store.checks import check_collection_name
    from nnclr_hub.store.exchange import import_collection, read_manifest

    if not source.exists():
        raise InvalidRequest(f"{source} does not exist.")
    if source.is_file():
        return _import_file(source, name, place)
    shards = open_shards(source) if (source / PLAN).exists() else None
    if shards is None:
        exported = read_manifest(source).name
        name = name or exported
    elif name is None:
        raise InvalidRequest(f"{source} holds shards of `nnclr embed`; name a collection with --collection.")
    else:
        shards.require_all()
    name = check_collection_name(name)  # a wrong folder or name must not leave an empty store behind
    with place.opened(create=True) as there, bars(err) as new_bar:
        checking, storing = in_megabytes(new_bar("checking", "MB")), new_bar("importing", "items")
        if shards is not None:
            items, written = collect(shards, there, name, into=into, progress=storing)
            value: dict[str, Any] = {"items": items, "written": written}
        else:
            value = asdict(import_collection(there, name, source, into=into, checking=checking, progress=storing))
    left = value["items"] - value["written"]
    existing = f", the other {left} existed already" if left and shards is None else ""
    line = f"{name}: {value['written']} of {value['items']} items written{existing}"
    return Shown({"collection": name, **value}, line)


def _import_file(file: Path, name: str | None, place: Place) -> Shown:
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
        with bar("importing", "steps") as advance:
            result = bench.run("import", ImportRequest(name, str(file), format.name), advance)
    counted = ("added", "replaced", "unchanged")
    list_broken([(error["name"], error["detail"]) for error in result["errors"]], result["errors_count"])
    if left_out := ", ".join(f"{n} {suffix or 'without suffix'}" for suffix, n in result["left_out"].items()):
        err.print(f"left out: {left_out}")
    counts = ", ".join(f"{result[what]} {what}" for what in counted)
    shown = Shown(result, f"{name}: {counts}, {result['errors_count']} invalid")
    if result["errors_count"] and not any(result[what] for what in counted):
        shown.error = InvalidRequest(f"Nothing in {file} could be imported; each error above says why.")
    return shown


def _dim_of(file: Path, format: ImportFormat) -> int | None:
    """Return the length of the first vector of a file; None if it has none."""
    from nnclr_hub.store.base import Item
    from nnclr_hub.workbench.item_file import read_items

    rows = () if format.images else read_items(file, format)
    return next((len(item.vector) for _, item, _ in rows if isinstance(item, Item)), None)


# ---- metadata


@verb("set")
def set_metadata(
    there: VectorStore,
    name: Name,
    metadata: Annotated[str | None, _argument("JSON object. null removes a key, objects are merged.")] = None,
    ids: Ids = None,
    table: From = None,
    columns: Annotated[list[str], _option(COLUMN, "--column")] = [],  # noqa: B006
    path_column: PathColumn = None,
    where: Where = None,
    replace: Annotated[bool, _option("Replace all metadata instead of merging.", "--replace")] = False,
) -> Shown:
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
    collection = there.get(name)
    if columns and table is not None:
        found = table_values(collection, read_rows(LabelTable(table, path_column=path_column), columns, empty=True))
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
        chosen = _chosen(collection, ids, where, table, path_column)
        updated = collection.update_metadata(patch, **chosen, replace=replace, keep=HASHES)
        counts, rest = {}, _unknown(name, ids, updated)
    value = {"collection": name, "updated": updated, **counts}
    return Shown(value, f"{name}: metadata of {updated} items set{rest}")


@verb()
def delete(
    there: VectorStore,
    name: Name,
    ids: Ids = None,
    table: From = None,
    path_column: PathColumn = None,
    where: Where = None,
    yes: Annotated[bool, _option("With --where: do not ask.", "--yes")] = False,
) -> Shown:
    """Delete items by ids, or those that pass a filter.

    Example: nnclr store delete photos --where '{"must": [{"key": "draft", "match": true}]}'

    Example: nnclr store delete photos --from report/duplicates.csv
    """
    collection = there.get(name)
    chosen = _chosen(collection, ids, where, table, path_column)
    if "where" in chosen and not yes:
        confirm(f"Delete {collection.count(chosen['where'])} items of {name}?")
    deleted = collection.delete(**chosen)
    rest = _unknown(name, ids, deleted)
    return Shown({"collection": name, "deleted": deleted}, f"{name}: {deleted} items deleted{rest}")


def _chosen(
    collection: Collection, ids: list[str] | None, where: str | None, table: Path | None, path_column: str | None
) -> dict[str, Any]:
    from nnclr_hub.workbench.metadata import match_items

    if sum(one is not None for one in (ids, where, table)) != 1:
        raise InvalidRequest("Choose items by --id, repeated as needed, by --from or by --where; give exactly one.")
    if table is not None:
        rows = read_rows(LabelTable(table, path_column=path_column), [], empty=True)
        return {"ids": list(match_items(collection, rows).cells)}
    note_unknown_keys(collection, parse_where(where))
    return {"ids": ids} if where is None else {"where": parse_where(where)}


def _unknown(name: str, ids: list[str] | None, found: int) -> str:
    """Return how many of the ids no item has, to append to a report; raise ItemNotFound if none exists."""
    if ids and not found:
        raise ItemNotFound(f"No item of {name} has the id {_some(ids)}.")
    unknown = len(set(ids or ())) - found
    return f"; {unknown} ids do not exist" if ids and unknown else ""


@verb(read_only=True)
def facets(there: VectorStore, name: Name, keys: Keys, where: Where = None, limit: Limit = 10) -> Shown:
    """Count the values of metadata keys. Works while a server uses the store.

    Example: nnclr store facets photos label camera.model
    """
    collection, chosen = there.get(name), parse_where(where)
    found = collection.facets(keys, chosen, limit)
    empty = [key for key, one in found.items() if not one.items]
    note_unknown_keys(collection, chosen if len(empty) == len(found) else None, *empty)
    values = {key: [{"value": value, "count": n} for value, n in one.values] for key, one in found.items()}
    lines: list[Any] = []
    for key, one in found.items():
        rows = [(value if isinstance(value, str) else json.dumps(value), f"{n:,}") for value, n in one.values]
        title = f"{key}: {one.items} items"
        lines.append(new_table("value", "items", right=("items",), rows=rows, title=title, title_justify="left"))
        if one.distinct > len(one.values):
            lines.append(f"{one.distinct - len(one.values)} further values; --limit shows more.")
    return Shown([{**asdict(one), "values": values[key]} for key, one in found.items()], *lines)


@verb(opens="")
def indexed(place: Place, name: Name, keys: NewKeys = None, none: NoKey = False) -> Shown:
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
    return Shown({"collection": name, "indexed": known}, f"{name}: {', '.join(known) or 'no key'} indexed")


# ---- backups


@verb(opens="bench", read_only=True)
def backup(bench: Workbench | Client, destination: Destination = None, keep: Keep = None) -> Shown:
    """Back up all collections, aliases, jobs and probes. Works while a server uses the store.

    Backups to the same destination copy only what is new. The exit code is 1 if a collection is damaged: then the
    backup has all others, and no older backup is removed.

    Example: nnclr store backup /mnt/backups/nnclr --keep 30
    """
    from nnclr_hub.workbench.maintenance import BackupRequest

    with megabytes("copying") as advance:
        report = bench.run("backup", BackupRequest(keep, destination), advance)
    where = destination or "the folder that NNCLR_BACKUP_TO names on the server"
    made = (
        f"Backup {report['id']} in {where}: {report['items']} items in {report['collections']} collections, "
        f"{report['written'] / MEGABYTE:.1f} MB copied, {report['size'] / MEGABYTE:.1f} MB in all."
    )
    freed = f"{report['removed']} older backups were removed; {report['freed'] / MEGABYTE:.1f} MB were freed."
    return Shown({"destination": destination, **report}, made, freed if report["removed"] or report["freed"] else "")


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
        counts = ", ".join(f"{name} ({items} items)" for name, items in row["collections"].items())
        without = f", without {', '.join(row['missing'])}, which was damaged" if row["missing"] else ""
        lines.append(f"{row['id']}: {row['size'] / MEGABYTE:.1f} MB, {counts or 'no collections'}{without}")
    if not rows:
        raise InvalidRequest(f"{source} has no backup; check the address.")
    show(as_json, rows, *lines)


@group.command()
def restore(
    source: Backups,
    folder: Annotated[Path, _argument(RESTORED)],
    at: Annotated[str | None, _option(AT)] = None,
    as_json: Json = False,
) -> None:
    """Restore a backup to a new store.

    Example: nnclr store restore /mnt/backups/nnclr restored-store --at 2026-05-01T12:00
    """
    from nnclr_hub.store.backup import restore as restore_store

    with megabytes("restoring") as advance:
        backup = restore_store(source, folder, at, progress=advance)
    lines = [f"{name}: {items} items" for name, items in backup.collections.items()]
    lines += [f"{name}: not in this backup, because it was damaged; see --at" for name in backup.missing]
    value = {"folder": str(folder), "backup": backup.id, "collections": backup.collections, "missing": backup.missing}
    show(as_json, value, *lines, f"Restored backup {backup.id} to {folder}.")


@group.command("verify-backup")
def verify_backup(source: Backups, as_json: Json = False) -> None:
    """Read every file of the backups back, without restoring them. The exit code is 1 if anything is wrong.

    At an address, delete a file that is reported as damaged; the next backup to a folder replaces it by itself.

    Example: nnclr store verify-backup /mnt/backups/nnclr
    """
    from nnclr_hub.store.backup import verify_backups

    with megabytes("verifying") as advance:
        problems = verify_backups(source, progress=advance)
    value = [{"id": one, "ok": problem is None, "problem": problem} for one, problem in problems.items()]
    show(as_json, value, *(f"{one}: {problem or 'intact'}" for one, problem in problems.items()))
    if any(problems.values()):
        raise typer.Exit(1)
