"""Import a file of images or vectors into a server's collection: upload it in parts, then follow the job.

The parts are sent under a key that is made from the content of the file. After an interruption, also of this program,
the same call asks the server what has arrived, and continues there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nnclr_hub.client.collections import describe, path_of
from nnclr_hub.client.jobs import Job, read_job
from nnclr_hub.client.steps import Call, Steps, in_thread, perform
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.import_format import FORMATS, ImportFormat, format_of_file

PART = 8 << 20  # bytes of a request
PATIENCE_S = 600.0  # maximum wait for a busy or restarting server
Progress = Callable[[int, int], None]


def import_file(
    name: str, path: str | Path, *, format: str | None = None, progress: Progress = lambda done, total: None
) -> Steps[Job]:
    """Upload a file of images or vectors and start the job that imports it; `jobs.wait` waits for the job.

    Args:
        path: a zip or tar of images, or vectors and metadata as NDJSON, Arrow or Parquet.
        format: zip, tar, ndjson, arrow or parquet; None: by the suffix of the file.
        progress: called with (done, total), in bytes.

    Raises:
        CollectionNotFound: create it first, with `collections.create`.
        InvalidRequest: the file does not exist, or its format is unknown.
        FingerprintMismatch: the encoder that the collection is bound to is unavailable.
        RequestTooLarge: the file exceeds the server's limit.
    """
    if format is not None and format not in FORMATS:
        raise InvalidRequest(f"format must be one of {', '.join(FORMATS)}, got {format!r:.80}.")
    if Path(path).is_dir():
        raise InvalidRequest(f"{path} is a folder, not a file; pack it into a zip, or use index_folder for its images.")
    kind = format_of_file(path) if format is None else FORMATS[format]
    yield from describe(name)  # a wrong name is reported before anything is read
    key, size = yield from in_thread(lambda: _digest(Path(path)))
    key, received = yield from _find_upload(name, key)
    while True:
        progress(received, size)
        job, received = yield from _send_part(name, Path(path), kind, key, received, size)
        if job is not None:
            progress(size, size)
            return job


def abandon_import(name: str, path: str | Path) -> Steps[None]:
    """Delete what the server has of an interrupted `import_file` of this file; does nothing if it has nothing.

    Args:
        path: of the file, with the same content.

    Raises:
        CollectionNotFound: the collection does not exist.
        InvalidRequest: the file does not exist, or a job already imports it; `jobs.cancel` cancels that.
    """
    yield from describe(name)
    key, _ = yield from in_thread(lambda: _digest(Path(path)))
    key, _ = yield from _find_upload(name, key)
    yield from perform(Call("DELETE", f"{path_of(name)}/imports/{key}", lambda answer: None))


def _digest(path: Path) -> tuple[str, int]:
    """Return the hash of a file and its size."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read ({error.strerror}); check the path.") from error


def _find_upload(name: str, key: str) -> Steps[tuple[str, int]]:
    """Return the key of the upload, and how many bytes have arrived.

    If the same content was imported before, this is a new upload with another key.
    """
    while True:
        state = yield from perform(Call("GET", f"{path_of(name)}/imports/{key}", lambda answer: answer.json()))
        job = state["job"] and read_job(state["job"])
        if job is None or not job.has_ended:
            return key, state["received"]
        key = hashlib.sha256(f"{key}{job.id}".encode()).hexdigest()


def _send_part(
    name: str, path: Path, kind: ImportFormat, key: str, start: int, size: int
) -> Steps[tuple[Job | None, int]]:
    """Send the next part; return the job after the last one, and how many bytes have arrived."""

    def read() -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(PART)

    data: bytes = yield from in_thread(read)
    last = start + len(data) >= size
    headers = {
        "Content-Type": kind.media_type,
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(path.name)}",
        "Idempotency-Key": key,
        "Upload-Offset": str(start),
        "Upload-Complete": "?1" if last else "?0",
    }
    call: Call[dict[str, Any]] = Call(
        "POST",
        f"{path_of(name)}/imports",
        lambda answer: answer.json(),
        content=data,
        headers=headers,
        patience=PATIENCE_S,
    )
    state = yield from perform(call)
    return (state["job"] and read_job(state["job"])) or None, state["received"]
