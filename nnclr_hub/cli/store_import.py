"""nnclr store import: exported folders, shards of `nnclr embed`, archives of images, and files of vectors."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnclr_hub.cli.index import list_broken
from nnclr_hub.cli.place import Place, on_store
from nnclr_hub.cli.verbs import Json, err, out, print_json
from nnclr_hub.errors import CollectionNotFound, InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.store.base import Progress
    from nnclr_hub.workbench.import_format import ImportFormat


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command(name="import")(on_store(import_))


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
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Delete what the server has of an interrupted import of this file.")
    ] = False,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Import an exported folder, shards of `nnclr embed`, or a file. Run it again to continue after an interruption.

    A file is imported into an existing collection. With --server, the server imports it.

    Example: nnclr store import photos-export --collection photos
    """
    from nnclr_hub.bulk.plan import PLAN
    from nnclr_hub.client import Client

    if place.server is not None and source.is_dir():
        raise InvalidRequest(
            f"{source} is a folder, and --server takes a file; import it into a local store, or use `nnclr index "
            "--server` for a folder of images."
        )
    if abandon:
        if place.server is None or name is None:
            raise InvalidRequest("--abandon needs --server and --collection; a local import leaves nothing behind.")
        with place.bench() as bench:
            assert isinstance(bench, Client)
            bench.collection(name).abandon_import(source)
        out.print(f"Deleted what {place.server} had of an interrupted import of {source}.")
    elif not source.exists():
        raise InvalidRequest(f"{source} does not exist.")
    elif source.is_file():
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
    if as_json:
        print_json({"collection": name, **asdict(report)})
        return
    existing = f", the other {report.items - report.written} existed already" if report.written < report.items else ""
    out.print(f"{name}: {report.written} of {report.items} items written{existing}")


def _import_file(file: Path, name: str | None, place: Place, as_json: bool) -> None:
    from nnclr_hub.client import Client
    from nnclr_hub.progress import bar, in_megabytes
    from nnclr_hub.workbench.import_format import format_of_file

    if name is None:
        raise InvalidRequest(f"Name the collection for {file} with --collection; it must exist.")
    format = format_of_file(file)

    def create() -> str:
        dim = _dim_of(file, format)
        return f"`nnclr store create {name}{'' if dim is None else f' --dim {dim}'}{place.words}` creates it"

    if not place.exists:
        raise InvalidRequest(f"{place.store} does not exist; {create()} with the collection.")
    unit = "images" if format.images else "MB"

    def progress(advance: Progress) -> Progress:
        return advance if format.images else in_megabytes(advance)

    with place.bench(backend="auto") as bench:
        try:
            bench.store.get(name)  # a wrong name is reported before torch is imported
        except CollectionNotFound as error:
            raise CollectionNotFound(f"{error} {create()}.") from error
        if isinstance(bench, Client):
            with bar(err, "uploading", unit="MB") as advance:
                job = bench.collection(name).import_file(file, progress=in_megabytes(advance))
            with bar(err, "importing", unit=unit) as advance:
                result = dict(bench.jobs.wait(job.id, progress=progress(advance)).result or {})
        else:
            from nnclr_hub.workbench.file_import import ImportRequest

            with bar(err, "importing", unit=unit) as advance:
                result = bench.run("import", ImportRequest(name, str(file), format.name), progress(advance))
    counted = ("added", "replaced", "unchanged")
    if as_json:
        print_json(result)
    else:
        list_broken([(error["name"], error["detail"]) for error in result["errors"]], result["errors_count"])
        if left_out := ", ".join(f"{n} {suffix or 'without suffix'}" for suffix, n in result["left_out"].items()):
            err.print(f"left out: {left_out}")
        counts = ", ".join(f"{result[what]} {what}" for what in counted)
        out.print(f"{name}: {counts}, {result['errors_count']} invalid")
    if result["errors_count"] and not any(result[what] for what in counted):
        raise InvalidRequest(f"Nothing in {file} could be imported; each error above says why.")


def _dim_of(file: Path, format: ImportFormat) -> int | None:
    """Return the length of the first vector of a file; None if it has none."""
    from nnclr_hub.store.base import Item
    from nnclr_hub.workbench.item_file import read_items

    if format.images:
        return None
    return next((len(item.vector) for _, item, _ in read_items(file, format) if isinstance(item, Item)), None)


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
    if as_json:
        print_json({"collection": name, "items": total, "written": written})
        return
    out.print(f"{name}: {written} of {total} items written")
