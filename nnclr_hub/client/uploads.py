"""Add images to a server's collection: a few, or a folder with several concurrent requests.

A folder is indexed like `nnclr index` does it locally: ids are hashes of the paths relative to the folder, and files
that the collection holds with the same size and modification time are not sent again. So an interrupted run continues
when it is repeated. The client waits for a server that is busy or restarting.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from nnclr_hub.client.answers import failures, make_error
from nnclr_hub.client.collections import PAGE, ROOT, delete, describe, scroll, update_each
from nnclr_hub.client.images import MOST, bounded, shrunk
from nnclr_hub.client.models import image_error, reports_each
from nnclr_hub.client.steps import Answer, Call, Steps, for_each, in_thread, perform, to_json
from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest, RequestTooLarge
from nnclr_hub.images.source import ImageSource
from nnclr_hub.store.checks import check_collection_name
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.workbench.add_request import AddRequest, NewImage
from nnclr_hub.workbench.folder_changes import FolderImage, IndexReport, Listing, find_changes, list_images_of
from nnclr_hub.workbench.payload import image_file

WORKERS = 4
SMALLEST = 8  # images per request, if there are as many
PATIENCE_S = 600.0  # maximum wait of an upload for a busy or restarting server
Progress = Callable[[int, int], None]


def add_images(name: str, images: AddRequest | Sequence[NewImage]) -> Steps[list[ImageError | None]]:
    """Add images to the collection; return when those that could be read are durable.

    Returns:
        One entry per image: None, or why it could not be read.
    """
    new = AddRequest.of(images).images
    errors: list[ImageError | None] = [None] * len(new)

    def load() -> list[tuple[int, tuple[str, bytes]]]:
        files = []
        for i, one in enumerate(new):
            try:
                files.append((i, image_file(one.image)))
            except ImageError as error:
                errors[i] = error
        return files

    files = yield from in_thread(load)
    for batch in bounded(files, lambda one: _size(one[1], new[one[0]].note())):
        answers = yield from _send(name, [file for _, file in batch], [new[i].note() for i, _ in batch])
        for (i, _), error in zip(batch, answers, strict=True):
            errors[i] = error
    return errors


def index_folder(
    name: str,
    folder: str | Path,
    *,
    prune: bool = False,
    thumbnails: bool = True,
    workers: int = WORKERS,
    shrink: int | None = None,
    source: str | None = None,
    labels: LabelTable | str | Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Steps[IndexReport]:
    """Make the collection hold the folder's images; call it again to continue, or to update changed files.

    Args:
        folder: read with its subfolders; an image's parent folder is its label. Or an archive, an address or a
            pattern, see `find_images`.
        prune: delete items of this source whose file was removed. Items of a subfolder that is empty, a link, or
            unreadable are kept, since their files may exist; the report counts them as `kept`. Without `source`, all
            are kept, since another folder may have the same default source.
        workers: concurrent requests, 1 to 32.
        shrink: send larger images as JPEGs with this longest side; None: send the files as they are.
        source: name of the folder in the collection; None: FOLDER-ID@HOST, where the ID is a hash of the folder's path
            and of the machine-id. That of an archive is its folder, and the name of the archive follows after a colon.
        labels: a table of labels; see `list_images_of`.
        progress: called with (done, total), counted in images to send.

    Raises:
        NoImages: if the folder holds no image; with `prune`, if it never held one or is empty.
        InvalidRequest: if the collection holds different images of another source under the same paths.
        CollectionNotFound: create it first, with `collections.create`.
    """
    if not 1 <= workers <= 32:
        raise InvalidRequest(f"workers must be between 1 and 32, got {workers}.")
    if shrink is not None and shrink < 32:
        raise InvalidRequest(f"shrink must be at least 32 pixels, got {shrink}.")

    def origin(place: ImageSource) -> str:
        path = PurePosixPath(place.absolute)
        named = _default_source(path.parent if place.archive else path) if source is None else source
        # without slashes, since a server shows only the last part
        return f"{PurePosixPath(named).name}:{path.name}" if place.archive else named

    listing = yield from in_thread(lambda: list_images_of(folder, prune=prune, origin=origin, labels=labels))
    yield from describe(name)  # a wrong name is reported before anything is compared
    held = yield from _held(name)
    known = _of_this_source(name, listing, held)
    changes = yield from in_thread(lambda: find_changes(listing, known, prune=prune, unique=source is not None))
    run = _Run(name, shrink, thumbnails, len(changes.wanted), progress)
    share = min(MOST, max(SMALLEST, -(-len(changes.wanted) // workers)))  # a small folder too keeps all workers busy
    every = bounded(changes.wanted, lambda one: one.metadata["size"], most=share)
    yield from for_each(every, run.add, workers)
    yield from update_each(name, changes.labels)
    removed = (yield from delete(name, changes.gone)) if prune else 0
    return changes.report(sorted(run.failed, key=lambda one: one[0].name), removed, listing.left_out)


class _Run:
    """The progress of one call of `index_folder`, and the files that could not be read."""

    def __init__(self, name: str, shrink: int | None, thumbnails: bool, total: int, progress: Progress) -> None:
        self.failed: list[tuple[FolderImage, str]] = []
        self._name, self._shrink, self._thumbnails = name, shrink, thumbnails
        self._total, self._progress = total, progress
        self._done = 0
        self._lock = threading.Lock()

    def add(self, batch: Sequence[FolderImage]) -> Steps[None]:
        """Send a batch of files, and record those that cannot be read."""
        loaded = yield from in_thread(lambda: [self._load(one) for one in batch])
        good = [one for one in loaded if not isinstance(one, ImageError)]
        failed = [(one, str(error)) for one, error in zip(batch, loaded, strict=True) if isinstance(error, ImageError)]
        # files may have grown since they were listed
        for part in bounded(good, lambda one: _size(one[1], self._note(one[0]))):
            notes = [self._note(one) for one, _ in part]
            answers = yield from _send(self._name, [file for _, file in part], notes)
            failed += [(one, str(error)) for (one, _), error in zip(part, answers, strict=True) if error is not None]
        with self._lock:  # several workers report progress
            self.failed += failed
            self._done += len(batch)
            self._progress(self._done, self._total)

    def _note(self, one: FolderImage) -> dict[str, Any]:
        return NewImage(one.id, one.path, one.metadata, self._thumbnails).note()

    def _load(self, one: FolderImage) -> tuple[FolderImage, tuple[str, bytes]] | ImageError:
        try:
            to_json(one.metadata)
        except InvalidRequest:
            return ImageError("Its name is not UTF-8, which a request cannot carry; rename it.")
        try:
            name, data = image_file(one.path)
            return one.described(), (name, data if self._shrink is None else shrunk(data, self._shrink))
        except ImageError as error:
            return error


def _send(name: str, files: list[tuple[str, bytes]], notes: list[dict[str, Any]]) -> Steps[list[ImageError | None]]:
    """Send one upload, or two halves if the server finds it too large."""
    if not files:
        return []
    try:
        return (yield from perform(_upload(name, files, notes)))
    except RequestTooLarge as error:
        if len(files) == 1:
            return [ImageTooLarge(str(error))]
    half = len(files) // 2
    first = yield from _send(name, files[:half], notes[:half])
    return first + (yield from _send(name, files[half:], notes[half:]))


def _size(file: tuple[str, bytes], note: Mapping[str, Any]) -> int:
    """Return the bytes of an image in a request, including its note."""
    return len(file[1]) + len(to_json(note).encode()) + 1


def _upload(name: str, files: list[tuple[str, bytes]], notes: list[dict[str, Any]]) -> Call[list[ImageError | None]]:
    def read(answer: Answer) -> list[ImageError | None]:
        if answer.status >= 300:
            failed = failures(answer)
            return [image_error(failed[i]) for i in range(len(files))]
        errors = [one.get("error") for one in answer.json()["results"]]
        return [None if one is None else image_error(make_error(one["code"], one["detail"])) for one in errors]

    return Call(
        "POST",
        f"{ROOT}/{check_collection_name(name)}/items",
        read,
        files=[("files", file) for file in files],
        fields={"items": to_json(notes)},
        takes=reports_each(len(files)),
        patience=PATIENCE_S,
    )


def _held(name: str) -> Steps[dict[str, dict[str, Any]]]:
    """Return the metadata of the items that came from a folder, by id."""
    held: dict[str, dict[str, Any]] = {}
    cursor = None
    while True:
        page = yield from scroll(name, cursor, PAGE, {"must": [{"key": "path", "exists": True}]}, with_vector=False)
        held |= {item.id: dict(item.metadata) for item in page.items if "root" in item.metadata}
        cursor = page.cursor
        if cursor is None:
            return held


def _default_source(folder: PurePosixPath) -> str:
    """Return the source of a folder: FOLDER-ID@HOST, where the ID is a hash of its path and of the machine-id.

    Only equal paths on hosts of one name that share a machine-id, or have none, have the same source.
    """
    machine = ""
    with suppress(OSError):  # only Linux has this file, and few containers
        machine = Path("/etc/machine-id").read_text()
    path = f"{machine}\0{folder}".encode("utf-8", "surrogateescape")
    return f"{folder.name}-{hashlib.sha256(path).hexdigest()[:8]}@{socket.gethostname()}"


def _of_this_source(name: str, listing: Listing, held: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the held items as this source would have them: an identical file of another source is not sent again."""
    ours = dict(held)
    for id in listing.images.keys() & held.keys():
        image, other = listing.images[id], held[id]
        state, theirs = listing.state(image), str(other.get("root"))
        in_archive = image.offset is not None  # where times are often constant, and prove nothing
        if theirs == state["root"] or not (in_archive or state["size"] or state["mtime"]):
            continue
        if in_archive or (other.get("size"), other.get("mtime")) != (state["size"], state["mtime"]):
            _, path = listing.file_of(image)
            own = f":{PurePosixPath(listing.sources[image.source].absolute).name}" if in_archive else ""
            same = f"if that is the same {'archive' if in_archive else 'folder'}, set source="
            same += f"{theirs.removesuffix(own)!r} (--source), otherwise "
            raise InvalidRequest(
                f"Collection {name!r} holds a different {path!r}, of {theirs}; {same if theirs.endswith(own) else ''}"
                "index it into another collection."
            )
        ours[id] = {**other, "root": state["root"]}
    return ours
