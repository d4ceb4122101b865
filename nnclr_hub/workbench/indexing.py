"""Images into a collection: a whole folder, or a handful.

An indexed folder can be indexed again at any time: what is new is added, what changed (by size or
modification time) is embedded anew, and with `prune` what is gone from the folder is deleted, unless
nothing at all is left there. Every batch is durable when it is done, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.read_ahead import batches, read_ahead
from nnclr_hub.store.base import Collection, Progress
from nnclr_hub.store.pages import pages
from nnclr_hub.workbench.adding import Adding, Draft, NewImage, read_image
from nnclr_hub.workbench.folder_changes import FolderChanges, FolderImage, IndexReport, find_changes, images_by_id
from nnclr_hub.workbench.writing import Writing

BATCH = 64
DECODED_AT_ONCE = 8
# of files in a batch; decoded they take about ten times as much memory, and two batches are in memory at once
MAX_BATCH_BYTES = 32_000_000
PAGE = 1000


def add_images(writing: Writing, images: Sequence[NewImage]) -> list[ImageError | None]:
    """Embeds images and upserts them in one write; returns when those that could be read are durable.

    However many there are, no more than a few are decoded at a time: one image may take 120 MB.

    Returns:
        One entry an image: None, or why it could not be read.
    """
    adding = Adding(writing, images)
    while (embedder := adding.store()) is not None:
        for batch, decoded in read_ahead(batches(range(len(images)), DECODED_AT_ONCE), adding.read):
            readable = [(index, image) for index, image in zip(batch, decoded, strict=True) if image is not None]
            vectors = embedder.embed_each([image for _, image in readable])
            adding.take(embedder, [index for index, _ in readable], vectors)
    return adding.errors


def index_folder(
    writing: Writing,
    folder: Path,
    *,
    prune: bool = False,
    begin: Callable[[FolderChanges], None] = lambda changes: None,
    progress: Progress = lambda done, total: None,
) -> IndexReport:
    """Makes the collection hold the folder's images.

    Args:
        writing: what to write to, asked for each batch.
        folder: searched with all its subfolders; an image's parent folder is its label.
        prune: delete items of this folder whose file is gone. Those of a subfolder that is empty, a link, or cannot be
            listed may be there unseen: they stay, and are the report's `kept`.
        begin: called with what is to do, before any of it.
        progress: called with (done, total), counted in images to embed.

    Raises:
        NoImages: the folder holds no image, and did not before if it is pruned; or nothing at all.
        InvalidRequest: the collection holds images of another folder under the same relative paths.
    """
    root = Path(folder).resolve()
    found = images_by_id(root, prune=prune)
    with writing() as targets:
        collection = targets[0].collection
    known = _known(collection)
    _refuse_clash(collection, root, found, known)
    changes = find_changes(root, found, known, origin=str(root), prune=prune)
    begin(changes)
    failed = _take_up(writing, changes.wanted, progress)
    removed = sum(_delete(writing, ids) for ids in batches(changes.gone, PAGE)) if prune else 0
    return changes.report(failed, removed)


def _take_up(writing: Writing, wanted: Sequence[FolderImage], progress: Progress) -> list[tuple[FolderImage, str]]:
    """Stores images batch by batch; those that could not be read, with the reason."""
    failed: list[tuple[FolderImage, str]] = []
    done = 0
    every = batches(wanted, BATCH, lambda one: one.metadata["size"], MAX_BATCH_BYTES)
    for batch, found in read_ahead(every, lambda one: read_image(_new(one))):
        errors = _store(Adding(writing, [_new(one) for one in batch]), found)
        failed += [(one, str(error)) for one, error in zip(batch, errors, strict=True) if error is not None]
        done += len(batch)
        progress(done, len(wanted))
    return failed


def _delete(writing: Writing, ids: Sequence[str]) -> int:
    """Deletes items wherever they are written; returns how many the collection itself had."""
    with writing() as targets:
        deleted = [target.collection.delete(ids) for target in targets]
    return deleted[0]


def _known(collection: Collection) -> dict[str, dict[str, Any]]:
    """Metadata of the items that came from an indexed folder, by id."""
    indexed = pages(collection, {"must": [{"key": "root", "exists": True}]}, limit=PAGE, with_vector=False)
    return {item.id: dict(item.metadata) for items in indexed for item in items}


def _refuse_clash(
    collection: Collection, root: Path, found: Mapping[str, Path], known: Mapping[str, Mapping[str, Any]]
) -> None:
    """Two folders with the same relative paths would overwrite each other; a folder that moved may."""
    for id in found.keys() & known.keys():
        other = known[id]["root"]
        if other != str(root) and Path(other, known[id]["path"]).exists():
            raise InvalidRequest(
                f"Collection {collection.name!r} holds {known[id]['path']!r} of {other} already: index {root} into a "
                "collection of its own, or index a folder that holds both."
            )


def _new(one: FolderImage) -> NewImage:
    return NewImage(one.id, one.path, one.metadata)


def _store(adding: Adding, found: Sequence[tuple[Image.Image, Draft] | ImageError]) -> list[ImageError | None]:
    """Embeds what could be read and upserts it, in one durable write a collection; the error of each that has one."""
    images = {i: image for i, one in enumerate(found) if (image := adding.note(i, one)) is not None}
    while (embedder := adding.store()) is not None:
        good = [i for i in images if adding.errors[i] is None]
        adding.take(embedder, good, embedder.embed_each([images[i] for i in good]))
    return adding.errors
