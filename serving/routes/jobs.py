"""/api/v1/jobs, and the routes that start a job: one for each task of `workbench.tasks`.

The schemas are made from the requests of the tasks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_type_hints

import orjson
from fastapi import Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import Field, create_model

from nnclr_hub.encoder.hand_crafted import FLOORS
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
from nnclr_hub.store.where import check_key
from nnclr_hub.workbench.duplicates import DuplicatesRequest, check_pair_score
from nnclr_hub.workbench.folder_index import IndexRequest
from nnclr_hub.workbench.inspection.findings import InspectionRequest
from nnclr_hub.workbench.reembedding import ReembedRequest, abandon
from nnclr_hub.workbench.source_folders import SourceFolders
from nnclr_hub.workbench.tasks import JOBS, all_tasks
from nnclr_hub.workbench.tasks import Request as TaskRequest

from ..jobs import Jobs, JobStatus
from ..jobs.events import is_over, stream
from ..jobs.jobs import own_tasks
from ..keys import READ, WRITE
from ..request_bodies import json_of
from .bodies import FIRST_WRONG, CollectionName, Integer, MetadataKey, Strict, Where
from .dependencies import Here, Router, served_engine, served_names, served_source

MAX_COMPARED = 8  # encoders
# stricter types of fields, by name
TYPES: dict[str, Any] = {"where": Where | None, "field": MetadataKey}  # type: ignore[operator]
JobKind = Literal[tuple(sorted(own_tasks()))]  # type: ignore[valid-type]
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

    kind: Literal[tuple(sorted(name for name, task in all_tasks().items() if task.path == JOBS))]  # type: ignore[valid-type]
    collection: CollectionName


class ComparisonRequest(Strict):
    """The encoders to compare, and the labels to compare them by."""

    models: Annotated[list[str], FIRST_WRONG] | None = Field(
        None,
        max_length=MAX_COMPARED,
        description=f"models that the server serves, or the hand-crafted features {', '.join(FLOORS)}; null: all "
        "models of the server, and pixels. The others are compared with the first one",
    )
    field: MetadataKey = Field("label", description="metadata key of the label of an item")


def schema_of(request: type[TaskRequest]) -> Any:
    """Return the body of a route: the fields of a task's request that clients set, without the collection."""
    hints = get_type_hints(request)
    made: dict[str, Any] = {}
    for one in fields(request):
        if one.metadata["hidden"] or one.name == "collection":
            continue
        kind = TYPES.get(one.name, Integer if hints[one.name] is int else hints[one.name])
        default = ... if one.default is MISSING else one.default
        made[one.name] = (kind, Field(default, description=one.metadata["doc"], **one.metadata["limits"]))
    return create_model(request.__name__, __base__=Strict, __doc__=request.__doc__, **made)


DuplicatesBody, IndexBody = schema_of(DuplicatesRequest), schema_of(IndexRequest)
ReembedBody, InspectionBody = schema_of(ReembedRequest), schema_of(InspectionRequest)
router = Router(prefix="/api/v1", tags=["jobs"])
comparisons = Router(prefix="/api/v1", tags=["inspections"])
_ID = re.compile(r"[0-9a-f]{14}")
LOCATION = {"Location": {"description": "Path of the job.", "schema": {"type": "string"}}}
_ACCEPTED = {"description": "The job was accepted; Location is its path.", "headers": LOCATION}


def _jobs(request: Request) -> Jobs:
    return request.app.state.jobs


AppJobs = Annotated[Jobs, Depends(_jobs)]


class Submission:
    """A dependency of routes that start a job. A request for what a job waits to do, or does, gets that job."""

    def __init__(self, request: Request, response: Response) -> None:
        self._jobs, self._response = _jobs(request), response

    def __call__(self, kind: str, params: Mapping[str, Any], **hidden: Any) -> JobResponse:
        """Submit a job, and return the response of the route; see `Jobs.submit`. An invalid request is refused."""
        self._jobs.tasks[kind].request.from_json({**params, **hidden})
        mark = hashlib.sha256(orjson.dumps([kind, params, hidden])).hexdigest()
        job = self._jobs.submit(kind, params, hidden, mark=mark)
        self._response.headers["Location"] = f"/api/v1/jobs/{job.id}"
        return JobResponse.of(job)


