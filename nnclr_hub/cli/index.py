"""nnclr index: into a store of this machine, or with --server into the collection of a server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnclr_hub.cli.verbs import (
    DEFAULT_STORE,
    ApiKeyEnv,
    Backend,
    Json,
    Model,
    Server,
    Store,
    chosen_model,
    err,
    out,
    print_json,
    refuse_server_with_local,
)
from nnclr_hub.errors import CollectionNotFound, ImageError, InvalidRequest, NotReady, Unauthorized

if TYPE_CHECKING:
    from nnclr_hub.client import Client
    from nnclr_hub.workbench import IndexReport

Collection = Annotated[str, typer.Option("--collection", help="Name of the collection.")]
SHOWN = 20  # broken files that are listed; the others are only counted
START_S = 120.0  # maximum wait for a server that is starting and loads its model


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(index)


def index(
    photos: Annotated[Path, typer.Argument(help="Folder of images, read with its subfolders.")],
    collection: Collection,
    store: Store = DEFAULT_STORE,
    model: Model = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete items whose file was removed, except those of an empty folder.")
    ] = False,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails/--no-thumbnails", help="Store a thumbnail of each image.")
    ] = True,
    server: Server = None,
    api_key_env: ApiKeyEnv = "NNCLR_API_KEY",
    source: Annotated[
        str | None, typer.Option("--source", help="With --server: name of the folder there. Default: FOLDER@HOST.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", help="With --server: number of concurrent requests.")] = 4,
    shrink: Annotated[
        int | None, typer.Option("--shrink", help="With --server: send larger images with this longest side.")
    ] = None,
    backend: Backend = "auto",
    as_json: Json = False,
) -> None:
    """Embed a folder of images into a collection. Run it again to update new and changed files.

    Example: nnclr index photos --collection photos
    """
    if server is None and (source is not None or shrink is not None):
        raise InvalidRequest("--source and --shrink need --server; a local store reads the files itself.")
    refuse_server_with_local(server, store=store)
    if server is None:
        report, total = _index(photos, collection, store, model, prune, thumbnails, backend)
    else:
        options: dict[str, Any] = {"source": source, "workers": workers, "shrink": shrink}
        options |= {"prune": prune, "thumbnails": thumbnails}
        report, total = _upload(server, api_key_env, collection, photos, model, options)
    if as_json:
        print_json({"collection": collection, "items": total, **asdict(report)})
    else:
        list_broken(report.broken)
        kept = f" {report.kept} kept (their files may exist)," if report.kept else ""
        out.print(
            f"{collection}: {report.added} added, {report.updated} updated, {report.unchanged} unchanged, "
            f"{report.removed} removed,{kept} {len(report.broken)} broken; {total} items in {server or store}",
            markup=False,
        )
    if report.broken and not report.added + report.updated + report.unchanged:
        raise none_read(len(report.broken))


def _index(
    photos: Path, collection: str, store: str, model: str | None, prune: bool, thumbnails: bool, backend: str
) -> tuple[IndexReport, int]:
    """Index into a local store; return the report and the number of items."""
    from nnclr_hub.progress import bar
    from nnclr_hub.store import open_store
    from nnclr_hub.store.checks import check_name
    from nnclr_hub.workbench.folder_changes import listed

    # a wrong name, folder or model must not leave an empty store behind, and is reported before torch is imported
    check_name(collection, "Collection name")
    exists = "://" in store or Path(store).exists()
    listed(photos, prune=prune and exists)
    by_name = model is not None or not exists
    if by_name:
        chosen_model(model, backend)
    from nnclr_hub.workbench import Encoders, Workbench

    encoders = Encoders(model, backend=backend)
    if by_name:
        encoders.get()
    with open_store(store) as opened, bar(err, "indexing") as advance:
        bench = Workbench(encoders, opened)
        report = bench.index_folder(
            collection, photos, model=model, prune=prune, thumbnails=thumbnails, progress=advance
        )
        return report, bench.collection(collection).count()


def _upload(
    server: str, api_key_env: str, collection: str, photos: Path, model: str | None, options: Mapping[str, Any]
) -> tuple[IndexReport, int]:
    """Send what the server's collection lacks, creating it if necessary; return the report and the number of items."""
    from nnclr_hub.progress import bar
    from nnclr_hub.workbench.folder_changes import listed

    listed(photos, prune=options["prune"])  # a wrong folder is reported at once
    with connected(server, api_key_env) as client, bar(err, "uploading") as advance:
        remote = client.collection(collection)
        try:
            spec = remote.info().spec
        except CollectionNotFound:
            listed(photos)  # a wrong folder must not leave an empty collection behind
            spec = client.collections.create(collection, model=model).spec
        if model is not None:
            spec.check(client.model(model), collection)
        return remote.index_folder(photos, **options, progress=advance), remote.count()


@contextmanager
def connected(server: str, api_key_env: str) -> Iterator[Client]:
    """Open a client of a ready server.

    Args:
        api_key_env: the environment variable with the API key.

    Raises:
        Unauthorized: if the server requires another key; says where to set it.
        NotReady: if the server does not become ready.
    """
    from nnclr_hub.client import Client

    key = os.environ.get(api_key_env)
    try:
        with Client(server, key) as client:
            if not client.ready() and not client.ready(wait=START_S):
                raise NotReady(f"The server at {server} is not ready; GET /readyz reports why.")
            yield client
    except Unauthorized as error:
        what = "requires an API key" if key is None else f"rejects the API key in {api_key_env}"
        raise Unauthorized(
            f"{server} {what}; set {api_key_env} to the key from its operator, or choose another variable with "
            "--api-key-env."
        ) from error


def place_of(id: str, metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return the folder that an item was indexed from and its path there; or "" and its id."""
    if "path" not in metadata:
        return "", id
    return str(metadata.get("root", "")), str(metadata["path"])


def none_read(count: int) -> ImageError:
    """Return the error of a call whose images could not be read; `list_broken` has listed them."""
    return ImageError(f"None of the {count} images could be read; the reason is shown next to each file above.")


def list_broken(broken: Sequence[tuple[str, str]]) -> None:
    """List the files that could not be read, on standard error."""
    for path, reason in broken[:SHOWN]:
        err.print(f"skipped {path}: {reason}", style="yellow", markup=False, soft_wrap=True)
    if len(broken) > SHOWN:
        err.print(f"... and {len(broken) - SHOWN} more", style="yellow")
