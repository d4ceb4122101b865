"""Send images and files to a collection of a server.

A folder takes many requests, several at a time. It can be interrupted at any moment: what the server has acknowledged
is not sent again. The client waits for a server that is busy or restarting.
"""

from __future__ import annotations

import hashlib
import io
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from nnclr_hub.client.transport import Call, Connection, make_error, to_json
from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest, NNCLRHubError, RequestTooLarge
from nnclr_hub.images.source import Place
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import Progress
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.workbench.add_request import NewImage
from nnclr_hub.workbench.folder_changes import FolderImage, Listing, list_images_of
from nnclr_hub.workbench.import_format import FORMATS, format_of_file
from nnclr_hub.workbench.payload import image_file

if TYPE_CHECKING:
    from nnclr_hub.encoder.embedder import ImageLike

MOST = 64  # images per request
MOST_BYTES = 19_000_000  # leaves space for the headers of the parts below the server's 20 MB
SMALLEST = 8  # images per request, if there are as many
PART = 8 << 20  # bytes of a request with a part of a file
PATIENCE_S = 600.0  # maximum wait of an upload for a busy or restarting server
T = TypeVar("T")
File = tuple[str, bytes]  # name and content


def bounded(things: Iterable[T], size: Callable[[T], int], *, most: int = MOST) -> Iterator[list[T]]:
    """Yield lists that one request can hold, in order; a thing above the limit is alone in its list."""
    return batches(things, most, size, MOST_BYTES)


def files_of(images: Iterable[ImageLike], errors: list[Any]) -> Iterator[tuple[int, File]]:
    """Yield the file of each image with its position; put the errors of the others into `errors`."""
    for i, image in enumerate(images):
        try:
            yield i, image_file(image)
        except ImageError as error:
            errors[i] = error


def image_error(error: NNCLRHubError) -> ImageError:
    """Return the error of one image as an ImageError, whatever its code is."""
    return error if isinstance(error, ImageError) else ImageError(str(error))


def send_images(
    connection: Connection, path: str, images: Sequence[tuple[File, dict[str, Any]]]
) -> list[ImageError | None]:
    """Send files with their notes, in two halves if the server finds them too large; return an error or None each."""
    if not images:
        return []
    files = [("files", file) for file, _ in images]
    fields = {"items": to_json([note for _, note in images])}
    try:
        answer = connection.send(Call("POST", path, files=files, fields=fields, parts=len(files), patience=PATIENCE_S))
    except RequestTooLarge as error:
        if len(images) == 1:
            return [ImageTooLarge(str(error))]
        half = len(images) // 2
        return send_images(connection, path, images[:half]) + send_images(connection, path, images[half:])
    if answer.status >= 300:
        return [image_error(answer.failures[i]) for i in range(len(files))]
    errors = answer.read(lambda body: [one.get("error") for one in body["results"]])
    return [None if one is None else image_error(make_error(one["code"], one["detail"])) for one in errors]


def upload_size(image: tuple[File, dict[str, Any]]) -> int:
    """Return the bytes of an image in a request, including its note."""
    (_, data), note = image
    return len(data) + len(to_json(note).encode()) + 1


# ------------------------------------------------------------------------------ folders


