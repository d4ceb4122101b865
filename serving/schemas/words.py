"""Types that several bodies are made of, and how a refusal looks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(description="1 to 128 of A-Z a-z 0-9 . _ ~ -")]
Metadata = Annotated[dict[str, Any], Field(description="JSON values by key, at most 64 KiB")]
Where = Annotated[
    dict[str, Any],
    Field(
        description="a filter on metadata: must, should, must_not, each a list of conditions",
        examples=[{"must": [{"key": "label", "match": "cat"}]}],
    ),
]
Picture = Annotated[str, Field(description="a data URI or base64 of a picture")]
Vector = Annotated[list[float] | str, Field(description="numbers, or base64 of little-endian float32")]
Box = Annotated[
    tuple[float, float, float, float], Field(description="x0, y0, x1, y1 on the upright picture, in pixels")
]


class Strict(BaseModel):
    """Refuses fields that it does not know, so that a misspelt one is not silently ignored."""

    model_config = ConfigDict(extra="forbid")


class ItemError(BaseModel):
    """Why one part of a request failed."""

    code: str
    detail: str


class Problem(BaseModel):
    """RFC 9457, with a stable code for programs."""

    type: str
    title: str
    status: int
    detail: str
    instance: str = Field(description="the path, and behind # the request's id")
    code: str
    errors: list[dict[str, Any]] | None = Field(None, description="one entry a part of the request that failed")


class OpenAIErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(BaseModel):
    """The envelope that OpenAI's clients read."""

    error: OpenAIErrorDetail
