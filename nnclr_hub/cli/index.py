"""nnclr index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnclr_hub.cli.place import Place, on_store
from nnclr_hub.cli.reading import ReadingOptions, reads_labels, reads_tiles
from nnclr_hub.cli.verbs import Backend, Json, Model, chosen_model, err, out, print_json
from nnclr_hub.errors import CollectionNotFound, ImageError, InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.client import Client
    from nnclr_hub.store.base import CollectionSpec
    from nnclr_hub.workbench import Workbench

Collection = Annotated[str, typer.Option("--collection", help="Name of the collection.")]
SHOWN = 20  # broken files that are listed; the others are only counted
SERVER_DEFAULT = "default"  # name of the model that the server itself selects


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(on_store(reads_tiles(reads_labels(index))))


def index(
    photos: Annotated[
        str,
        typer.Argument(
            help="Folder of images, with its subfolders; or tar and zip files, also as a pattern "
            "('data-{000..009}.tar') or at an address (s3://BUCKET/DIR)."
        ),
    ],
    collection: Collection,
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
    place: Place,
    labels: Any,
    reading: ReadingOptions,
    tiling: Any,
) -> None:
    """Embed images into a collection. Run it again to update new and changed files.

    Example: nnclr index photos --collection photos

    Example: nnclr index photos.zip --collection photos

    Example: nnclr index photos --collection photos --labels labels.csv
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.store.base import CollectionSpec
    from nnclr_hub.store.checks import check_collection_name
    from nnclr_hub.workbench.folder_changes import check_images

    if place.server is None and (source is not None or shrink is not None):
        raise InvalidRequest("--source and --shrink need --server; a local store reads the files itself.")
    if place.server is not None and tiling is not None:
        raise InvalidRequest("--tile reads files of this machine; index into a local store, or let the server index.")
    # a wrong name, folder or option is reported before anything is opened
    check_collection_name(collection)
    if vectors is not None:
        CollectionSpec(1, vectors=vectors)  # type: ignore[arg-type]
    check_images(photos, prune=prune and place.exists, labels=labels)
    options: dict[str, Any] = {"vectors": vectors, "prune": prune, "thumbnails": thumbnails, "labels": labels}
    if place.server is None:
        options["tiling"] = tiling
    else:
        options |= {"source": source, "workers": workers, "shrink": shrink}
    with place.bench(backend=backend, create=True) as bench:
        spec = _spec_of(bench, collection)
        if spec is not None and reading.given:
            reading.check(spec.model, collection)
        if reading.given and (spec is None or model is not None):
            model = reading.within(model if place.server is None else model or SERVER_DEFAULT)
        if place.server is None and (spec is None or model is not None):
            chosen_model(model, backend)  # before torch is imported
        with bar(err, "indexing" if place.server is None else "uploading") as advance:
            report = bench.index_folder(collection, photos, model=model, **options, progress=advance)
        total = 0 if _spec_of(bench, collection) is None else bench.collection(collection).count()
    if as_json:
        print_json({"collection": collection, "items": total, **asdict(report)})
    else:
        list_broken(report.broken)
        if report.empty:  # files of other formats are reported when the folder is listed
            err.print(f"left out: {report.empty} empty tiles")
        kept = f" {report.kept} kept (their files may exist)," if report.kept else ""
        out.print(
            f"{collection}: {report.added} added, {report.updated} updated, {report.unchanged} unchanged, "
            f"{report.removed} removed,{kept} {len(report.broken)} broken; {total} items in "
            f"{place.server or place.store}",
        )
    if report.broken and not report.added + report.updated + report.unchanged:
        raise none_read(len(report.broken))


def _spec_of(bench: Workbench | Client, name: str) -> CollectionSpec | None:
    try:
        return bench.store.get(name).spec
    except CollectionNotFound:
        return None


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
