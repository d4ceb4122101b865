"""nnclr store create, export, import, reembed, duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnclr_hub.cli.index import connected, list_broken, place_of
from nnclr_hub.cli.stores import Name, opened
from nnclr_hub.cli.verbs import (
    DEFAULT_STORE,
    ApiKeyEnv,
    Json,
    Model,
    Server,
    Store,
    chosen_model,
    err,
    loaded_encoder,
    out,
    parse_numbers,
    print_json,
    refuse_server_with_local,
)
from nnclr_hub.errors import InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.store.base import Collection, Progress
    from nnclr_hub.workbench.import_format import ImportFormat

SHOWN = 20  # groups of duplicates that are printed before they are only counted
MEGABYTE = 10**6
CHUNK = 500


def register(group: typer.Typer) -> None:
    """Add the verbs."""
    group.command()(create)
    group.command(name="export")(export)
    group.command(name="import")(import_)
    group.command()(reembed)
    group.command()(duplicates)


def create(
    name: Annotated[str, typer.Argument(help="Name of the new collection.")],
    store: Store = DEFAULT_STORE,
    model: Model = None,
    dim: Annotated[int | None, typer.Option(help="Length of the vectors, for a collection without a model.")] = None,
    metric: Annotated[str, typer.Option(help="cosine, dot or l2.")] = "cosine",
    index: Annotated[str, typer.Option(help="auto (by size and memory), flat, hnsw, ivf, ivf_sq8 or ivf_pq.")] = "auto",
    precision: Annotated[str, typer.Option(help="f32, or f16 for half the space.")] = "f32",
    indexed: Annotated[
        list[str] | None, typer.Option(help="Metadata key for fast filters. Repeatable. Default: label.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create an empty collection with options that `nnclr index` and `import` would set to defaults.

    Example: nnclr store create photos --precision f16 --indexed label --indexed path
    """
    from nnclr_hub.store import open_store
    from nnclr_hub.store.base import CollectionSpec
    from nnclr_hub.store.checks import check_name
    from nnclr_hub.store.where import check_key

    if model is not None and dim is not None:
        raise InvalidRequest("Give --model or --dim, not both; a model determines the length of its vectors.")
    # errors must not leave an empty store behind
    check_name(name, "Collection name")
    for key in indexed or ():
        check_key(key)
    chosen: dict[str, Any] = {"metric": metric, "index": index, "precision": precision}
    if indexed is not None:
        chosen["indexed"] = tuple(indexed)
    spec = replace(CollectionSpec(dim) if dim is not None else CollectionSpec.of(loaded_encoder(model)), **chosen)
    with open_store(store) as there:
        there.create(name, spec)
    if as_json:
        print_json({"name": name, **asdict(spec)})
        return
    by = f" by {spec.model}" if spec.model else ""
    out.print(f"Created {name}: vectors of length {spec.dim}{by}, {metric}, {precision}.", markup=False)


