"""/api/v1/runs: pretraining runs in the folder that the operator configured, and their reports."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import Field

from nnclr_hub.errors import RunNotFound
from nnclr_hub.workbench.runs import list_runs, read_report

from ..keys import READ
from ..problems import answers
from ..security.access import requires
from .bodies import Strict
from .dependencies import AppSettings


class RunResponse(Strict):
    """The current state of a run. Times are seconds since 1970."""

    name: str
    state: Literal["running", "stopped", "done"] = Field(description="stopped: nothing was logged for minutes")
    recipe: str
    step: int
    steps: int = Field(description="0 if unknown")
    figures: dict[str, float] = Field(description="metrics in the last log lines: loss, knn, ...")
    changed: float = Field(description="time of the last log line")
    report: float | None = Field(description="time of the last report; null: no report yet")


class RunsResponse(Strict):
    """Runs, most recently logged first."""

    runs: list[RunResponse]


router = APIRouter(prefix="/api/v1/runs", tags=["runs"])
# a report is an untrusted file: it runs no script, loads nothing, and only this server may frame it
REPORT_POLICY = (
    "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)


@router.get("", responses=answers())
@requires(READ)
def list_all(settings: AppSettings) -> RunsResponse:
    """List pretraining runs, most recently logged first. The list is empty if the server has no folder of runs."""
    found = list_runs(settings.runs) if settings.runs else []
    return RunsResponse(runs=[RunResponse(**vars(run)) for run in found])


@router.get(
    "/{name:path}/report",
    response_class=Response,
    responses={
        **answers(RunNotFound),
        200: {"content": {"text/html": {"schema": {"type": "string"}}}, "description": "HTML report without scripts"},
    },
)
@requires(READ)
def report(name: str, settings: AppSettings) -> Response:
    """Return the latest report of a run."""
    if settings.runs is None:
        raise RunNotFound("This server has no folder of runs; start it with --runs DIR.")
    headers = {"Content-Security-Policy": REPORT_POLICY, "X-Frame-Options": "SAMEORIGIN", "Cache-Control": "no-cache"}
    return Response(read_report(settings.runs, name), media_type="text/html; charset=utf-8", headers=headers)
