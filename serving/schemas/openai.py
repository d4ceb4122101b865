"""The bodies of /v1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .fields import FIRST_WRONG


class EmbeddingsRequest(BaseModel):
    """The body of the OpenAI API plus `modality`; other fields are ignored."""

    model_config = ConfigDict(strict=True)

    model: str = Field(description="an id from GET /v1/models, or default")
    input: str | Annotated[list[str], FIRST_WRONG] = Field(
        description="data URI or base64 of an image, or a list of them"
    )
    modality: Literal["image"] = "image"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="must be the length of the model's vectors")
    user: str | None = None


class EmbeddingEntry(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Numbers of images, as there are no tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: Usage


class ModelCard(BaseModel):
    """A model as OpenAI lists it, with more details. Details are null until the model is loaded."""

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
