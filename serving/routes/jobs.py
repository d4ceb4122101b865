"""/api/v1/jobs, and the routes that start a job: one for each task of `workbench.tasks`, made from the table.

A task needs a line in STARTS only where the server must add to its request, or refuse it before it is queued.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, fields, replace
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, Self

import orjson
from anyio.to_thread import run_sync
from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field, FiniteFloat, StrictInt, StrictStr, model_validator

from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.duplicates import check_pair_score
from nnclr_hub.workbench.inspection.comparison import MAX_COMPARED
from nnclr_hub.workbench.labels import require_field
from nnclr_hub.workbench.probes import refuse_taken_probe
from nnclr_hub.workbench.reembedding import abandon
from nnclr_hub.workbench.requests import field_types
from nnclr_hub.workbench.source_folders import SourceFolders
from nnclr_hub.workbench.tasks import Task, all_tasks

from ..access import READ, WRITE
from ..answers import PartsResponse, encoded
from ..jobs import JobStatus, own_tasks
from ..request_bodies import check_count
from .router import FAILED_WRITE, Here, Parts, Router, served_names, served_source
from .schemas import CollectionName, ImageText, Name, Strict, limited, one_of, optional, schema_of

MOST_PAGE = 4_000_000  # bytes of a list of jobs, whose parameters may be long
CHECK_S = 0.25  # between two looks at a job that is followed
HEARTBEAT_S = 15.0
JobKind = Literal[tuple(sorted(own_tasks()))]  # type: ignore[valid-type]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
Params = dict[str, Any]
router = Router(prefix="/api/v1", tags=["jobs"])
_ID = re.compile(r"[0-9a-f]{14}")
LOCATION = {"Location": {"description": "Path of the job.", "schema": {"type": "string"}}}


class JobError(Strict):
    """Why a job failed, as an error of a request reports it."""

    status: int
    code: str
    detail: str


class JobProgress(Strict):
    """What a job does now. The numbers are `done` and `total`."""

    phase: str | None = Field(description="such as `Arranging the map`; null if the kind has no phases, or not running")


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
    progress: JobProgress
    rate: float | None = Field(description="units per second")
    eta_s: float | None = Field(description="estimated seconds left")
    created: float
    started: float | None
    ended: float | None
    result: dict[str, Any] | None = Field(description="null until the job is done, and in lists")
    truncated: str = Field("", description="what is missing in a result that would be longer than an answer may be")
    error: JobError | None

    @classmethod
    def of(cls, job: JobStatus) -> JobResponse:
        """Make the response of a job."""
        own = {name: getattr(job, name) for name in cls.model_fields if name != "progress"}
        return cls.model_validate({**own, "progress": {"phase": job.phase or None}})

    @classmethod
    def encoded(cls, job: JobStatus) -> bytes:
        """Return the response of a job as JSON, with its result as it is stored."""
        body = cls.of(replace(job, data=None)).model_dump()
        return encoded(body if job.data is None else {**body, "result": orjson.Fragment(job.data)})


class JobsResponse(Strict):
    """A page of jobs, newest first."""

    jobs: list[JobResponse]
    cursor: str | None = Field(description="cursor of the next page; null on the last page")


@router.on("GET", "/jobs", READ, "answer_too_large", response_model=JobsResponse)
def list_jobs(
    here: Here,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[
        str | None,
        Query(description="cursor from the previous page", json_schema_extra={"pattern": f"^{_ID.pattern}$"}),
    ] = None,
    kind: JobKind | None = None,  # type: ignore[valid-type]
    state: JobState | None = None,
) -> Response:
    """List jobs, newest first, without their results.

    Get a single job for its result. Ended jobs are kept for a while. A page may have fewer jobs than `limit`.
    """
    if cursor is not None and not _ID.fullmatch(cursor):
        raise InvalidRequest(f"Invalid cursor {cursor!r:.60}; pass the one from the previous page, or omit it.")
    found, after = here.jobs.list(limit, cursor, kind=kind, state=state)
    size, bodies = 0, list[bytes]()
    for job in found:
        bodies.append(JobResponse.encoded(replace(job, data=None)))
        size += len(bodies[-1])
        if size > MOST_PAGE and job is not found[-1]:
            after = job.id
            break
    answer = here.answers.open(0)
    jobs = answer.list(map(orjson.Fragment, bodies))
    return PartsResponse([b'{"jobs":', *jobs, b',"cursor":', encoded(after), b"}"])


@router.on("GET", "/jobs/{id}", READ, "job_not_found answer_too_large", response_model=JobResponse)
def get_job(id: str, here: Here) -> Response:
    """Return the current state of a job; the id `latest` means the newest one."""
    return PartsResponse([here.answers.open(0).count(JobResponse.encoded(here.jobs.get(id)))])


@router.on("DELETE", "/jobs/{id}", WRITE, f"job_not_found {FAILED_WRITE}", response_model=JobResponse)
def cancel_job(id: str, here: Here) -> Response:
    """Cancel a job: at once if it is queued, at its next step if it runs. A job that has ended does not change."""
    return PartsResponse([JobResponse.encoded(here.jobs.cancel(id))])


_EVENTS = {
    200: {
        "description": "Events `state` and `progress` with the job as data, until the job has ended.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The job has ended, and the client has received that event."},
}


@router.on("GET", "/jobs/{id}/events", READ, "job_not_found", responses=_EVENTS, response_class=StreamingResponse)
async def job_events(id: str, here: Here, last_event_id: Annotated[str | None, Header()] = None) -> Response:
    """Stream the progress of a job as server-sent events.

    Each event contains the whole job at that time. Changes between two checks, or while the client is slow, are
    combined in one event. The stream ends with the job.
    """
    job = await run_sync(here.jobs.get, id)
    if job.has_ended and last_event_id == str(job.changes):
        return Response(status_code=204)

    async def events() -> AsyncIterator[bytes]:
        yield b"retry: 2000\n\n"
        state, silent_since = None, time.monotonic()
        async for now in here.jobs.follow(job, last_event_id, CHECK_S):
            if now is not None:
                name = "progress" if now.state == state else "state"
                state = now.state
                data = await run_sync(JobResponse.encoded, now)
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (now.changes, name.encode(), data)
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > HEARTBEAT_S:  # so that proxies keep the connection open
                yield b": heartbeat\n\n"
                silent_since = time.monotonic()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


@router.on(*("DELETE", "/collections/{name}/reembed", WRITE, f"collection_not_found {FAILED_WRITE}"), status_code=204)
def abandon_reembed(name: str, here: Here) -> None:
    """Delete the copies that failed re-embeddings left behind, if there are any."""
    abandon(here.workbench, name)


# ---- the routes that start a task


@dataclass(frozen=True)
class Start:
    """How a route starts a task; the default suits most.

    id: id of the operation, after which generated clients are named; None: made from the name of the task.
    errors: codes in addition to those of a collection, a filter and a write.
    about: description of the route; "": that of the task's function.
    body: schema of the body; None: of the task's request.
    prepare: refuses a request before it is queued, and returns the parameters that the job shows, and its hidden ones.
        Given the parts of the server and the parameters.
    """

    id: str | None = None
    tag: str = "jobs"
    errors: str = ""
    about: str = ""
    body: Any = None
    prepare: Callable[[Parts, Params], tuple[Params, Params]] = lambda here, params: (params, {})


def _duplicates(here: Parts, params: Params) -> tuple[Params, Params]:
    if isinstance(params["threshold"], float):
        check_pair_score(here.workbench.collection(params["collection"]), params["threshold"])
    return params, {}


def _backup(here: Parts, params: Params) -> tuple[Params, Params]:
    if not here.settings.backup_to:
        raise InvalidRequest("This server makes no backups; set NNCLR_BACKUP_TO to a folder or an address.")
    return params, {}


def _reembed(here: Parts, params: Params) -> tuple[Params, Params]:
    source = here.engines.get(served_source(here.engines, params["model"])).name
    originals = here.workbench.originals
    if not here.settings.source_folders and not (originals and originals.used):
        raise InvalidRequest(
            "This server reads no files and keeps no originals, so it cannot embed the images again; set "
            'NNCLR_SOURCE_FOLDERS to the folders that were indexed, as JSON such as ["/photos"].'
        )
    return params, {"source": source}


def _index(here: Parts, params: Params) -> tuple[Params, Params]:
    if not here.settings.local:
        raise InvalidRequest("Folders can be indexed only if the server listens on 127.0.0.1; send the images instead.")
    here.workbench.fillable(params["collection"])
    place = SourceFolders(here.settings.source_folders).find(params.pop("source"), params["folder"])
    return {**params, "folder": place.relative}, {"root": str(place.root)}


def _comparison(here: Parts, params: Params) -> tuple[Params, Params]:
    names = {source: public for public, source in served_names(here.engines).items()}
    compared: dict[str, str | None] = {}  # the source of each, by its public name; None: hand-crafted
    for one in params["models"] or [*list(names.values())[: MAX_COMPARED - 1], "pixels"]:
        source = None if one in FLOORS else served_source(here.engines, one)
        compared[one if source is None else names[source]] = source
    return {**params, "models": list(compared)}, {"source": list(compared.values())}


def _probe_fit(here: Parts, params: Params) -> tuple[Params, Params]:
    items, bench = params["items"], here.workbench
    images = sum(item["image"] is not None for item in items or ())
    check_count(images, here.settings.max_images)  # they count as those of any request
    if not params["replace"]:
        refuse_taken_probe(bench.store.records, params["name"])
    if params["collection"] is not None:
        require_field(bench.collection(params["collection"]), params["field"], params["where"])
    known = images or params["model"] is not None
    source = here.engines.get(served_source(here.engines, params["model"])).name if known else None
    if items is None:
        return params, {"source": source}
    return {**params, "items": len(items)}, {"source": source, "items": items}


Label = StrictInt | StrictStr


class ProbeItem(Strict):
    """A label with exactly one of vector and image."""

    model_config = ConfigDict(json_schema_extra=one_of("vector", "image"))

    label: Label | list[Label]
    vector: list[FiniteFloat] | str | None = Field(None, description="numbers, or base64 of little-endian float32")
    image: ImageText | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.vector is None) == (self.image is None):
            raise ValueError("an item takes exactly one of vector and image")
        return self


TASKS = all_tasks()
_PROBE_FIELDS = schema_of(
    TASKS["probe_fit"].request,
    name=Name,
    collection=(optional(CollectionName), None),
    items=(optional(list[ProbeItem]), None),
)


class ProbeRequest(_PROBE_FIELDS):
    """A probe to fit on a metadata field of a collection, or on labeled items."""

    model_config = ConfigDict(json_schema_extra=one_of("collection field", "items"))


STARTS = {
    "duplicates": Start("jobs-find-duplicates", prepare=_duplicates),
    "backup": Start(
        "jobs-start-backup",
        about="Back up all collections, aliases, jobs and probes to the destination that the server is configured "
        "with.\n\nOnly what is new is copied. The job's result has the backup's id and its size.",
        prepare=_backup,
    ),
    "reembed": Start(
        "jobs-start-reembed",
        errors="unknown_model model_error",
        about="Build a copy of the collection with another model, then swap the two. Writes are accepted until then."
        "\n\nThe copy is called after the collection and the model's fingerprint, such as `photos.1a2b3c4d`. "
        "Cancelling the job deletes it. After a failure, it is kept and the next call continues it. At the end "
        "it takes the name of the collection, and the old one is kept as `photos.old`.",
        prepare=_reembed,
    ),
    "index": Start(
        "jobs-index-folder",
        errors="fingerprint_mismatch model_error",
        about="Index the images of a folder on the server; call it again to pick up changes.\n\nThe label of an image "
        "is the name of its folder, unless that is the indexed folder itself. A folder and its subfolder are different "
        "sources, and their images become separate items. Links to files are followed. The folder must be in "
        "`NNCLR_SOURCE_FOLDERS`, and the server must listen on 127.0.0.1; otherwise, send the images.",
        prepare=_index,
    ),
    "inspection": Start(
        "inspections-start-inspection",
        tag="inspections",
        about="Inspect the collection: a map, clusters, duplicates, outliers, leaks, suspect labels, what to label "
        "next.",
    ),
    "comparison": Start(
        "inspections-compare-encoders",
        tag="inspections",
        errors="unknown_model",
        about="Compare encoders on the thumbnails of a collection: cross-validated accuracy, and scores without labels."
        "\n\nAt most 1000 items are compared, if possible with labels. The job's result has the scores with 95% "
        "intervals, and a conclusion.",
        prepare=_comparison,
    ),
    "probe_fit": Start(
        "probes-fit",
        tag="probes",
        errors="collection_not_found probe_exists unknown_model model_error",
        about="Fit a probe in the background; the result of the job has its scores on held-out rows.",
        body=ProbeRequest,
        prepare=_probe_fit,
    ),
}


def start(here: Parts, kind: str, params: dict[str, Any], response: Response) -> JobResponse:
    """Check a request, and submit its job. A request for what a job waits to do, or does, gets that job."""
    TASKS[kind].request.from_json(params)
    if params.get("collection") is not None:
        collection = here.workbench.collection(params["collection"])
        if params.get("where") is not None:
            collection.count(params["where"])  # an invalid filter is refused now, not by the job
    params, hidden = STARTS.get(kind, Start()).prepare(here, params)
    mark = hashlib.sha256(json.dumps([kind, params, hidden]).encode()).hexdigest()
    return started(response, here.jobs.submit(kind, params, hidden, mark=mark))


def started(response: Response, job: JobStatus) -> JobResponse:
    """Return the response for a job, whose path is in its Location."""
    response.headers["Location"] = f"/api/v1/jobs/{job.id}"
    return JobResponse.of(job)


def declare(task: Task, router: Router) -> None:
    """Declare the route that starts a task."""
    how = STARTS.get(task.name, Start())
    path = task.path.replace("{collection}", "{name}")
    in_path = path != task.path
    options = {one.name: one for one in fields(task.request) if not one.metadata["hidden"]}
    if in_path:
        del options["collection"]
    errors = f"{FAILED_WRITE} {how.errors}" + " collection_not_found" * in_path
    errors += " invalid_filter" * ("where" in options)

    def submit(here: Parts, response: Response, body: Strict | None = None, **given: Any) -> JobResponse:
        params = {} if body is None else body.model_dump()
        if in_path:
            params["collection"] = given.pop("name")
        return start(here, task.name, {**params, **given}, response)

    parameters: dict[str, Any] = {"here": Here, "response": Response} | ({"name": str} if in_path else {})
    if task.query:
        hints = field_types(task.request)
        for name, one in options.items():
            kind = limited(hints[name], one.metadata["limits"])
            parameters[name] = (Annotated[kind, Query(description=one.metadata["doc"])], one.default)
    elif options:
        parameters["body"] = how.body or schema_of(task.request, **({"collection": None} if in_path else {}))
    made = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind[0], default=kind[1])
        if isinstance(kind, tuple)
        else Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind)
        for name, kind in parameters.items()
    ]
    submit.__signature__ = Signature(made, return_annotation=JobResponse)  # type: ignore[attr-defined]
    about = how.about or (task.run.__doc__ or "").split("\n\n")[0]
    named: dict[str, Any] = {"operation_id": how.id or f"jobs-{task.name}", "description": about, "name": task.name}
    accepted = {202: {"description": "The job was accepted; Location is its path.", "headers": LOCATION}}
    router.on("POST", path, WRITE, errors, responses=accepted, status_code=202, **named)(submit)


starting = {tag: Router(prefix="/api/v1", tags=[tag]) for tag in ("jobs", "inspections", "probes")}
for name in sorted(set(TASKS) - {"import"}):  # `imports` has the route for files
    declare(TASKS[name], starting[STARTS.get(name, Start()).tag])
