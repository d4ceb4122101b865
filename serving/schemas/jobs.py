"""The bodies of requests and responses about jobs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from nnclr_hub.store.checks import MAX_LIMIT

from ..jobs import Job
from ..jobs.context import ROOT, UPLOAD
from .words import Name, Strict, Where

# parameters of jobs that are nobody's affair: paths of this machine (a model's source may be one), and secrets
SOURCE, GIVEN_BY = "source", "given_by"
HIDDEN = (SOURCE, GIVEN_BY, ROOT, UPLOAD)
JobKind = Literal["probe_fit", "reembed", "duplicates", "verify", "compact", "add", "index"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]


class JobError(Strict):
    """Why a job failed, as it would be told of a request."""

    status: int
    code: str
    detail: str


class JobResponse(Strict):
    """A job at one moment. Times are seconds since 1970."""

    id: str
    kind: str
    params: dict[str, Any] = Field(description="what it was asked for")
    state: JobState
    cancelling: bool = Field(description="somebody has cancelled it, and it ends at its next step; false once it has")
    done: int
    total: int = Field(description="0 until it is known")
    rate: float | None = Field(description="units a second")
    eta_s: float | None = Field(description="seconds that are left at that rate")
    created: float
    started: float | None
    ended: float | None
    result: dict[str, Any] | None = Field(description="null until it is done, and in lists")
    error: JobError | None

    @classmethod
    def of(cls, job: Job) -> JobResponse:
        """What is told of a job."""
        told = {name: getattr(job, name) for name in cls.model_fields}
        params = {name: value for name, value in job.params.items() if name not in HIDDEN}
        return cls.model_validate({**told, "params": params})


class JobsResponse(Strict):
    """Jobs, the newest first."""

    jobs: list[JobResponse]
    cursor: str | None = Field(description="of the next page; null at the end")


class JobRequest(Strict):
    """Looking after a collection in the background."""

    kind: Literal["verify", "compact"]
    collection: Name


class ReembedRequest(Strict):
    """Another encoder for a collection."""

    model: str = Field(description="one that the server serves")
    skip_missing: bool = Field(False, description="leave out items whose file is missing or changed")


class IndexRequest(Strict):
    """A folder of the server's own machine."""

    source: str | None = Field(None, description="name of one of the server's folders; null where it has one")
    folder: str = Field("", max_length=4096, description="folder below that, searched with its subfolders; empty: all")
    prune: bool = Field(
        False,
        description="delete items of this folder whose file is gone; refused where it has nothing at all in it, since "
        "its disk may not be mounted. Those of a subfolder that is empty, a link, or cannot be listed are kept; the "
        "result counts them as `kept`",
    )


class DuplicatesRequest(Strict):
    """What counts as twice the same."""

    threshold: float | None = Field(
        None, description="the least score of a pair, as in a search; null: images with the same pixels"
    )
    where: Where | None = Field(None, description="only items that pass; goes with a threshold")
    exact: bool = Field(False, description="compare all with all, which takes the square of the time")
    limit: int = Field(1000, ge=1, le=MAX_LIMIT, description="groups to give, the largest first")