def export(
    name: Name,
    folder: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    store: Store = DEFAULT_STORE,
    thumbnails: Annotated[bool, typer.Option("--thumbnails/--no-thumbnails", help="Include thumbnails.")] = True,
    as_json: Json = False,
) -> None:
    """Export a collection as Parquet and safetensors files. Works while a server uses the store.

    Example: nnclr store export photos photos-export
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.store.exchange.transfer import export_collection

    with opened(store, read_only=True) as there, bar(err, "exporting", unit="items") as advance:
        manifest = export_collection(there.get(name), folder, thumbnails=thumbnails, progress=advance)
    if as_json:
        print_json({"folder": str(folder), **asdict(manifest), "bytes": manifest.size})
        return
    out.print(f"{folder}: {manifest.items} items of {name}, {manifest.size / MEGABYTE:.1f} MB", markup=False)


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
    store: Store = DEFAULT_STORE,
    into: Annotated[bool, typer.Option("--into", help="Add to a collection that holds other items.")] = False,
    server: Server = None,
    api_key_env: ApiKeyEnv = "NNCLR_API_KEY",
    as_json: Json = False,
) -> None:
    """Import an exported folder, shards of `nnclr embed`, or a file. Run it again to continue after an interruption.

    A file is imported into an existing collection. With --server, the server imports it.

    Example: nnclr store import photos-export --collection photos
    """
    from nnclr_hub.bulk.plan import PLAN

    refuse_server_with_local(server, store=store)
    if server is not None and source.is_dir():
        raise InvalidRequest(f"{source} is a folder, and --server takes a file; import it into a local store.")
    if source.is_file() or server is not None:
        _import_file(source, name, store, server, api_key_env, as_json)
    elif (source / PLAN).exists():
        _import_shards(source, name, store, into, as_json)
    else:
        _import_export(source, name, store, into, as_json)


def _import_export(folder: Path, name: str | None, store: str, into: bool, as_json: bool) -> None:
    from nnclr_hub.progress import bar
    from nnclr_hub.store import open_store
    from nnclr_hub.store.checks import check_name
    from nnclr_hub.store.exchange.files import Manifest
    from nnclr_hub.store.exchange.transfer import import_collection

    manifest = Manifest.read(folder)  # a wrong folder or name must not leave an empty store behind
    name = check_name(name or manifest.name, "Collection name")
    with open_store(store) as there, bar(err, "importing", unit="MB") as advance:
        report = import_collection(there, name, folder, into=into, progress=_in_megabytes(advance))
    if as_json:
        print_json({"collection": name, **asdict(report)})
        return
    existing = f", the other {report.items - report.written} existed already" if report.written < report.items else ""
    out.print(f"{name}: {report.written} of {report.items} items written{existing}", markup=False)


def _import_file(file: Path, name: str | None, store: str, server: str | None, api_key_env: str, as_json: bool) -> None:
    from nnclr_hub.workbench.import_format import format_of_file

    if name is None:
        raise InvalidRequest(f"Name the collection for {file} with --collection; it must exist.")
    format = format_of_file(file)
    if server is None:
        result = _import_locally(file, name, store, format)
    else:
        result = _import_there(file, name, server, api_key_env)
    if as_json:
        print_json(result)
        return
    list_broken([(error["name"], error["detail"]) for error in result["errors"]])
    counts = ", ".join(f"{result[what]} {what}" for what in ("added", "replaced", "unchanged"))
    out.print(f"{name}: {counts}, {result['errors_count']} invalid", markup=False)


def _import_locally(file: Path, name: str, store: str, format: ImportFormat) -> dict[str, Any]:
    from nnclr_hub.progress import bar

    with opened(store) as there:
        there.get(name)  # a wrong name is reported before torch is imported
        from nnclr_hub.workbench import Encoders, Workbench
        from nnclr_hub.workbench.file_import import import_file

        bench = Workbench(Encoders(), there)
        with bar(err, "importing", unit="images" if format.images else "MB") as advance:
            progress = advance if format.images else _in_megabytes(advance)
            return import_file(bench, name, file, format, progress=progress).result(name)


def _import_there(file: Path, name: str, server: str, api_key_env: str) -> dict[str, Any]:
    from nnclr_hub.progress import bar

    with connected(server, api_key_env) as client:
        with bar(err, "uploading", unit="MB") as advance:
            job = client.collection(name).import_file(file, progress=_in_megabytes(advance))
        images = job.kind == "add"
        with bar(err, "importing", unit="images" if images else "MB") as advance:
            progress = advance if images else _in_megabytes(advance)
            return dict(client.jobs.wait(job.id, progress=progress).result or {})


def _in_megabytes(advance: Progress) -> Progress:
    """Return the progress of work that counts bytes."""
    return lambda done, total: advance(-(-done // MEGABYTE), -(-total // MEGABYTE))


def _import_shards(folder: Path, name: str | None, store: str, into: bool, as_json: bool) -> None:
    from nnclr_hub.bulk import open_shards
    from nnclr_hub.bulk.collection_import import collect
    from nnclr_hub.progress import bar
    from nnclr_hub.store import open_store
    from nnclr_hub.store.checks import check_name

    if name is None:
        raise InvalidRequest(f"{folder} holds shards of `nnclr embed`; name a collection with --collection.")
    name = check_name(name, "Collection name")  # a wrong name must not leave an empty store behind
    shards = open_shards(folder)
    shards.require_all()
    with open_store(store) as there, bar(err, "importing", unit="items") as advance:
        total, written = collect(shards, there, name, into=into, progress=advance)
    if as_json:
        print_json({"collection": name, "items": total, "written": written})
        return
    out.print(f"{name}: {written} of {total} items written", markup=False)


def reembed(
    name: Name,
    model: Annotated[str | None, typer.Option("--model", help="The new encoder, as in `nnclr models`.")] = None,
    store: Store = DEFAULT_STORE,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out items whose file is missing or changed.")
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Cancel: drop what was built so far.")] = False,
    as_json: Json = False,
) -> None:
    """Embed a collection again with another encoder, from its images. Run it again to continue after an interruption.

    Example: nnclr store reembed photos --model runs/my/encoder
    """
    from nnclr_hub.progress import bar

    if abandon == (model is not None):
        raise InvalidRequest("Name the new encoder with --model, or cancel with --abandon.")
    with opened(store) as there:
        there.get(name)
        if model is not None:
            chosen_model(model)
        from nnclr_hub.workbench import Encoders, Workbench, reembedding  # imports torch

        encoders = Encoders(model)
        bench = Workbench(encoders, there)
        if model is None:
            out.print(f"Dropped {reembedding.abandon(bench, name)}; {name} was not changed.", markup=False)
            return
        with bar(err, "embedding") as advance:
            report = reembedding.reembed(bench, name, model, skip_missing=skip_missing, progress=advance)
    if as_json:
        print_json({"name": name, "model": model, **asdict(report)})
        return
    list_broken([(path, f"left out: {reason}") for path, reason in report.left_out])
    if report.collection is None:
        out.print(f"{name} already holds vectors of {model}; nothing to do.", markup=False)
        return
    out.print(
        f"{name}: {report.items} items by {model} ({report.embedded} embedded now, {len(report.left_out)} left out). "
        f"The old collection is kept as {report.kept}; `nnclr store drop {report.kept}` deletes it.",
        markup=False,
    )


def duplicates(
    name: Name,
    near: Annotated[
        str | None,
        typer.Option("--near", help="Lowest score of a pair, or auto: above chance here. Default: equal pixels."),
    ] = None,
    store: Store = DEFAULT_STORE,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --near: compare every pair; slow for large collections.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List duplicate images: with equal pixels, or nearly equal. Works while a server uses the store.

    Example: nnclr store duplicates photos --near auto
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.workbench.duplicates import exact_duplicates, near_duplicates
    from nnclr_hub.workbench.image_record import PIXEL_HASH

    if exact and near is None:
        raise InvalidRequest("--exact needs --near SCORE; without it, pixels are compared exactly anyway.")
    with opened(store, read_only=True) as there, bar(err, "comparing", unit="items") as advance:
        collection = there.get(name)
        if near is None:
            groups = exact_duplicates(collection, progress=advance)
        else:
            threshold = None if near == "auto" else parse_numbers("--near", near, "SCORE or auto")[0]
            groups = near_duplicates(collection, threshold, exact=exact, progress=advance)
        unknown = collection.count({"must_not": [{"key": PIXEL_HASH, "exists": True}]}) if near is None else 0
        named = [_named(collection, ids) for ids in (groups if as_json else groups[:SHOWN])]
    if as_json:
        found = [[{"id": one.id, "path": one.path} for one in group] for group in named]
        print_json({"collection": name, "groups": found, "without_hash": unknown})
        return
    _print_groups(named)
    more = f", of which {SHOWN} are shown (--json has all)" if len(groups) > SHOWN else ""
    out.print(f"{len(groups)} groups with {sum(map(len, groups))} items{more}", markup=False)
    if unknown:
        err.print(
            f"{unknown} items have no pixel hash and were not compared; use --near 0.999 to compare their vectors.",
            style="yellow",
            soft_wrap=True,
        )


@dataclass(frozen=True)
class _Named:
    """An item with the folder that it was indexed from and its path there; or "" and its id."""

    id: str
    root: str
    relative: str

    @property
    def path(self) -> str:
        return str(Path(self.root, self.relative))


def _named(collection: Collection, ids: Sequence[str]) -> list[_Named]:
    found: list[_Named] = []
    for start in range(0, len(ids), CHUNK):
        for item in collection.get(ids[start : start + CHUNK]):
            found.append(_Named(item.id, *place_of(item.id, item.metadata)))
    return found


def _print_groups(groups: Sequence[Sequence[_Named]]) -> None:
    """Print each group: the count, then the files, relative to their folder if all share it."""
    roots = {one.root for group in groups for one in group}
    shared = roots.pop() if len(roots) == 1 else ""
    if shared:
        out.print(f"In {shared}:\n", markup=False)
    for group in groups:
        files = "\n".join(f"  {one.relative if shared else one.path}" for one in group)
        out.print(f"{len(group)} alike:\n{files}\n", markup=False)
