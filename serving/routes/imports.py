"""/api/v1/collections/{name}/imports: upload a file of images or vectors, which a job imports.

    POST   /api/v1/collections/photos/imports   Content-Type: application/zip     Idempotency-Key: 5f0c...
    GET    /api/v1/collections/photos/imports/5f0c...
    DELETE /api/v1/collections/photos/imports/5f0c...

The body is written to disk as it arrives. The key names the upload: after a lost connection, GET returns how many bytes
arrived, and the next POST with `Upload-Offset` continues there. A file may also be sent in parts, all but the last with
`Upload-Complete: ?0`. `Content-Disposition` may name the file for messages.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from email.message import Message
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from anyio import CancelScope
from anyio.to_thread import run_sync
from fastapi import Header, Path, Request, Response
from pydantic import Field

from nnclr_hub.errors import DiskFull, InvalidRequest, RequestTooLarge
from nnclr_hub.store.disk import NO_SPACE, check_space
from nnclr_hub.workbench.requests import FORMATS, ImportFormat
from nnclr_hub.workbench.staging import complete, partial_file, partial_size, unstage

from ..access import READ, WRITE
from ..jobs import UPLOAD, Jobs, JobStatus
from ..request_bodies import media_type, unsupported
from .jobs import LOCATION, JobResponse, started
from .router import FAILED_WRITE, Here, Router, body_of
from .schemas import Strict

WRITTEN = 1 << 20  # bytes per write
MOST_NAME = 100  # characters of a file's name in messages
# Held while the file of an upload is opened, extended, or given to a job: two requests may send the same upload. A lock
# is shared by several tickets.
LOCKS = [threading.Lock() for _ in range(64)]
BY_MEDIA_TYPE = {one.media_type: one for one in FORMATS.values()}
Key = Annotated[str, Path(json_schema_extra={"pattern": "^[A-Za-z0-9_-]{1,255}$"})]


class ImportResponse(Strict):
    """The state of an upload."""

    received: int = Field(description="bytes that have arrived; 0 once the file is complete")
    job: JobResponse | None = Field(description="the job that imports the file; null until the file is complete")


router = Router(prefix="/api/v1/collections/{name}/imports", tags=["jobs"])
_ACCEPTED = {"description": "The bytes are stored; if the file is complete, a job was started.", "headers": LOCATION}


@router.on(
    *("POST", "", WRITE, f"collection_not_found fingerprint_mismatch model_error {FAILED_WRITE}"),
    streamed=True,
    status_code=202,
    responses={202: _ACCEPTED},
    openapi_extra=body_of(*BY_MEDIA_TYPE),
)
async def import_file(
    name: str,
    request: Request,
    response: Response,
    here: Here,
    upload_offset: Annotated[
        int, Header(ge=0, description="bytes of the file before this body; they must have arrived")
    ] = 0,
    upload_complete: Annotated[
        Literal["?0", "?1"], Header(description="`?0`: the next request with the same Idempotency-Key continues")
    ] = "?1",
) -> ImportResponse:
    """Import a file of images or vectors into the collection, as a job.

    A zip or tar contains images; the folder of an image is its label. NDJSON has one object with `id`, `vector` and
    `metadata` per line. An Arrow or Parquet table has columns `id` and `vector`, and the others become metadata.
    Invalid images and rows are listed in the job's result, and all others are stored.
    """
    format = BY_MEDIA_TYPE.get(media_type(request))
    if format is None:
        raise unsupported(request, *BY_MEDIA_TYPE)
    # a wrong collection is reported before the file is sent
    await run_sync(here.workbench.fillable if format.images else here.workbench.collection, name)
    key, jobs, settings = request.headers.get("idempotency-key"), here.jobs, here.settings
    writer = PartialFile(_ticket(request, name, key), upload_offset, settings.import_bytes)
    try:
        job = await run_sync(writer.open, jobs)
        if job is not None:
            async for _ in request.stream():  # a client may not read the answer before it has sent everything
                pass
        else:
            await _receive(request, writer)
            if upload_complete == "?0":
                return ImportResponse(received=writer.size, job=None)
            file = _file_name(request, format)
            params: dict[str, Any] = {"collection": name, "file": file, "format": format.name}
            most = {"max_bytes": settings.max_bytes} if format.images else {}
            job = await run_sync(writer.submit, jobs, file, "add" if format.images else "import", params, most)
        return ImportResponse(received=0, job=started(response, job))
    except BaseException as error:
        if key is None or isinstance(error, RequestTooLarge):  # nobody can continue the upload
            with CancelScope(shield=True):
                await run_sync(writer.discard, jobs)
        raise


@router.on("GET", "/{key}", READ, "collection_not_found")
def import_state(name: str, key: Key, request: Request, here: Here) -> ImportResponse:
    """Return how much of an upload has arrived, by its Idempotency-Key, or the job that imports it."""
    here.workbench.collection(name)
    ticket = _ticket(request, name, key)
    job = here.jobs.submitted(ticket)
    return ImportResponse(received=0 if job else partial_size(ticket), job=JobResponse.of(job) if job else None)


@router.on("DELETE", "/{key}", WRITE, f"collection_not_found {FAILED_WRITE}", status_code=204)
def discard_import(name: str, key: Key, request: Request, here: Here) -> None:
    """Delete what has arrived of an upload that will not be continued.

    If a job has the file already, nothing is deleted; cancel the job instead.
    """
    here.workbench.collection(name)
    job = PartialFile(_ticket(request, name, key), 0, 0).discard(here.jobs)
    if job is not None and not job.has_ended:
        raise InvalidRequest(f"Job {job.id} already imports this file; cancel it with DELETE /api/v1/jobs/{job.id}.")


# ---- inside


def _ticket(request: Request, name: str, key: str | None) -> str:
    """Return the ticket of an upload; without a key, nobody can continue it."""
    if key is None:
        return secrets.token_hex(16)
    if not re.fullmatch(r"[!-~]{1,255}", key):
        raise InvalidRequest("Idempotency-Key must be 1 to 255 visible ASCII characters, such as a UUID.")
    caller = request.scope["state"].get("key_name") or request.headers.get("authorization", "")
    return hashlib.sha256(repr((caller, name, key)).encode()).hexdigest()[:32]


def _file_name(request: Request, format: ImportFormat) -> str:
    """Return the name that the client gives the file, for messages; it ends in a suffix of the format."""
    header = Message()
    header["Content-Disposition"] = request.headers.get("content-disposition", "")
    try:
        file_name = header.get_filename() or "upload"
    except (TypeError, ValueError, LookupError):  # `email` raises these for parameters that RFC 2231 does not allow
        file_name = "upload"
    given = FilePath(file_name.replace("\\", "/")).name
    name = "".join(letter for letter in given if letter.isprintable())[-MOST_NAME:] or "upload"
    return name if name.lower().endswith(format.suffixes) else name + format.suffixes[0]


async def _receive(request: Request, writer: PartialFile) -> None:
    """Write the body behind the bytes that have arrived."""
    waiting = bytearray()
    try:
        async for piece in request.stream():
            waiting += piece
            if len(waiting) >= WRITTEN:
                await run_sync(writer.append, bytes(waiting))
                waiting.clear()
    finally:
        if waiting:  # also if the connection is lost, or the body is too slow and this is cancelled
            with CancelScope(shield=True):
                await run_sync(writer.append, bytes(waiting))


class PartialFile:
    """The file of an upload, which grows.

    Args:
        ticket: ticket of the upload.
        offset: where to continue; what is behind it is replaced.
        most: bytes of the whole file.
    """

    def __init__(self, ticket: str, offset: int, most: int) -> None:
        self._ticket, self._most = ticket, most
        self._lock = LOCKS[int(ticket, 16) % len(LOCKS)]
        self._path = FilePath()
        self.size = offset

    def open(self, jobs: Jobs) -> JobStatus | None:
        """Check the offset; return the job that already has the file, which then stays as it is.

        Raises:
            InvalidRequest: fewer bytes have arrived.
        """
        with self._lock:
            existing = jobs.submitted(self._ticket)
            if existing is not None:
                return existing
            self._path = partial_file(self._ticket)
            arrived = self._path.stat().st_size
            if self.size > arrived:
                raise InvalidRequest(
                    f"Upload-Offset is {self.size}, but {arrived} bytes have arrived; continue with Upload-Offset: "
                    f"{arrived}."
                )
            with self._path.open("r+b") as file:
                file.truncate(self.size)
            return None

    def append(self, data: bytes) -> None:
        """Write data at the end.

        Raises:
            InvalidRequest: a client that came back continues elsewhere; its lost connection must not write any more.
            RequestTooLarge: the file would become too large.
            DiskFull: there is no space.
        """
        with self._lock:
            self._check_alone()
            if self.size + len(data) > self._most:
                raise RequestTooLarge(
                    f"The file exceeds the limit of {self._most / 1e6:g} MB for imports; split it, or raise "
                    "NNCLR_IMPORT_BYTES."
                )
            check_space(self._path, len(data))
            try:
                with self._path.open("ab") as file:
                    file.write(data)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                text = "The disk of the server is too full for the file; free some space, and continue."
                raise DiskFull(text) from error
            self.size += len(data)

    def submit(self, jobs: Jobs, name: str, kind: str, params: dict[str, Any], hidden: dict[str, Any]) -> JobStatus:
        """Give the complete file to a job, and return it; see `Jobs.submit`.

        Raises:
            InvalidRequest: another request continues the upload.
        """
        with self._lock:
            existing = jobs.submitted(self._ticket)
            if existing is not None:
                return existing
            self._check_alone()
            complete(self._ticket, name)
            return jobs.submit(kind, params, {**hidden, UPLOAD: self._ticket}, mark=self._ticket)

    def discard(self, jobs: Jobs) -> JobStatus | None:
        """Delete the file, unless a job has it; return that job."""
        with self._lock:
            job = jobs.submitted(self._ticket)
            if job is None:
                unstage(self._ticket)
            return job

    def _check_alone(self) -> None:
        if not self._path.is_file() or self._path.stat().st_size != self.size:
            raise InvalidRequest("Another request continues this upload; this one is ended.")
