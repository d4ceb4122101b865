"""nnclr store import: exported folders, shards of `nnclr embed`, archives of images, and files of vectors."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnclr_hub.cli.index import connected, list_broken
from nnclr_hub.cli.place import opened
from nnclr_hub.cli.verbs import (
    DEFAULT_STORE,
    ApiKeyEnv,
    Json,
    Server,
    Store,
    err,
    out,
    print_json,
    refuse_server_with_local,
)
from nnclr_hub.errors import CollectionNotFound, InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.workbench.import_format import ImportFormat


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command(name="import")(import_)


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
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Delete what the server has of an interrupted import of this file.")
    ] = False,
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
        raise InvalidRequest(
            f"{source} is a folder, and --server takes a file; import it into a local store, or use `nnclr index "
            "--server` for a folder of images."
        )
    if abandon:
        if server is None or name is None:
            raise InvalidRequest("--abandon needs --server and --collection; a local import leaves nothing behind.")
        with connected(server, api_key_env) as client:
            client.collection(name).abandon_import(source)
        out.print(f"Deleted what {server} had of an interrupted import of {source}.")
    elif not source.exists():
        raise InvalidRequest(f"{source} does not exist.")
    elif source.is_file() or server is not None:
        _import_file(source, name, store, server, api_key_env, as_json)
    elif (source / PLAN).exists():
        _import_shards(source, name, store, into, as_json)
    else:
        _import_export(source, name, store, into, as_json)


def _import_export(folder: Path, name: str | None, store: str, into: bool, as_json: bool) -> None:
    from nnclr_hub.progress import bars, in_megabytes
    from nnclr_hub.store import open_store
    from nnclr_hub.store.checks import check_collection_name
    from nnclr_hub.store.exchange import import_collection, read_manifest

    manifest = read_manifest(folder)  # a wrong folder or name must not leave an empty store behind
    name = check_collection_name(name or manifest.name)
    with open_store(store) as there, bars(err) as new_bar:
        checking, storing = in_megabytes(new_bar("checking", "MB")), new_bar("importing", "items")
        report = import_collection(there, name, folder, into=into, checking=checking, progress=storing)
    if as_json:
        print_json({"collection": name, **asdict(report)})
        return
    existing = f", the other {report.items - report.written} existed already" if report.written < report.items else ""
    out.print(f"{name}: {report.written} of {report.items} items written{existing}")


def _import_file(file: Path, name: str | None, store: str, server: str | None, api_key_env: str, as_json: bool) -> None:
    from nnclr_hub.workbench.import_format import format_of_file

    if name is None:
        raise InvalidRequest(f"Name the collection for {file} with --collection; it must exist.")
    format = format_of_file(file)
    if server is None:
        result = _import_locally(file, name, store, format)
    else:
        result = _import_there(file, name, server, api_key_env, format)
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


def _import_locally(file: Path, name: str, store: str, format: ImportFormat) -> dict[str, Any]:
    from nnclr_hub.progress import bar, in_megabytes

    def command() -> str:
        dim = _dim_of(file, format)
        options = ("" if dim is None else f" --dim {dim}") + ("" if store == DEFAULT_STORE else f" --store {store}")
        return f"`nnclr store create {name}{options}`"

    if "://" not in store and not Path(store).exists():
        raise InvalidRequest(f"{store} does not exist; {command()} creates it with the collection.")
    with opened(store) as there:
        try:
            there.get(name)  # a wrong name is reported before torch is imported
        except CollectionNotFound as error:
            raise CollectionNotFound(f"{error} {command()} creates it.") from error
        from nnclr_hub.workbench import Encoders, Workbench
        from nnclr_hub.workbench.file_import import ImportRequest

        # about the number of images, which decides whether an export of the network is worth its time
        bench = Workbench(Encoders(backend="auto"), there)
        with bar(err, "importing", unit="images" if format.images else "MB") as advance:
            progress = advance if format.images else in_megabytes(advance)
            return dict(bench.run("import", ImportRequest(name, str(file), format.name), progress))


def _dim_of(file: Path, format: ImportFormat) -> int | None:
    """Return the length of the first vector of a file; None if it has none."""
    from nnclr_hub.store.base import Item
    from nnclr_hub.workbench.item_file import read_items

    if format.images:
        return None
    return next((len(item.vector) for _, item, _ in read_items(file, format) if isinstance(item, Item)), None)


def _import_there(file: Path, name: str, server: str, api_key_env: str, format: ImportFormat) -> dict[str, Any]:
    from nnclr_hub.progress import bar, in_megabytes

    with connected(server, api_key_env) as client:
        with bar(err, "uploading", unit="MB") as advance:
            try:
                job = client.collection(name).import_file(file, progress=in_megabytes(advance))
            except CollectionNotFound as error:
                dim = _dim_of(file, format)
                call = f"Client({server!r}).collections.create({name!r}{'' if dim is None else f', dim={dim}'})"
                raise CollectionNotFound(f"{error} {call} in Python creates it.") from error
        images = job.kind == "add"
        with bar(err, "importing", unit="images" if images else "MB") as advance:
            progress = advance if images else in_megabytes(advance)
            return dict(client.jobs.wait(job.id, progress=progress).result or {})


def _import_shards(folder: Path, name: str | None, store: str, into: bool, as_json: bool) -> None:
    from nnclr_hub.bulk import open_shards
    from nnclr_hub.bulk.collection_import import collect
    from nnclr_hub.progress import bar
    from nnclr_hub.store import open_store
    from nnclr_hub.store.checks import check_collection_name

    if name is None:
        raise InvalidRequest(f"{folder} holds shards of `nnclr embed`; name a collection with --collection.")
    name = check_collection_name(name)  # a wrong name must not leave an empty store behind
    shards = open_shards(folder)
    shards.require_all()
    with open_store(store) as there, bar(err, "importing", unit="items") as advance:
        total, written = collect(shards, there, name, into=into, progress=advance)
    if as_json:
        print_json({"collection": name, "items": total, "written": written})
        return
    out.print(f"{name}: {written} of {total} items written")
