"""Types that several bodies are made of, and how a refusal looks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field

from nnclr_hub.workbench.privacy import public_key, public_where


class _FailFast(FailFast):
    """One that may stand in a union."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


# in every list that a client sends: of a million wrong members the first is enough
FIRST_WRONG = _FailFast()
Name = Annotated[str, Field(description="1 to 128 of A-Z a-z 0-9 . _ ~ -")]
Metadata = Annotated[dict[str, Any], Field(description="JSON values by key, at most 64 KiB")]
Where = Annotated[
    dict[str, Any],
    Field(
        description="a filter on metadata: must, should, must_not, each a list of conditions",
        examples=[{"must": [{"key": "label", "match": "cat"}]}],
    ),
    AfterValidator(public_where),
]
MetadataKey = Annotated[str, AfterValidator(public_key)]
Picture = Annotated[str, Field(description="a data URI or base64 of an image")]
Vector = Annotated[
    Annotated[list[float], FIRST_WRONG] | str, Field(description="numbers, or base64 of little-endian float32")
]
Box = Annotated[
    tuple[float, float, float, float], Field(description="x0, y0, x1, y1 on the upright picture, in pixels")
]


class Strict(BaseModel):
    """Refuses fields that it does not know, so that no misspelled one is overlooked, and takes no type for another."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


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