Submit = Annotated[Submission, Depends(Submission)]


def starts_job(path: str, *errors: Any, router: Router = router, **options: Any) -> Any:
    """Declare a route that starts a job."""
    errors = (StoreReadOnly, DiskFull, "unsupported_media_type", *errors)
    return router.on("POST", path, WRITE, *errors, responses={202: _ACCEPTED}, status_code=202, **options)


@router.on("GET", "/jobs", READ)
def list_jobs(
    jobs: AppJobs,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[
        str | None,
        Query(description="cursor from the previous page", json_schema_extra={"pattern": f"^{_ID.pattern}$"}),
    ] = None,
    kind: JobKind | None = None,  # type: ignore[valid-type]
    state: JobState | None = None,
) -> JobsResponse:
    """List jobs, newest first, without their results.

    Get a single job for its result. Ended jobs are kept for a while.
    """
    if cursor is not None and not _ID.fullmatch(cursor):
        raise InvalidRequest(f"Invalid cursor {cursor!r:.60}; pass the one from the previous page, or omit it.")
    found, after = jobs.list(limit, cursor, kind=kind, state=state)
    return JobsResponse(jobs=[JobResponse.of(job) for job in found], cursor=after)


# the published id; generated clients are named after it
@starts_job(JOBS, CollectionNotFound, operation_id="jobs-look-after")
def start_maintenance(body: Annotated[JobRequest, json_of(JobRequest)], here: Here, submit: Submit) -> JobResponse:
    """Verify or compact a collection in the background."""
    here.workbench.collection(body.collection)
    return submit(body.kind, {"collection": body.collection})


@starts_job("/store/backups")
def start_backup(
    here: Here,
    submit: Submit,
    keep: Annotated[
        int | None, Query(ge=1, le=1_000_000, description="number of backups to keep; older ones are removed")
    ] = None,
) -> JobResponse:
    """Back up all collections, aliases, jobs and probes to the destination that the server is configured with.

    Only what is new is copied. The job's result has the backup's id and its size.
    """
    if not here.settings.backup_to:
        raise InvalidRequest("This server makes no backups; set NNCLR_BACKUP_TO to a folder or an address.")
    return submit("backup", {"keep": keep})


@router.on("GET", "/jobs/{id}", READ, JobNotFound)
def get_job(id: str, jobs: AppJobs) -> JobResponse:
    """Return the current state of a job; the id `latest` means the newest one."""
    return JobResponse.of(jobs.get(id))


@router.on("DELETE", "/jobs/{id}", WRITE, JobNotFound, StoreReadOnly, DiskFull)
def cancel_job(id: str, jobs: AppJobs) -> JobResponse:
    """Cancel a job: at once if it is queued, at its next step if it runs. A job that has ended does not change."""
    return JobResponse.of(jobs.cancel(id))


_EVENTS = {
    200: {
        "description": "Events `state` and `progress` with the job as data, until the job has ended.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The job has ended, and the client has received that event."},
}


@router.on("GET", "/jobs/{id}/events", READ, JobNotFound, responses=_EVENTS, response_class=StreamingResponse)
async def job_events(id: str, jobs: AppJobs, last_event_id: Annotated[str | None, Header()] = None) -> Response:
    """Stream the progress of a job as server-sent events."""
    job = await run_in_threadpool(jobs.get, id)
    if is_over(job, last_event_id):
        return Response(status_code=204)
    events = stream(jobs, job, last_event_id, lambda job: JobResponse.of(job).model_dump())
    return StreamingResponse(
        events, media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    )


