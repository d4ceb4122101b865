"""/api/v1/jobs, and the routes that start a job: index, reembed, duplicates, backup."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import Field

from nnclr_hub.errors import (
    CollectionNotFound,
    DiskFull,
    FingerprintMismatch,
    InvalidFilter,
    InvalidRequest,
    JobNotFound,
    ModelError,
    StoreReadOnly,
    UnknownModel,
)
from nnclr_hub.store.checks import MAX_LIMIT
from nnclr_hub.workbench.duplicates import check_pair_score
from nnclr_hub.workbench.reembedding import abandon
from nnclr_hub.workbench.source_folders import SourceFolders

from ..jobs import Jobs, JobStatus
from ..jobs.events import is_over, stream
from ..keys import READ, WRITE
from ..problems import answers
from ..request_bodies import json_of
from ..security.access import requires
from .bodies import CollectionName, Integer, Strict, Where
from .dependencies import AppEngines, AppSettings, AppWorkbench, served_engine

JobKind = Literal[
    "probe_fit",
    "reembed",
    "duplicates",
    "verify",
    "compact",
    "add",
    "import",
    "index",
    "backup",
    "inspection",
    "comparison",
]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]


class JobError(Strict):
    """Why a job failed, as an error of a request reports it."""

    status: int
    code: str
    detail: str


class JobResponse(Strict):
    """The current state of a job. Times are seconds since 1970."""

    id: str
    kind: str
    params: dict[str, Any] = Field(description="parameters of the request")
    state: JobState
    cancelling: bool = Field(
        description="cancellation was requested and takes effect at the next step; false once it has ended"
    )
    done: int
    total: int = Field(description="0 while unknown")
    rate: float | None = Field(description="units per second")
    eta_s: float | None = Field(description="estimated seconds left")
    created: float
    started: float | None
    ended: float | None
    result: dict[str, Any] | None = Field(description="null until the job is done, and in lists")
    error: JobError | None

    @classmethod
    def of(cls, job: JobStatus) -> JobResponse:
        """Make the response of a job."""
        return cls.model_validate({name: getattr(job, name) for name in cls.model_fields})


class JobsResponse(Strict):
    """A page of jobs, newest first."""

    jobs: list[JobResponse]
    cursor: str | None = Field(description="cursor of the next page; null on the last page")


class JobRequest(Strict):
    """Maintenance of a collection in the background."""

    kind: Literal["verify", "compact"]
    collection: CollectionName


class ReembedRequest(Strict):
    """A new encoder for a collection."""

    model: str = Field(description="a model that the server serves")
    skip_missing: bool = Field(False, description="skip items whose file is missing or changed")
    writes_stopped: bool = Field(
        False,
        description="nothing else writes to the collection until the job is done. Required over Milvus, which keeps no "
        "log of changes; a store in a folder accepts writes",
    )


class IndexRequest(Strict):
    """A folder on the server."""

    source: str | None = Field(
        None, description="name of one of the server's source folders; null if there is only one"
    )
    folder: str = Field(
        "",
        max_length=4096,
        description="folder in the source folder, including its subfolders; empty: the whole source folder",
    )
    prune: bool = Field(
        False,
        description="delete items of this folder whose file no longer exists. Refused if the folder is empty, because "
        "its disk may not be mounted. Items of a subfolder that is empty, a link or unreadable are kept; the result "
        "counts them as `kept`",
    )


class DuplicatesRequest(Strict):
    """What counts as a duplicate."""

    threshold: float | Literal["auto"] | None = Field(
        None,
        description="lowest score of a pair, as in a search; auto: above chance in this collection; null: only images "
        "with identical pixels",
    )
    where: Where | None = Field(None, description="only items that match the filter; needs a threshold")
    exact: bool = Field(False, description="compare every pair; takes quadratic time")
    limit: Integer = Field(1000, ge=1, le=MAX_LIMIT, description="maximum number of groups, largest first")


router = APIRouter(prefix="/api/v1", tags=["jobs"])
_ID = re.compile(r"[0-9a-f]{14}")


def _jobs(request: Request) -> Jobs:
    return request.app.state.jobs


AppJobs = Annotated[Jobs, Depends(_jobs)]
LOCATION = {"Location": {"description": "Path of the job.", "schema": {"type": "string"}}}


class Submission:
    """A dependency of routes that start a job. A request for what a job waits to do, or does, gets that job."""

    def __init__(self, request: Request, response: Response) -> None:
        self._request, self._response = request, response

    def __call__(self, kind: str, params: Mapping[str, Any], **hidden: Any) -> JobResponse:
        """Submit a job, and return the response of the route; see `Jobs.submit`."""
        mark = hashlib.sha256(orjson.dumps([kind, params, hidden])).hexdigest()
        job = _jobs(self._request).submit(kind, params, hidden, mark=mark)
        self._response.headers["Location"] = f"/api/v1/jobs/{job.id}"
        return JobResponse.of(job)


Submit = Annotated[Submission, Depends(Submission)]


def answers_of_job(*kinds: Any) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route that starts a job, for its OpenAPI description."""
    made = {"description": "The job was accepted; Location is its path.", "headers": LOCATION}
    return {202: made, **answers(StoreReadOnly, DiskFull, "unsupported_media_type", *kinds)}


