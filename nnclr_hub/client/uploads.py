"""Send images and files to a collection of a server.

An interrupted upload continues where it stopped: what the server has acknowledged is not sent again. The client waits
for a server that is busy or restarting.
"""

from __future__ import annotations

import hashlib
import io
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from nnclr_hub.client.transport import Call, Connection
from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest, NNCLRHubError, RequestTooLarge
from nnclr_hub.images.source import Place
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import Progress
from nnclr_hub.workbench.folder_changes import FolderImage, Listing, list_images_of
from nnclr_hub.workbench.payload import image_file
from nnclr_hub.workbench.requests import FORMATS, FolderRequest, NewImage, format_of_file

if TYPE_CHECKING:
    from nnclr_hub.encoder.embedder import ImageLike

MOST = 64  # images per request
MOST_BYTES = 19_000_000  # leaves space for the headers of the parts below the server's 20 MB
PART = 8 << 20  # bytes of a request with a part of a file
PATIENCE_S = 600.0  # maximum wait of an upload for a busy server
AGAIN = "Run it again to continue: what the server has stored is not sent again."
T = TypeVar("T")
File = tuple[str, bytes]  # name and content


def bounded(things: Iterable[T], size: Callable[[T], int], *, most: int = MOST) -> Iterator[list[T]]:
    """Yield lists that one request can hold, in order; a thing above the limit is alone in its list."""
    return batches(things, most, size, MOST_BYTES)


def patiently(connection: Connection) -> Connection:
    """Return the connection for the calls of an upload; see `Connection.patient`."""
    return connection.patient(PATIENCE_S, AGAIN)


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


def send_files(
    connection: Connection,
    path: str,
    files: Iterable[tuple[int, File]],
    results: list[Any],
    read: Callable[[Any], Iterable[Any]],
    *,
    failed: Callable[[NNCLRHubError], NNCLRHubError] = image_error,
    fields: Callable[[list[int]], Mapping[str, str]] = lambda positions: {},
    extra: Callable[[int], int] = lambda position: 0,
    params: Mapping[str, str] = {},
    workers: int = 1,
) -> None:
    """Send files in as many requests as it takes; put an entry for each file, or its error, into `results`.

    Two halves of a request are sent if the server finds it too large.

    Args:
        files: each with its position in `results`.
        read: returns an entry for each file of a request from the JSON of its answer.
        failed: returns the entry of a file from its error.
        fields: what a request says about the files at these positions. extra: bytes of that for one of them.
    """

    def send(batch: list[tuple[int, File]]) -> None:
        positions, parts = [i for i, _ in batch], [("files", file) for _, file in batch]
        try:
            call = Call("POST", path, params, files=parts, fields=fields(positions), parts=len(parts))
            answer = connection.send(call)
        except RequestTooLarge as error:
            if len(batch) == 1:
                results[positions[0]] = ImageTooLarge(str(error))
                return
            half = len(batch) // 2
            send(batch[:half])
            send(batch[half:])
            return
        if answer.status >= 300:
            entries: list[Any] = [failed(answer.failures[i]) for i in range(len(parts))]
        else:
            entries = answer.read(lambda body: list(read(body)))
        for i, entry in zip(positions, entries, strict=True):
            results[i] = entry

    batches = bounded(files, lambda one: len(one[1][1]) + extra(one[0]))
    if workers > 1:
        connection.for_each(batches, send, workers)
    else:
        for batch in batches:
            send(batch)


# ------------------------------------------------------------------------------ folders


def load(image: FolderImage, request: FolderRequest) -> NewImage | ImageError:
    """Return an image of a folder as it is sent, or why it cannot be."""
    try:
        image = image.described()
        new = NewImage(image.id, image.path, image.metadata, request.thumbnails)
        return new if request.shrink is None else replace(new, image=_shrink(image_file(image.path)[1], request.shrink))
    except ImageError as error:
        return error


def list_folder(request: FolderRequest) -> Listing:
    """List the images of a folder, with the name of their source in the collection; see `list_images_of`."""

    def origin(place: Place) -> str:
        path = PurePosixPath(place.absolute)
        named = request.source or _default_source(path.parent if place.archive else path)
        # without slashes, since a server shows only the last part
        return f"{PurePosixPath(named).name}:{path.name}" if place.archive else named

    return list_images_of(request.folder, prune=request.prune, origin=origin, labels=request.labels)


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


def upload_file(
    connection: Connection, path: str, file: Path, format: str | None, progress: Progress
) -> dict[str, Any]:
    """Upload a file in parts; return the job that imports it.

    The parts are sent under a key that is made from the content of the file. After an interruption, also of this
    program, the next upload asks the server what has arrived, and continues there.

    Args:
        path: route of imports.
        format: one of FORMATS; None: by the suffix of the file.
        progress: called with (done, total), in bytes.
    """
    if format is not None and format not in FORMATS:
        raise InvalidRequest(f"format must be one of {', '.join(FORMATS)}, got {format!r:.80}.")
    if file.is_dir():
        raise InvalidRequest(f"{file} is a folder, not a file; pack it into a zip, or use index_folder for its images.")
    try:
        with file.open("rb") as opened:
            key, size = hashlib.file_digest(opened, "sha256").hexdigest(), opened.tell()
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read ({error.strerror}); check the path.") from error
    kind = format_of_file(file) if format is None else FORMATS[format]
    while True:
        state: Any = connection.send(Call("GET", f"{path}/{key}")).json()
        if state["job"] is None or state["job"]["state"] in ("queued", "running"):
            break
        # the same content was imported before; this is a new upload with another key
        key = hashlib.sha256(f"{key}{state['job']['id']}".encode()).hexdigest()
    headers = {
        "Content-Type": kind.media_type,
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(os.fsencode(file.name))}",
        "Idempotency-Key": key,
    }
    received = state["received"]
    while True:
        progress(received, size)
        with file.open("rb") as opened:
            opened.seek(received)
            data = opened.read(PART)
        last = received + len(data) >= size
        headers |= {"Upload-Offset": str(received), "Upload-Complete": "?1" if last else "?0"}
        call = Call("POST", path, content=data, headers=headers)
        state = connection.send(call).json()
        received = state["received"]
        if state["job"] is not None:
            progress(size, size)
            return state["job"]
