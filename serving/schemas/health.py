"""The body of /readyz."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Readiness(BaseModel):
    """Whether the server is ready, and its progress until then."""

    status: Literal["ready", "loading", "ill", "failed"]
    detail: str | None = None
    read_only: bool = Field(description="every write is answered with 403")
    model_warm: bool
    threads_alive: bool = Field(
        description="threads of every model run; the status is ill only if those of the default one do not"
    )
    collections_loaded: int
    collections_total: int
    collection_states: dict[str, int] = Field(
        description="number of collections by state: ready, degraded, read-only, ..."
    )
