"""The bodies of /api/v1/embed."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from .fields import FIRST_WRONG, ImageText, ItemError, Strict


class EmbedRequest(Strict):
    images: Annotated[list[ImageText], FIRST_WRONG] = Field(min_length=1)
    model: str | None = Field(None, description="an id from GET /v1/models; null: the default model")


class EmbedEntry(BaseModel):
    """An embedding or an error."""

    index: int
    name: str | None = None
    embedding: list[float] | str | None = None
    error: ItemError | None = None


class EmbedResponse(BaseModel):
    model: str
    dim: int
    data: list[EmbedEntry]