@router.get("/jobs", responses=answers())
@requires(READ)
def list_jobs(
    jobs: AppJobs,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[
        str | None,
        Query(description="cursor from the previous page", json_schema_extra={"pattern": f"^{_ID.pattern}$"}),
    ] = None,
    kind: JobKind | None = None,
    state: JobState | None = None,
) -> JobsResponse:
    """List jobs, newest first, without their results.

    Get a single job for its result. Ended jobs are kept for a while.
    """
    if cursor is not None and not _ID.fullmatch(cursor):
        raise InvalidRequest(f"Invalid cursor {cursor!r:.60}; pass the one from the previous page, or omit it.")
    found, after = jobs.list(limit, cursor, kind=kind, state=state)
    return JobsResponse(jobs=[JobResponse.of(job) for job in found], cursor=after)


@router.post(
    "/jobs",
    status_code=202,
    responses=answers_of_job(CollectionNotFound),
    operation_id="jobs-look-after",  # the published id; generated clients are named after it
)
@requires(WRITE)
def start_maintenance(
    body: Annotated[JobRequest, json_of(JobRequest)], bench: AppWorkbench, submit: Submit
) -> JobResponse:
    """Verify or compact a collection in the background."""
    bench.collection(body.collection)
    return submit(body.kind, {"collection": body.collection})


@router.post("/store/backups", status_code=202, responses=answers_of_job())
@requires(WRITE)
def start_backup(
    settings: AppSettings,
    submit: Submit,
    keep: Annotated[
        int | None, Query(ge=1, le=1_000_000, description="number of backups to keep; older ones are removed")
    ] = None,
) -> JobResponse:
    """Back up all collections, aliases, jobs and probes to the destination that the server is configured with.

    Only what is new is copied. The job's result has the backup's id and its size.
    """
    if not settings.backup_to:
        raise InvalidRequest("This server makes no backups; set NNCLR_BACKUP_TO to a folder or an address.")
    return submit("backup", {"keep": keep})


@router.get("/jobs/{id}", responses=answers(JobNotFound))
@requires(READ)
def get_job(id: str, jobs: AppJobs) -> JobResponse:
    """Return the current state of a job; the id `latest` means the newest one."""
    return JobResponse.of(jobs.get(id))


@router.delete("/jobs/{id}", responses=answers(JobNotFound, StoreReadOnly, DiskFull))
@requires(WRITE)
def cancel_job(id: str, jobs: AppJobs) -> JobResponse:
    """Cancel a job: at once if it is queued, at its next step if it runs. A job that has ended does not change."""
    return JobResponse.of(jobs.cancel(id))


