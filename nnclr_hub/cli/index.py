"""nnclr index: into a store of this machine, or with --server into the collection of a server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnclr_hub.cli.reading import ReadingOptions, reads_labels, reads_tiles
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
from nnclr_hub.errors import (
    CollectionExists,
    CollectionNotFound,
    FingerprintMismatch,
    ImageError,
    InvalidRequest,
    NNCLRHubError,
    NotReady,
    ServerUnreachable,
    Unauthorized,
)

if TYPE_CHECKING:
    from nnclr_hub.client import Client
    from nnclr_hub.store.base import CollectionSpec
    from nnclr_hub.workbench import IndexReport, Workbench

Collection = Annotated[str, typer.Option("--collection", help="Name of the collection.")]
SHOWN = 20  # broken files that are listed; the others are only counted
SERVER_DEFAULT = "default"  # name of the model that the server itself selects
START_S = 120.0  # maximum wait for a server that is starting and loads its model


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(reads_tiles(reads_labels(index)))


def index(
    photos: Annotated[
        str,
        typer.Argument(
            help="Folder of images, with its subfolders; or tar and zip files, also as a pattern "
            "('data-{000..009}.tar') or at an address (s3://BUCKET/DIR)."
        ),
    ],
    collection: Collection,
    store: Store = DEFAULT_STORE,
    model: Model = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            help="What searches of a new collection compare: raw, center, half_whiten or whiten. Default: auto, "
            "half_whiten if possible."
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete items whose file was removed, except those of an empty folder. With --server, give --source.",
        ),
    ] = False,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails/--no-thumbnails", help="Store a thumbnail of each image.")
    ] = True,
    server: Server = None,
    api_key_env: ApiKeyEnv = "NNCLR_API_KEY",
    source: Annotated[
        str | None, typer.Option("--source", help="With --server: name of the folder there. Default: FOLDER-ID@HOST.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", help="With --server: number of concurrent requests.")] = 4,
    shrink: Annotated[
        int | None, typer.Option("--shrink", help="With --server: send larger images with this longest side.")
    ] = None,
    backend: Backend = "auto",
    as_json: Json = False,
    *,
    labels: Any,
    reading: ReadingOptions,
    tiling: Any,
) -> None:
    """Embed images into a collection. Run it again to update new and changed files.

    Example: nnclr index photos --collection photos

    Example: nnclr index photos.zip --collection photos

    Example: nnclr index photos --collection photos --labels labels.csv
    """
    if server is None and (source is not None or shrink is not None):
        raise InvalidRequest("--source and --shrink need --server; a local store reads the files itself.")
    if server is not None and tiling is not None:
        raise InvalidRequest("--tile reads files of this machine; index into a local store, or let the server index.")
    refuse_server_with_local(server, store=store)
    if vectors is not None:
        _refuse_unknown(vectors)
    if server is None:
        options = {"prune": prune, "thumbnails": thumbnails, "labels": labels, "tiling": tiling}
        report, total = _index(photos, collection, store, model, vectors, backend, reading, options)
    else:
        options = {"source": source, "workers": workers, "shrink": shrink}
        options |= {"prune": prune, "thumbnails": thumbnails, "labels": labels}
        report, total = _upload(server, api_key_env, collection, photos, model, vectors, reading, options)
    if as_json:
        print_json({"collection": collection, "items": total, **asdict(report)})
    else:
        list_broken(report.broken)
        if report.empty:  # files of other formats are reported when the folder is listed
            err.print(f"left out: {report.empty} empty tiles")
        kept = f" {report.kept} kept (their files may exist)," if report.kept else ""
        out.print(
            f"{collection}: {report.added} added, {report.updated} updated, {report.unchanged} unchanged, "
            f"{report.removed} removed,{kept} {len(report.broken)} broken; {total} items in {server or store}",
        )
    if report.broken and not report.added + report.updated + report.unchanged:
        raise none_read(len(report.broken))


def _index(
    photos: str,
    collection: str,
    store: str,
    model: str | None,
    vectors: str | None,
    backend: str,
    reading: ReadingOptions,
    options: Mapping[str, Any],
) -> tuple[IndexReport, int]:
    """Index into a local store; return the report and the number of items."""
    from nnclr_hub.progress import bar
    from nnclr_hub.store import open_store
    from nnclr_hub.store.checks import check_collection_name
    from nnclr_hub.workbench.folder_changes import check_images

    # a wrong name, folder or model must not leave an empty store behind, and is reported before torch is imported
    check_collection_name(collection)
    exists = "://" in store or Path(store).exists()
    check_images(photos, prune=options["prune"] and exists, labels=options["labels"])
    if reading.given and model is None and exists:
        model = _model_of(collection, store)
    model = reading.within(model)
    by_name = model is not None or not exists
    if by_name:
        chosen_model(model, backend)
    from nnclr_hub.workbench import Encoders, Workbench

    encoders = Encoders(model, backend=backend)
    if by_name:
        encoders.get()
    unused = False
    try:
        with open_store(store) as opened, bar(err, "indexing") as advance:
            bench = Workbench(encoders, opened)
            created = vectors is not None and _create_or_check(bench, collection, model, vectors)
            count, drop = partial(_count, bench, collection), partial(opened.drop, collection)
            try:
                with _dropped_if_empty(created, count, drop):
                    report = bench.index_folder(collection, photos, model=model, **options, progress=advance)
                    return report, count()
            finally:
                with suppress(NNCLRHubError):
                    unused = not exists and not opened.list()
    finally:
        if unused:
            shutil.rmtree(store, ignore_errors=True)


@contextmanager
def _dropped_if_empty(created: bool, count: Callable[[], int], drop: Callable[[], object]) -> Iterator[None]:
    """Drop a collection that was created here if it has no items at the end, such as that of a damaged archive.

    It stays if the user ends the command, who does not wait, or if the server is unreachable. The first error is the
    one to report.
    """
    try:
        yield
    except (KeyboardInterrupt, ServerUnreachable):
        created = False
        raise
    finally:
        with suppress(NNCLRHubError):
            if created and not count():
                drop()


def _count(bench: Workbench, name: str) -> int:
    """Return the number of items of a collection; 0 if it does not exist."""
    try:
        return bench.collection(name).count()
    except CollectionNotFound:
        return 0


def _create_or_check(bench: Workbench, name: str, model: str | None, vectors: Any) -> bool:
    """Create a collection that compares its vectors in this way, or refuse one that compares them in another.

    Returns:
        Whether it was created.
    """
    from nnclr_hub.store.base import CollectionSpec

    try:
        _check_vectors(bench.collection(name).spec, name, vectors)
        return False
    except CollectionNotFound:
        bench.store.create(name, replace(CollectionSpec.of(bench.models.get(model)), vectors=vectors))
        return True


def _refuse_unknown(vectors: Any) -> None:
    from nnclr_hub.store.base import CollectionSpec

    CollectionSpec(1, vectors=vectors)


def _check_vectors(spec: CollectionSpec, name: str, vectors: str | None) -> None:
    if vectors not in (None, "auto", spec.vectors):
        raise InvalidRequest(
            f"Collection {name!r} was created with --vectors {spec.vectors}, which cannot be changed; leave out "
            "--vectors, or index into another collection."
        )


def _model_of(collection: str, store: str) -> str | None:
    """Return the source of the encoder of a collection; None if the collection does not exist."""
    from nnclr_hub.hub.sources import recorded_source
    from nnclr_hub.store import open_store

    with open_store(store, read_only=True) as opened:
        try:
            return recorded_source(opened.get(collection).spec.model, "this collection") or None
        except CollectionNotFound:
            return None


def _upload(
    server: str,
    api_key_env: str,
    collection: str,
    photos: str,
    model: str | None,
    vectors: Any,
    reading: ReadingOptions,
    options: Mapping[str, Any],
) -> tuple[IndexReport, int]:
    """Send what the server's collection lacks, creating it if necessary; return the report and the number of items."""
    from nnclr_hub.progress import bar
    from nnclr_hub.workbench.folder_changes import check_images

    check_images(photos, prune=options["prune"], labels=options["labels"])  # a wrong folder is reported at once
    with connected(server, api_key_env) as client, bar(err, "uploading") as advance:
        remote = client.collection(collection)
        created = False
        try:
            spec = remote.info().spec
        except CollectionNotFound:
            created = True
            check_images(photos)
            source = reading.within(model or SERVER_DEFAULT) if reading.given else model
            client.collections.create(collection, model=source, vectors=vectors or "auto")
        else:
            _check_vectors(spec, collection, vectors)
            _check_model(client, spec, collection, model, reading)
        with _dropped_if_empty(created, remote.count, partial(client.collections.drop, collection)):
            report = remote.index_folder(photos, **options, progress=advance)
            return report, remote.count()