class FolderUpload:
    """Sends the files of a folder, and collects those that cannot be read.

    Args:
        path: route that takes images.
        shrink: longest side of images that are sent; None: send the files as they are.
        total: number of files to send.
    """

    def __init__(
        self, connection: Connection, path: str, shrink: int | None, thumbnails: bool, total: int, progress: Progress
    ) -> None:
        if shrink is not None and shrink < 32:
            raise InvalidRequest(f"shrink must be at least 32 pixels, got {shrink}.")
        self.failed: list[tuple[FolderImage, str]] = []
        self._connection, self._path = connection, path
        self._shrink, self._thumbnails = shrink, thumbnails
        self._total, self._progress, self._done = total, progress, 0
        self._lock = threading.Lock()

    def send(self, images: Sequence[FolderImage], workers: int) -> None:
        """Send images in requests of similar size; a small folder too keeps all workers busy."""
        if not 1 <= workers <= 32:
            raise InvalidRequest(f"workers must be between 1 and 32, got {workers}.")
        share = min(MOST, max(SMALLEST, -(-len(images) // workers)))
        parts = bounded(images, lambda one: one.metadata["size"], most=share)
        self._connection.for_each(parts, self._send_part, workers)

    def _send_part(self, images: Sequence[FolderImage]) -> None:
        loaded = [self._load(one) for one in images]
        failed = [(image, str(one)) for image, one in zip(images, loaded, strict=True) if isinstance(one, ImageError)]
        good = [one for one in loaded if not isinstance(one, ImageError)]
        for part in bounded(good, lambda one: upload_size(one[1])):  # files may have grown since they were listed
            errors = send_images(self._connection, self._path, [one for _, one in part])
            failed += [(image, str(error)) for (image, _), error in zip(part, errors, strict=True) if error is not None]
        with self._lock:  # several workers report progress
            self.failed += failed
            self._done += len(images)
            self._progress(self._done, self._total)

    def _load(self, image: FolderImage) -> tuple[FolderImage, tuple[File, dict[str, Any]]] | ImageError:
        try:
            to_json(image.metadata)
        except InvalidRequest:
            return ImageError("Its name is not UTF-8, which a request cannot carry; rename it.")
        try:
            name, data = image_file(image.path)
            image, data = image.described(), data if self._shrink is None else _shrink(data, self._shrink)
        except ImageError as error:
            return error
        return image, ((name, data), NewImage(image.id, image.path, image.metadata, self._thumbnails).note())


def list_folder(
    folder: str | Path, source: str | None, labels: LabelTable | str | Path | None, *, prune: bool
) -> Listing:
    """List the images of a folder, with the name of their source in the collection; see `list_images_of`."""

    def origin(place: Place) -> str:
        path = PurePosixPath(place.absolute)
        named = _default_source(path.parent if place.archive else path) if source is None else source
        # without slashes, since a server shows only the last part
        return f"{PurePosixPath(named).name}:{path.name}" if place.archive else named

    return list_images_of(folder, prune=prune, origin=origin, labels=labels)


def _default_source(folder: PurePosixPath) -> str:
    """Return the source of a folder: FOLDER-ID@HOST, where the ID is a hash of its path and of the machine-id.

    Only equal paths on hosts of one name that share a machine-id, or have none, have the same source.
    """
    machine = ""
    with suppress(OSError):  # only Linux has this file, and few containers
        machine = Path("/etc/machine-id").read_text()
    path = f"{machine}\0{folder}".encode("utf-8", "surrogateescape")
    return f"{folder.name}-{hashlib.sha256(path).hexdigest()[:8]}@{socket.gethostname()}"


def own_items(name: str, listing: Listing, held: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
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
            own = f":{PurePosixPath(image.place.absolute).name}" if in_archive else ""
            same = f"if that is the same {'archive' if in_archive else 'folder'}, set source="
            same += f"{theirs.removesuffix(own)!r} (--source), otherwise "
            raise InvalidRequest(
                f"Collection {name!r} holds a different {path!r}, of {theirs}; {same if theirs.endswith(own) else ''}"
                "index it into another collection."
            )
        ours[id] = {**other, "root": state["root"]}
    return ours


def _shrink(data: bytes, side: int) -> bytes:
    """Return an upright JPEG of at most `side` pixels per side, or the file itself if that is not larger."""
    from nnclr_hub.images.decode import decode_image

    image = decode_image(data)
    if max(image.size) <= side:
        return data
    image.thumbnail((side, side), reducing_gap=2.0)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue() if file.tell() < len(data) else data


# ------------------------------------------------------------------------------ files


class FileUpload:
    """An upload of a file to import, in parts.

    The parts are sent under a key that is made from the content of the file. After an interruption, also of this
    program, the next upload asks the server what has arrived, and continues there.

    Args:
        path: route of imports.
    """

    def __init__(self, connection: Connection, path: str, file: Path) -> None:
        self._connection, self._path, self._file = connection, path, file
        try:
            with file.open("rb") as opened:
                self._key, self._size = hashlib.file_digest(opened, "sha256").hexdigest(), opened.tell()
        except OSError as error:
            raise InvalidRequest(f"{file} cannot be read ({error.strerror}); check the path.") from error
        while True:
            state: Mapping[str, Any] = connection.send(Call("GET", f"{path}/{self._key}")).json()
            if state["job"] is None or state["job"]["state"] in ("queued", "running"):
                break
            # the same content was imported before; this is a new upload with another key
            self._key = hashlib.sha256(f"{self._key}{state['job']['id']}".encode()).hexdigest()
        self._received = state["received"]

    def send(self, format: str | None, progress: Progress) -> dict[str, Any]:
        """Send what the server lacks; return the job that imports the file.

        Args:
            format: one of FORMATS; None: by the suffix of the file.
        """
        kind = format_of_file(self._file) if format is None else FORMATS[format]
        headers = {
            "Content-Type": kind.media_type,
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(self._file.name)}",
            "Idempotency-Key": self._key,
        }
        while True:
            progress(self._received, self._size)
            with self._file.open("rb") as opened:
                opened.seek(self._received)
                data = opened.read(PART)
            last = self._received + len(data) >= self._size
            headers |= {"Upload-Offset": str(self._received), "Upload-Complete": "?1" if last else "?0"}
            state = self._connection.send(
                Call("POST", self._path, content=data, headers=headers, patience=PATIENCE_S)
            ).json()
            self._received = state["received"]
            if state["job"] is not None:
                progress(self._size, self._size)
                return state["job"]

    def abandon(self) -> None:
        """Delete what the server has; does nothing if it has nothing."""
        self._connection.send(Call("DELETE", f"{self._path}/{self._key}"))
