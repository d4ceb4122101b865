"""The bodies of requests and responses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Refuses fields that it does not know, so that a misspelt one is not silently ignored."""

    model_config = ConfigDict(extra="forbid")


# ---- /v1


class EmbeddingsRequest(BaseModel):
    """OpenAI's body, with the modality beside it."""

    model: str
    input: str | list[str] = Field(description="a data URI or base64 of a picture, or several")
    modality: Literal["image"] = "image"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "nnclr_hub"


# ---- /api/v1


class CollectionRequest(Strict):
    """A new collection; without dim, one for the vectors of `model`."""

    model: str | None = None
    dim: int | None = None
    metric: Literal["cosine", "dot", "l2"] = "cosine"
    indexed: list[str] = ["label"]
    index: Literal["auto", "flat", "hnsw", "ivf", "ivf_pq"] = "auto"
    precision: Literal["f32", "f16"] = "f32"


class CollectionResponse(BaseModel):
    name: str
    dim: int
    metric: str
    model: str
    fingerprint: str
    indexed: list[str]
    index: str
    precision: str
    count: int
    durable_seq: int
    indexed_seq: int
    state: str
    index_in_use: str


class ItemRequest(Strict):
    id: str
    vector: list[float] | str = Field(description="numbers, or base64 of little-endian float32")
    metadata: dict[str, Any] = {}


class ItemResponse(BaseModel):
    id: str
    metadata: dict[str, Any]
    vector: list[float] | None = None


class ItemsResponse(BaseModel):
    items: list[ItemResponse]
    cursor: str | None


class ItemNote(Strict):
    """What a multipart upload says about one of its files."""

    id: str | None = None
    metadata: dict[str, Any] = {}


class SearchRequest(Strict):
    """Exactly one of id, image and vector."""

    id: str | None = None
    image: str | None = Field(None, description="a data URI or base64 of a picture")
    vector: list[float] | str | None = Field(None, description="numbers, or base64 of little-endian float32")
    box: tuple[float, float, float, float] | None = Field(None, description="x0, y0, x1, y1 on the image, in pixels")
    k: int = 10
    where: dict[str, Any] | None = None
    exact: bool = False
    score_threshold: float | None = None
    with_vector: bool = False


class MatchResponse(BaseModel):
    id: str
    score: float
    metadata: dict[str, Any]
    vector: list[float] | None = None


class SearchResponse(BaseModel):
    matches: list[MatchResponse]
