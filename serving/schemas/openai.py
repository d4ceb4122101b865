"""The bodies of /v1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .words import FIRST_WRONG


class EmbeddingsRequest(BaseModel):
    """OpenAI's body, with the modality beside it; other fields are overlooked."""

    model_config = ConfigDict(strict=True)

    model: str = Field(description="an id of GET /v1/models, or default")
    input: str | Annotated[list[str], FIRST_WRONG] = Field(description="a data URI or base64 of a picture, or several")
    modality: Literal["image"] = "image"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="the model's own length; no other is possible")
    user: str | None = None


class EmbeddingEntry(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """There are no tokens: images are counted."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: Usage


class ModelCard(BaseModel):
    """A model as OpenAI lists it, and what is known about it; null: not before it is loaded."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "nnclr_hub"
    loaded: bool = False
    dim: int | None = None
    fingerprint: str | None = None
    license: str | None = None
    preprocessing: dict[str, Any] | None = None


class ModelsResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]
