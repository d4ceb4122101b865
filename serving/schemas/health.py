"""How a server says how it is."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Readiness(BaseModel):
    """How far the server is."""

    status: Literal["ready", "loading", "ill", "failed"]
    detail: str | None = None
    read_only: bool = Field(description="whether every write is answered with 403")
    model_warm: bool
    threads_alive: bool = Field(description="of every model; the server is ill only with its default one")
    collections_loaded: int
    collections_total: int
    collection_states: dict[str, int] = Field(description="how many collections are ready, degraded, read-only, ...")
