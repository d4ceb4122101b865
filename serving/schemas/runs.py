"""The bodies of responses about pretraining runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .words import Strict


class RunResponse(Strict):
    """A run at one moment. Times are seconds since 1970."""

    name: str
    state: Literal["running", "stopped", "done"] = Field(description="stopped: its log has been silent for minutes")
    recipe: str
    step: int
    steps: int = Field(description="0 where it is not known")
    figures: dict[str, float] = Field(description="of its last log lines: loss, knn, ...")
    changed: float = Field(description="when it logged last")
    report: float | None = Field(description="when its report was written last; null: there is none yet")


class RunsResponse(Strict):
    """Runs, those that logged last first."""

    runs: list[RunResponse]