def _check_model(
    client: Client, spec: CollectionSpec, collection: str, model: str | None, reading: ReadingOptions
) -> None:
    """Check that a collection of a server has the chosen model and reading.

    Raises:
        InvalidRequest: it reads images differently.
        FingerprintMismatch: it has another model.
    """
    if not reading.given:
        if model is not None:
            spec.check(client.model(model), collection)
        return
    reading.check(spec.model, collection)
    if model is None:
        return
    from nnclr_hub.images.reading import ImageReading

    source = ImageReading.of_source(spec.model).within(model)
    same: dict[str, Any] = {
        name: getattr(spec, name) for name in ("metric", "indexed", "index", "precision", "vectors")
    }
    try:  # only the server can compare them, since it does not list a model with a reading until it is loaded
        client.collections.create(collection, model=source, **same)
    except CollectionExists as error:
        raise FingerprintMismatch(
            f"Collection {collection!r} holds vectors of {spec.model}, not of {source}; leave out --model, or use "
            "another collection."
        ) from error


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
    box = metadata.get("box")  # of a tile
    part = f"#{','.join(map(str, box))}" if isinstance(box, list) else ""
    return str(metadata.get("root", "")), f"{metadata['path']}{part}"


def none_read(count: int) -> ImageError:
    """Return the error of a call whose images could not be read; `list_broken` has listed them."""
    return ImageError(f"None of the {count} images could be read; the reason is shown next to each file above.")


def list_broken(broken: Sequence[tuple[str, str]], count: int | None = None) -> None:
    """List the files that could not be read, on standard error; `count` if a server listed fewer than there are."""
    for path, reason in broken[:SHOWN]:
        err.print(f"skipped {path}: {reason}", style="yellow", soft_wrap=True)
    if (more := (len(broken) if count is None else count) - SHOWN) > 0:
        err.print(f"... and {more} more", style="yellow")
