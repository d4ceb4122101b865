"""Put a folder of images into a collection, and update it when the folder changes.

Running it again adds new files, embeds changed files (by size or modification time) again, and with `prune` deletes the
items whose file was removed. Every batch is durable when it is done, so an interrupted run continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from nnclr_hub.encoder.decoding_pool import decoding_processes
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.read_ahead import batches, read_ahead
from nnclr_hub.store.base import Collection, Progress
from nnclr_hub.store.pages import pages
from nnclr_hub.workbench.add_request import AddRequest, NewImage
from nnclr_hub.workbench.folder_changes import FolderChanges, FolderImage, IndexReport, find_changes, images_by_id
from nnclr_hub.workbench.ingestion import Draft, Ingestion, read_image
from nnclr_hub.workbench.write_lock import OpenTargets

BATCH = 64
# of files in a batch; decoded they take about ten times as much memory, and two batches are in memory at once
MAX_BATCH_BYTES = 32_000_000
PAGE = 1000


def index_folder(
    open_targets: OpenTargets,
    folder: Path,
    *,
    prune: bool = False,
    thumbnails: bool = True,
    begin: Callable[[FolderChanges], None] = lambda changes: None,
    progress: Progress = lambda done, total: None,
) -> IndexReport:
    """Make a collection hold the images of a folder.

    Args:
        open_targets: opens what to write to; called once per batch.
        folder: read with all its subfolders; an image's parent folder is its label.
        prune: delete items of this folder whose file was removed. Items of a subfolder that is empty, a link, or
            unreadable are kept, since their files may exist; the report counts them as `kept`.
        begin: called with the changes before the work starts.
        progress: called with (done, total), counted in images to embed.

    Raises:
        NoImages: if the folder holds no image; with `prune`, if it never held one or is empty.
        InvalidRequest: if the collection holds images of another folder under the same relative paths.
    """
    root = Path(folder).resolve()
    found = images_by_id(root, prune=prune)
    with open_targets() as targets:
        collection = targets[0].collection
    known = _known(collection)
    _refuse_clash(collection, root, found, known)
    changes = find_changes(root, found, known, origin=str(root), prune=prune)
    begin(changes)
    new = [(one, NewImage(one.id, one.path, one.metadata, thumbnails)) for one in changes.wanted]
    failed = _add(open_targets, new, progress)
    removed = sum(_delete(open_targets, ids) for ids in batches(changes.gone, PAGE)) if prune else 0
    return changes.report(failed, removed)


def _add(
    open_targets: OpenTargets, new: Sequence[tuple[FolderImage, NewImage]], progress: Progress
) -> list[tuple[FolderImage, str]]:
    """Store images batch by batch; return those that could not be read, with the reason."""
    failed: list[tuple[FolderImage, str]] = []
    done = 0
    every = batches(new, BATCH, lambda one: one[0].metadata["size"], MAX_BATCH_BYTES)
    with decoding_processes(images=len(new)):
        for batch, results in read_ahead(every, lambda one: read_image(one[1])):
            errors = _store(Ingestion(open_targets, AddRequest([image for _, image in batch])), results)
            failed += [(file, str(error)) for (file, _), error in zip(batch, errors, strict=True) if error is not None]
            done += len(batch)
            progress(done, len(new))
    return failed


def _store(
    ingestion: Ingestion, results: Sequence[tuple[Image.Image | None, Draft] | ImageError]
) -> list[ImageError | None]:
    """Embed images that were read, and upsert them in one durable write; return an error or None for each."""
    images = {i: image for i, one in enumerate(results) if (image := ingestion.set_read(i, one)) is not None}
    while (embedder := ingestion.store()) is not None:
        good = [i for i in images if ingestion.errors[i] is None]
        ingestion.set_vectors(embedder, good, embedder.embed_each([images[i] for i in good]))
    return ingestion.errors


def _delete(open_targets: OpenTargets, ids: Sequence[str]) -> int:
    """Delete items from all targets; return how many the collection itself had."""
    with open_targets() as targets:
        deleted = [target.collection.delete(ids) for target in targets]
    return deleted[0]


def _known(collection: Collection) -> dict[str, dict[str, Any]]:
    """Return the metadata of the items that came from a folder, by id."""
    indexed = pages(collection, {"must": [{"key": "root", "exists": True}]}, limit=PAGE, with_vector=False)
    return {item.id: dict(item.metadata) for items in indexed for item in items}


def _refuse_clash(
    collection: Collection, root: Path, found: Mapping[str, Path], known: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse a second folder with the same relative paths, which would overwrite the first; a moved folder is fine."""
    for id in found.keys() & known.keys():
        other = known[id]["root"]
        if other != str(root) and Path(other, known[id]["path"]).exists():
            raise InvalidRequest(
                f"Collection {collection.name!r} already holds {known[id]['path']!r} of {other}; index {root} into "
                "another collection, or index a folder that contains both."
            )
