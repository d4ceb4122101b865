"""The bodies of requests and responses about jobs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from nnclr_hub.store.checks import MAX_LIMIT

from ..jobs import Job
from ..jobs.context import ROOT, UPLOAD
from .fields import Name, Strict, Where

# job parameters that are not shown: paths of this machine (a model's source may be one), and secrets
SOURCE, GIVEN_BY = "source", "given_by"
HIDDEN = (SOURCE, GIVEN_BY, ROOT, UPLOAD)
JobKind = Literal["probe_fit", "reembed", "duplicates", "verify", "compact", "add", "index"]
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
    def of(cls, job: Job) -> JobResponse:
        """Make the response of a job, without hidden parameters."""
        fields = {name: getattr(job, name) for name in cls.model_fields}
        params = {name: value for name, value in job.params.items() if name not in HIDDEN}
        return cls.model_validate({**fields, "params": params})


class JobsResponse(Strict):
    """A page of jobs, newest first."""

    jobs: list[JobResponse]
    cursor: str | None = Field(description="cursor of the next page; null on the last page")


class JobRequest(Strict):
    """Maintenance of a collection in the background."""

    kind: Literal["verify", "compact"]
    collection: Name


class ReembedRequest(Strict):
    """A new encoder for a collection."""

    model: str = Field(description="a model that the server serves")
    skip_missing: bool = Field(False, description="skip items whose file is missing or changed")


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

    threshold: float | None = Field(
        None, description="lowest score of a pair, as in a search; null: only images with identical pixels"
    )
    where: Where | None = Field(None, description="only items that match the filter; needs a threshold")
    exact: bool = Field(False, description="compare every pair; takes quadratic time")
    limit: int = Field(1000, ge=1, le=MAX_LIMIT, description="maximum number of groups, largest first")
