"""/api/v1/jobs, and the jobs that collections start: index, reembed, duplicates."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

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
from nnclr_hub.store.duplicates import check_pair_score
from nnclr_hub.store.succession import successor_of
from nnclr_hub.workbench.reembedding import abandon
from nnclr_hub.workbench.source_folders import SourceFolders

from ..idempotency import MARK
from ..jobs import Job, Jobs
from ..jobs.context import ROOT
from ..jobs.events import is_over, stream
from ..keys import READ, WRITE
from ..problems import answers
from ..schemas.jobs import (
    SOURCE,
    DuplicatesRequest,
    IndexRequest,
    JobKind,
    JobRequest,
    JobResponse,
    JobsResponse,
    JobState,
    ReembedRequest,
)
from ..security.access import requires
from ..uploads import json_of
from .described import json_body
from .state import AppEngines, AppSettings, AppWorkbench, served_engine

router = APIRouter(prefix="/api/v1", tags=["jobs"])
_ID = re.compile(r"[0-9a-f]{14}")


def _jobs(request: Request) -> Jobs:
    return request.app.state.jobs


def _mark(request: Request) -> str:
    return getattr(request.state, MARK, "")


AppJobs = Annotated[Jobs, Depends(_jobs)]
Mark = Annotated[str, Depends(_mark)]
LOCATION = {"Location": {"description": "path of the job", "schema": {"type": "string"}}}


def accepted(job: Job, response: Response) -> JobResponse:
    """The answer for a job that was made just now."""
    response.headers["Location"] = f"/api/v1/jobs/{job.id}"
    return JobResponse.of(job)


def answers_of_job(*kinds: Any) -> dict[int | str, dict[str, Any]]:
    """What a route that makes a job answers."""
    made = {"description": "The job was accepted; Location says where to look.", "headers": LOCATION}
    return {202: made, **answers(StoreReadOnly, DiskFull, "unsupported_media_type", *kinds)}


@router.get("/jobs", responses=answers())
@requires(READ)
def list_jobs(
    jobs: AppJobs,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="of the page before")] = None,
    kind: JobKind | None = None,
    state: JobState | None = None,
) -> JobsResponse:
    """Jobs, the newest first, without their results, which the job itself gives. Ended ones are kept for a while."""
    if cursor is not None and not _ID.fullmatch(cursor):
        raise InvalidRequest(f"The cursor {cursor!r:.60} is none: give the one that the page before came with.")
    found, after = jobs.list(limit, cursor, kind=kind, state=state)
    return JobsResponse(jobs=[JobResponse.of(job) for job in found], cursor=after)


@router.post(
    "/jobs", status_code=202, responses=answers_of_job(CollectionNotFound), openapi_extra=json_body(JobRequest)
)
@requires(WRITE)
def look_after(
    body: Annotated[JobRequest, json_of(JobRequest)], response: Response, jobs: AppJobs, bench: AppWorkbench, mark: Mark
) -> JobResponse:
    """Verifies or compacts a collection in the background."""
    bench.collection(body.collection)
    return accepted(jobs.submit(body.kind, {"collection": body.collection}, mark=mark), response)


@router.get("/jobs/{id}", responses=answers(JobNotFound))
@requires(READ)
def get_job(id: str, jobs: AppJobs) -> JobResponse:
    """One job as it is now; `latest` is the one that was made last."""
    return JobResponse.of(jobs.get(id))


@router.delete("/jobs/{id}", responses=answers(JobNotFound, StoreReadOnly, DiskFull))
@requires(WRITE)
def cancel_job(id: str, jobs: AppJobs) -> JobResponse:
    """Cancels a job: one that waits at once, one that runs at its next step. One that has ended stays as it is."""
    return JobResponse.of(jobs.cancel(id))


@router.get(
    "/jobs/{id}/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Events `state` and `progress` whose data is the job, until it has ended.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "The job has ended, and the client has seen that."},
        **answers(JobNotFound),
    },
)
@requires(READ)
async def job_events(id: str, jobs: AppJobs, last_event_id: Annotated[str | None, Header()] = None) -> Response:
    """Server-sent events of a job."""
    job = await run_in_threadpool(jobs.get, id)
    if is_over(job, last_event_id):
        return Response(status_code=204)
    told = stream(jobs, job, last_event_id, lambda job: JobResponse.of(job).model_dump())
    return StreamingResponse(
        told, media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    )


@router.post(
    "/collections/{name}/duplicates",
    status_code=202,
    responses=answers_of_job(CollectionNotFound, InvalidFilter),
    openapi_extra=json_body(DuplicatesRequest),
)
@requires(WRITE)
def find_duplicates(
    name: str,
    body: Annotated[DuplicatesRequest, json_of(DuplicatesRequest)],
    response: Response,
    jobs: AppJobs,
    bench: AppWorkbench,
    mark: Mark,
) -> JobResponse:
    """Looks for items that are there twice."""
    collection = bench.collection(name)
    if body.threshold is None and (body.where is not None or body.exact):
        raise InvalidRequest("where and exact go with a threshold: give one, or leave them out.")
    if body.threshold is not None:
        check_pair_score(collection, body.threshold)
    if body.where is not None:
        collection.count(body.where)  # a filter that cannot be read is refused now
    return accepted(jobs.submit("duplicates", {"collection": name, **body.model_dump()}, mark=mark), response)


@router.post(
    "/collections/{name}/reembed",
    status_code=202,
    responses=answers_of_job(CollectionNotFound, UnknownModel, ModelError),
    openapi_extra=json_body(ReembedRequest),
)
@requires(WRITE)
def start_reembed(
    name: str,
    body: Annotated[ReembedRequest, json_of(ReembedRequest)],
    response: Response,
    jobs: AppJobs,
    bench: AppWorkbench,
    engines: AppEngines,
    settings: AppSettings,
    mark: Mark,
) -> JobResponse:
    """Builds the collection anew with another model beside the old one, then swaps them.

    Cancelling the job takes away what was built. After a failure it is kept for the next call.
    """
    bench.collection(name)
    source = served_engine(engines, body.model).name
    if not settings.source_folders:
        raise InvalidRequest(
            "This server reads no files, so it cannot embed a collection's images anew: have NNCLR_SOURCE_FOLDERS "
            'name the folders that were indexed, as JSON like ["/photos"].'
        )
    return accepted(
        jobs.submit("reembed", {"collection": name, **body.model_dump(), SOURCE: source}, mark=mark), response
    )


@router.post(
    "/collections/{name}/index",
    status_code=202,
    responses=answers_of_job(CollectionNotFound, FingerprintMismatch, ModelError),
    openapi_extra=json_body(IndexRequest),
)
@requires(WRITE)
def index_folder(
    name: str,
    body: Annotated[IndexRequest, json_of(IndexRequest)],
    response: Response,
    jobs: AppJobs,
    bench: AppWorkbench,
    settings: AppSettings,
    mark: Mark,
) -> JobResponse:
    """Makes the collection hold the images of a folder on the server's machine; call it again to take up changes.

    An image's label is the folder that it lies in, unless that is the one which is named; a folder and one below it
    are different sources, whose images are items of their own. Links to files are followed. Only below
    `NNCLR_SOURCE_FOLDERS`, and only where the server listens on its own machine alone: from elsewhere, send images.
    """
    if not settings.local:
        raise InvalidRequest("Folders are indexed only where the server listens on 127.0.0.1: send the images.")
    bench.fillable(name)
    place = SourceFolders(settings.source_folders).find(body.source, body.folder)
    params = {"collection": name, ROOT: str(place.root), "folder": place.relative, "prune": body.prune}
    return accepted(jobs.submit("index", params, mark=mark), response)


@router.delete(
    "/collections/{name}/reembed", status_code=204, responses=answers(CollectionNotFound, StoreReadOnly, DiskFull)
)
@requires(WRITE)
def abandon_reembed(name: str, bench: AppWorkbench) -> None:
    """Takes away what a re-embedding that failed had built; nothing happens where there is nothing."""
    if bench.reembedding.locked():
        raise InvalidRequest("A collection is being re-embedded just now: cancel its job.")
    if successor_of(bench.store, name) is not None:
        abandon(bench, name)