@router.get(
    "/jobs/{id}/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Events `state` and `progress` with the job as data, until the job has ended.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "The job has ended, and the client has received that event."},
        **answers(JobNotFound),
    },
)
@requires(READ)
async def job_events(id: str, jobs: AppJobs, last_event_id: Annotated[str | None, Header()] = None) -> Response:
    """Stream the progress of a job as server-sent events."""
    job = await run_in_threadpool(jobs.get, id)
    if is_over(job, last_event_id):
        return Response(status_code=204)
    events = stream(jobs, job, last_event_id, lambda job: JobResponse.of(job).model_dump())
    return StreamingResponse(
        events, media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    )


@router.post(
    "/collections/{name}/duplicates",
    status_code=202,
    responses=answers_of_job(CollectionNotFound, InvalidFilter),
)
@requires(WRITE)
def find_duplicates(
    name: str,
    body: Annotated[DuplicatesRequest, json_of(DuplicatesRequest)],
    bench: AppWorkbench,
    submit: Submit,
) -> JobResponse:
    """Find duplicate items."""
    collection = bench.collection(name)
    if body.threshold is None and (body.where is not None or body.exact):
        raise InvalidRequest("where and exact need a threshold; set threshold, or remove them.")
    if isinstance(body.threshold, float):
        check_pair_score(collection, body.threshold)
    if body.where is not None:
        collection.count(body.where)  # an invalid filter is refused now, not by the job
    return submit("duplicates", {"collection": name, **body.model_dump()})


@router.post(
    "/collections/{name}/reembed",
    status_code=202,
    responses=answers_of_job(CollectionNotFound, UnknownModel, ModelError),
)
@requires(WRITE)
def start_reembed(
    name: str,
    body: Annotated[ReembedRequest, json_of(ReembedRequest)],
    bench: AppWorkbench,
    engines: AppEngines,
    settings: AppSettings,
    submit: Submit,
) -> JobResponse:
    """Build a copy of the collection with another model, then swap the two. Writes are accepted until then.

    The copy is called after the collection and the model's fingerprint, such as `photos.1a2b3c4d`. Cancelling the job
    deletes it. After a failure, it is kept and the next call continues it. At the end it takes the name of the
    collection, and the old one is kept as `photos.old`.
    """
    bench.collection(name)
    source = served_engine(engines, body.model).name
    if not settings.source_folders and not (bench.originals and bench.originals.used):
        raise InvalidRequest(
            "This server reads no files and keeps no originals, so it cannot embed the images again; set "
            'NNCLR_SOURCE_FOLDERS to the folders that were indexed, as JSON such as ["/photos"].'
        )
    return submit("reembed", {"collection": name, **body.model_dump()}, source=source)


@router.post(
    "/collections/{name}/index",
    status_code=202,
    responses=answers_of_job(CollectionNotFound, FingerprintMismatch, ModelError),
)
@requires(WRITE)
def index_folder(
    name: str,
    body: Annotated[IndexRequest, json_of(IndexRequest)],
    bench: AppWorkbench,
    settings: AppSettings,
    submit: Submit,
) -> JobResponse:
    """Index the images of a folder on the server; call it again to pick up changes.

    The label of an image is the name of its folder, unless that is the indexed folder itself. A folder and its
    subfolder are different sources, and their images become separate items. Links to files are followed. The folder
    must be in `NNCLR_SOURCE_FOLDERS`, and the server must listen on 127.0.0.1; otherwise, send the images.
    """
    if not settings.local:
        raise InvalidRequest("Folders can be indexed only if the server listens on 127.0.0.1; send the images instead.")
    bench.fillable(name)
    place = SourceFolders(settings.source_folders).find(body.source, body.folder)
    params = {"collection": name, "folder": place.relative, "prune": body.prune}
    return submit("index", params, root=str(place.root))


@router.delete(
    "/collections/{name}/reembed", status_code=204, responses=answers(CollectionNotFound, StoreReadOnly, DiskFull)
)
@requires(WRITE)
def abandon_reembed(name: str, bench: AppWorkbench) -> None:
    """Delete the copies that failed re-embeddings left behind, if there are any."""
    abandon(bench, name)
