"""Put a folder of images, or archives of images, into a collection, and update it when they change.

Running it again adds new files, embeds changed files (by size or modification time) again, and with `prune` deletes the
items whose file was removed. Every batch is durable when it is done, so an interrupted run continues where it stopped.
The task `index` does this with a folder that a server may read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.images.pool import decoding_processes
from nnclr_hub.images.tiles import is_empty
from nnclr_hub.plural import counted
from nnclr_hub.read_ahead import batches, read_ahead
from nnclr_hub.remote_files import is_address
from nnclr_hub.store.base import Collection, Progress
from nnclr_hub.workbench.bench import LocalBench
from nnclr_hub.workbench.file_import import ImportReport
from nnclr_hub.workbench.folder_changes import (
    FolderChanges,
    FolderImage,
    IndexReport,
    Known,
    Listing,
    find_changes,
    list_images_of,
    warn_of_other_sources,
)
from nnclr_hub.workbench.ingestion import Read, embed_read, read_image, store_images
from nnclr_hub.workbench.metadata import BOX
from nnclr_hub.workbench.requests import FolderRequest, NewImage, Request, option
from nnclr_hub.workbench.source_folders import SourceFolders
from nnclr_hub.workbench.tasks import TaskContext, task

BATCH = 64
# of files in a batch; decoded they take about ten times as much memory, and two batches are in memory at once
MAX_BATCH_BYTES = 32_000_000
PAGE = 1000
T = TypeVar("T")


class Write(Protocol):
    """Runs a write on a collection, with the embedder of its vectors; see `VectorStore.write`."""

    def __call__(self, work: Callable[[Collection, Embedder], T], /) -> T: ...


def index_folder(
    write: Write, request: FolderRequest, begin: Callable[[FolderChanges], None], progress: Progress
) -> IndexReport:
    """Make a collection hold the images of a folder; see `Bench.index_folder`.

    Args:
        write: called once per batch.
        begin: called with the changes before the work starts.
    """
    collection, embedder = write(lambda collection, embedder: (collection, embedder))
    reading, tiling = embedder.reading, request.tiling  # a re-embedding keeps the reading
    listing = list_images_of(request.folder, prune=request.prune, tiling=tiling, reading=reading, labels=request.labels)
    from_folders = collection.pages({"must": [{"key": "root", "exists": True}]}, limit=PAGE, with_vector=False)
    known = {item.id: dict(item.metadata) for items in from_folders for item in items}
    _refuse_clash(collection, listing, known)
    if not request.prune:
        _refuse_other_tiles(collection, listing, known)
    changes = find_changes(listing, known, prune=request.prune)
    if request.prune:
        advice = 'delete those whose files no longer exist with `nnclr store delete`, by a filter on the key "root"'
        warn_of_other_sources(listing, known, advice)
    begin(changes)
    _update(write, changes.moved)

    def read(file: FolderImage) -> Read:
        try:
            return read_image(NewImage(file.id, file.path, file.described().metadata, request.thumbnails), reading)
        except ImageError as error:
            return error

    def store(collection: Collection, embedder: Embedder, good: Sequence[Read]) -> list[ImageError | None]:
        return store_images(collection, embed_read(good, embedder))

    failed: list[tuple[FolderImage, str]] = []
    empty: list[FolderImage] = []
    done = 0
    with decoding_processes(images=None if tiling is not None else len(changes.wanted)):
        for files, results in read_ahead(batches(changes.wanted, BATCH, _bytes, MAX_BATCH_BYTES), read):
            good: list[tuple[FolderImage, Read]] = []
            for file, one in zip(files, results, strict=True):
                if tiling is not None and tiling.skip_empty and not isinstance(one, ImageError) and is_empty(one[0]):
                    empty.append(file)
                else:
                    good.append((file, one))
            reads = [one for _, one in good]
            errors = write(lambda collection, embedder, reads=reads: store(collection, embedder, reads))
            failed += [(file, str(error)) for (file, _), error in zip(good, errors, strict=True) if error is not None]
            done += len(files)
            progress(done, len(changes.wanted))
    _update(write, changes.labels)
    removed = 0
    for ids in batches(changes.gone, PAGE) if request.prune else ():
        removed += write(lambda collection, _, ids=ids: collection.delete(ids))
    return changes.report(failed, removed, listing.left_out, empty)


def _update(write: Write, patches: Known) -> None:
    for some in batches(patches.items(), PAGE):
        write(lambda collection, _, some=some: collection.update_each(dict(some)))


def _bytes(one: FolderImage) -> int:
    # a tile is read alone, and its pixels count as if they were compressed
    if one.path.box is None:
        return one.metadata["size"]
    left, top, right, bottom = one.path.box
    return (right - left) * (bottom - top)


# ---- what is refused


def _refuse_other_tiles(collection: Collection, listing: Listing, known: Known) -> None:
    """Refuse to add tiles next to other tiles, or whole images, of the same files; pruning replaces them."""
    files = set(map(listing.file_of, listing.images.values())) - listing.untiled
    other = [
        one for id, one in known.items() if id not in listing.images and (one.get("root"), one.get("path")) in files
    ]
    if other:
        where = f" with box {other[0][BOX]}" if BOX in other[0] else " as a whole"
        raise InvalidRequest(
            f"Collection {collection.name!r} has {counted(len(other), 'item')} of these files, cut in another way: "
            f"{other[0]['path']}{where}. Index them in the same way (--tile), or replace them with --prune."
        )


def _refuse_clash(collection: Collection, listing: Listing, known: Known) -> None:
    """Refuse a second folder with the same relative paths, which would overwrite the first; a moved folder is fine."""
    for id in listing.images.keys() & known.keys():
        other, root = str(known[id]["root"]), listing.origin_of(listing.images[id])
        if other == root:
            continue
        if Path(other).is_absolute():
            is_moved = not Path(other).is_file() and not Path(other, known[id]["path"]).exists()
        else:  # an address, or the folder of another machine, which only its files can identify
            state = listing.state(listing.images[id])
            is_moved = not is_address(other) and {**state, "root": other}.items() <= known[id].items()
        if not is_moved:
            raise InvalidRequest(
                f"Collection {collection.name!r} already has {known[id]['path']} of {other}; index {root} into another "
                "collection, or index a folder that contains both."
            )


# ---- the task


@dataclass(frozen=True)
class IndexRequest(Request):
    """A folder on the server."""

    collection: str = option("name or alias of the collection")
    source: str | None = option("name of one of the server's source folders; null if there is only one", None)
    folder: str = option(
        "folder in the source folder, including its subfolders; empty: the whole source folder", "", max_length=4096
    )
    prune: bool = option(
        "delete items of this folder whose file no longer exists. Refused if the folder is empty, because its disk may "
        "not be mounted. Items of a subfolder that is empty, a link or unreadable are kept; the result counts them as "
        "`kept`",
        False,
    )
    root: str | None = option(
        "path of the source folder, whose name may change when a server restarts", None, hidden=True
    )


@task("index", IndexRequest, path="/collections/{collection}/index")
def index_source(bench: LocalBench, request: IndexRequest, context: TaskContext) -> dict[str, Any]:
    """Make a collection match a folder in one of the source folders; return numbers, and the first broken images.

    The state keeps the counts of the first attempt, so that a restarted job reports what it did in total.
    """
    folders = SourceFolders(bench.source_folders or ())
    place = folders.find(request.source, request.folder) if request.root is None else None
    folder = (place or folders.again(str(request.root), request.folder)).path
    left: dict[str, int] = {}

    def begin(changes: FolderChanges) -> None:
        left.update(changes.counts)
        if not context.state:
            context.save(left)

    wanted = FolderRequest(folder, prune=request.prune)
    indexed = bench.index_folder(request.collection, wanted, begin=begin, progress=context.progress)
    before = {what: max(0, context.state[what] - number) for what, number in left.items()}
    unchanged = max(0, indexed.unchanged - before["new"] - before["changed"])
    added, updated = indexed.added + before["new"], indexed.updated + before["changed"]
    report = ImportReport(request.collection, added, updated, unchanged)
    for path, reason in indexed.broken:
        report.refuse(Path(path).relative_to(folder).as_posix(), reason)
    report.left_out.update(indexed.left_out)
    removed = indexed.removed + before["gone"] if request.prune else 0
    return {**report.as_json(), "removed": removed, "kept": indexed.kept}
