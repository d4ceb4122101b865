"""The bodies of responses about pretraining runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .fields import Strict


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
