"""The bodies of /api/v1/embed."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from .words import FIRST_WRONG, ItemError, Picture, Strict


class EmbedRequest(Strict):
    images: Annotated[list[Picture], FIRST_WRONG] = Field(min_length=1)
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