@starts_job("/collections/{name}/duplicates", CollectionNotFound, InvalidFilter)
def find_duplicates(
    name: str, body: Annotated[Any, json_of(DuplicatesBody)], here: Here, submit: Submit
) -> JobResponse:
    """Find duplicate items."""
    collection = here.workbench.collection(name)
    if isinstance(body.threshold, float):
        check_pair_score(collection, body.threshold)
    if body.where is not None:
        collection.count(body.where)  # an invalid filter is refused now, not by the job
    return submit("duplicates", {"collection": name, **body.model_dump()})


@starts_job("/collections/{name}/reembed", CollectionNotFound, UnknownModel, ModelError)
def start_reembed(name: str, body: Annotated[Any, json_of(ReembedBody)], here: Here, submit: Submit) -> JobResponse:
    """Build a copy of the collection with another model, then swap the two. Writes are accepted until then.

    The copy is called after the collection and the model's fingerprint, such as `photos.1a2b3c4d`. Cancelling the job
    deletes it. After a failure, it is kept and the next call continues it. At the end it takes the name of the
    collection, and the old one is kept as `photos.old`.
    """
    bench = here.workbench
    bench.collection(name)
    source = served_engine(here.engines, body.model).name
    if not here.settings.source_folders and not (bench.originals and bench.originals.used):
        raise InvalidRequest(
            "This server reads no files and keeps no originals, so it cannot embed the images again; set "
            'NNCLR_SOURCE_FOLDERS to the folders that were indexed, as JSON such as ["/photos"].'
        )
    return submit("reembed", {"collection": name, **body.model_dump()}, source=source)


@starts_job("/collections/{name}/index", CollectionNotFound, FingerprintMismatch, ModelError)
def index_folder(name: str, body: Annotated[Any, json_of(IndexBody)], here: Here, submit: Submit) -> JobResponse:
    """Index the images of a folder on the server; call it again to pick up changes.

    The label of an image is the name of its folder, unless that is the indexed folder itself. A folder and its
    subfolder are different sources, and their images become separate items. Links to files are followed. The folder
    must be in `NNCLR_SOURCE_FOLDERS`, and the server must listen on 127.0.0.1; otherwise, send the images.
    """
    if not here.settings.local:
        raise InvalidRequest("Folders can be indexed only if the server listens on 127.0.0.1; send the images instead.")
    here.workbench.fillable(name)
    place = SourceFolders(here.settings.source_folders).find(body.source, body.folder)
    params = {"collection": name, "folder": place.relative, "prune": body.prune}
    return submit("index", params, root=str(place.root))


@router.on("DELETE", "/collections/{name}/reembed", WRITE, CollectionNotFound, StoreReadOnly, DiskFull, status_code=204)
def abandon_reembed(name: str, here: Here) -> None:
    """Delete the copies that failed re-embeddings left behind, if there are any."""
    abandon(here.workbench, name)


@starts_job("/collections/{name}/comparisons", CollectionNotFound, UnknownModel, InvalidFilter, router=comparisons)
def compare_encoders(
    name: str, body: Annotated[ComparisonRequest, json_of(ComparisonRequest)], here: Here, submit: Submit
) -> JobResponse:
    """Compare encoders on the thumbnails of a collection: cross-validated accuracy, and scores without labels.

    At most 1000 items are compared, if possible with labels. The job's result has the scores with 95% intervals, and a
    conclusion.
    """
    here.workbench.collection(name)
    check_key(body.field)
    names = {source: public for public, source in served_names(here.engines).items()}
    compared: dict[str, str | None] = {}  # the source of each, by its public name; None: hand-crafted
    for one in body.models or [*list(names.values())[: MAX_COMPARED - 1], "pixels"]:
        source = None if one in FLOORS else served_source(here.engines, one)
        compared[one if source is None else names[source]] = source
    params = {"collection": name, "models": list(compared), "field": body.field}
    return submit("comparison", params, source=list(compared.values()))
