"""The bodies of /api/v1/embed."""

from __future__ import annotations

from pydantic import BaseModel, Field

from .words import ItemError, Picture, Strict


class EmbedRequest(Strict):
    images: list[Picture] = Field(min_length=1)
    model: str | None = Field(None, description="an id of GET /v1/models; null: the default")


class EmbedEntry(BaseModel):
    """Either an embedding or an error."""

    index: int
    name: str | None = None
    embedding: list[float] | str | None = None
    error: ItemError | None = None


class EmbedResponse(BaseModel):
    model: str
    dim: int
    data: list[EmbedEntry]
