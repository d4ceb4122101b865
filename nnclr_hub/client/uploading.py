"""Images into a server's collection: a few, or a folder with several requests on their way at once.

A folder is taken up as `nnclr index` does it on its own machine: ids are hashes of the paths below the folder, and what
the collection holds with the same size and modification time is not sent again. So a run that was interrupted is simply
made again. A server that is busy, or is being restarted, is waited for.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.client.answers import failures, make_error
from nnclr_hub.client.collections import PAGE, ROOT, delete, describe, scroll
from nnclr_hub.client.embedding import image_error, told_by_part
from nnclr_hub.client.pictures import MOST, MOST_BYTES, read_image, shrunk
from nnclr_hub.client.steps import Answer, Call, Steps, aside, ask, spread, to_json
from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest, RequestTooLarge
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.checks import check_name
from nnclr_hub.workbench.folder_changes import FolderImage, IndexReport, find_changes, images_by_id

if TYPE_CHECKING:
    from nnclr_hub.client.pictures import ImageLike

WORKERS = 4
SMALLEST = 8  # images a request, if there are so many
PATIENCE_S = 600.0  # a bulk upload waits so long for a busy or restarting server
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Picture:
    """An image to put into a collection under an id; the server embeds it.

    image: path, bytes, PIL image or (H, W, 3) uint8.
    metadata: JSON values by key.
    """

    id: str
    image: ImageLike
    metadata: dict[str, Any] = field(default_factory=dict)


def add_images(name: str, pictures: Sequence[Picture]) -> Steps[list[ImageError | None]]:
    """Puts images into the collection; returns when those that could be read are durable.

    Returns:
        One entry an image: None, or why it could not be read.
    """
    errors: list[ImageError | None] = [None] * len(pictures)

    def load() -> list[tuple[int, tuple[str, bytes]]]:
        files = []
        for i, picture in enumerate(pictures):
            check_name(picture.id, "Item id")
            try:
                files.append((i, read_image(picture.image)))
            except ImageError as error:
                errors[i] = error
        return files

    files = yield from aside(load)
    for batch in batches(
        files, MOST, lambda one: _size(one[1], pictures[one[0]].id, pictures[one[0]].metadata), MOST_BYTES
    ):
        about = [(pictures[i].id, pictures[i].metadata) for i, _ in batch]
        answers = yield from _send(name, [file for _, file in batch], about)
        for (i, _), error in zip(batch, answers, strict=True):
            errors[i] = error
    return errors


def index_folder(
    name: str,
    folder: str | Path,
    *,
    prune: bool = False,
    workers: int = WORKERS,
    shrink: int | None = None,
    source: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Steps[IndexReport]:
    """Makes the collection hold the folder's images; call it again to go on, or to take up what changed.

    Args:
        folder: searched with its subfolders; an image's parent folder is its label.
        prune: delete items of this source whose file is gone. Those of a subfolder that is empty, a link, or cannot be
            listed may be there unseen: they stay, and are the report's `kept`.
        workers: requests on their way at once, 1 to 32.
        shrink: send JPEGs of at most so many pixels a side in place of larger images; None: the files as they are.
        source: name of the folder in the collection; None: FOLDER@THIS-MACHINE.
        progress: called with (done, total), counted in images to send.

    Raises:
        NoImages: the folder holds no image, and did not before if it is pruned; or nothing at all.
        InvalidRequest: the collection holds other images of another source under the same paths.
        CollectionNotFound: make it first, with `collections.create`.
    """
    if not 1 <= workers <= 32:
        raise InvalidRequest(f"workers={workers} is not possible: give 1 to 32.")
    if shrink is not None and shrink < 32:
        raise InvalidRequest(f"shrink={shrink} is not possible: give 32 pixels or more.")
    root = Path(folder).resolve()
    origin = source or f"{root.name}@{socket.gethostname()}"
    found = yield from aside(lambda: images_by_id(root, prune=prune))
    yield from describe(name)  # a wrong name is told before anything is compared
    known = _of_this_source(name, origin, root, found, (yield from _held(name)))
    changes = yield from aside(lambda: find_changes(root, found, known, origin=origin, prune=prune))
    run = _Run(name, shrink, len(changes.wanted), progress)
    share = min(MOST, max(SMALLEST, -(-len(changes.wanted) // workers)))  # a small folder keeps all workers busy too
    every = batches(changes.wanted, share, lambda one: one.metadata["size"], MOST_BYTES)
    yield from spread(every, run.take_up, workers)
    removed = (yield from delete(name, changes.gone)) if prune else 0
    return changes.report(sorted(run.failed, key=lambda one: one[0].path), removed)


class _Run:
    """One call of `index_folder`: how far it is, and what could not be read."""

    def __init__(self, name: str, shrink: int | None, total: int, progress: Progress) -> None:
        self.failed: list[tuple[FolderImage, str]] = []
        self._name, self._shrink, self._total, self._progress = name, shrink, total, progress
        self._done = 0
        self._lock = threading.Lock()

    def take_up(self, batch: Sequence[FolderImage]) -> Steps[None]:
        """Sends a batch of files; one that cannot be read is noted."""
        loaded: list[tuple[str, bytes] | ImageError] = yield from aside(lambda: [self._load(one) for one in batch])
        good = [(one, file) for one, file in zip(batch, loaded, strict=True) if not isinstance(file, ImageError)]
        failed = [(one, str(error)) for one, error in zip(batch, loaded, strict=True) if isinstance(error, ImageError)]
        # files may have grown since they were listed
        for part in batches(good, MOST, lambda one: _size(one[1], one[0].id, one[0].metadata), MOST_BYTES):
            about = [(one.id, one.metadata) for one, _ in part]
            answers = yield from _send(self._name, [file for _, file in part], about)
            failed += [(one, str(error)) for (one, _), error in zip(part, answers, strict=True) if error is not None]
        with self._lock:  # several workers, and a bar that takes one step after another
            self.failed += failed
            self._done += len(batch)
            self._progress(self._done, self._total)

    def _load(self, one: FolderImage) -> tuple[str, bytes] | ImageError:
        try:
            to_json(one.metadata)
            name, data = read_image(one.path)
            return name, data if self._shrink is None else shrunk(data, self._shrink)
        except ImageError as error:
            return error
        except InvalidRequest:
            return ImageError("Its name is not UTF-8, which no request can carry: rename it.")


def _send(name: str, files: list[tuple[str, bytes]], about: list[tuple[str, Any]]) -> Steps[list[ImageError | None]]:
    """One upload, or two halves where the server finds it too large."""
    if not files:
        return []
    try:
        return (yield from ask(_upload(name, files, about)))
    except RequestTooLarge as error:
        if len(files) == 1:
            return [ImageTooLarge(str(error))]
    half = len(files) // 2
    first = yield from _send(name, files[:half], about[:half])
    return first + (yield from _send(name, files[half:], about[half:]))


def _size(file: tuple[str, bytes], id: str, metadata: Mapping[str, Any]) -> int:
    """Bytes that an image takes in a request, with what is said about it."""
    return len(file[1]) + len(to_json(_note(id, metadata)).encode()) + 1


def _note(id: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": id, "metadata": dict(metadata)}


def _upload(name: str, files: list[tuple[str, bytes]], about: list[tuple[str, Any]]) -> Call[list[ImageError | None]]:
    def read(answer: Answer) -> list[ImageError | None]:
        if answer.status >= 300:
            told = failures(answer)
            return [image_error(told[i]) for i in range(len(files))]
        errors = [one.get("error") for one in answer.json()["results"]]
        return [None if one is None else image_error(make_error(one["code"], one["detail"])) for one in errors]

    key = uuid.uuid4().hex  # and the same bytes each time, so that the server knows the request again
    return Call(
        "POST",
        f"{ROOT}/{check_name(name, 'Collection name')}/items",
        read,
        files=[("files", file) for file in files],
        fields={"items": to_json([_note(id, metadata) for id, metadata in about])},
        headers={"Idempotency-Key": key, "Content-Type": f"multipart/form-data; boundary={key}"},
        takes=told_by_part(len(files)),
        patience=PATIENCE_S,
    )


def _held(name: str) -> Steps[dict[str, dict[str, Any]]]:
    """Metadata of the items that came from a folder, by id."""
    held: dict[str, dict[str, Any]] = {}
    cursor = None
    while True:
        page = yield from scroll(name, cursor, PAGE, {"must": [{"key": "path", "exists": True}]}, with_vector=False)
        held |= {item.id: dict(item.metadata) for item in page.items if "root" in item.metadata}
        cursor = page.cursor
        if cursor is None:
            return held


def _of_this_source(
    name: str, origin: str, root: Path, found: dict[str, Path], held: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """What is held, as this source has it: a file that another source brought in as it stands is as good as ours.

    Raises:
        InvalidRequest: another source brought in another image under the same path.
    """
    ours = dict(held)
    for id in found.keys() & held.keys():
        other = held[id]
        if other.get("root") == origin or not found[id].exists():
            continue
        stat = found[id].stat()
        if (other.get("size"), other.get("mtime")) != (stat.st_size, stat.st_mtime):
            path = found[id].relative_to(root).as_posix()
            raise InvalidRequest(
                f"Collection {name!r} holds another {path!r}, of {other.get('root')}: if that is the same folder, give "
                f"source={other.get('root')!r} (--source), else index {root.name} into a collection of its own."
            )
        ours[id] = {**other, "root": origin}
    return ours
