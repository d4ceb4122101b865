"""The bodies of /api/v1/attention."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from nnclr_hub.encoder.attention import MOST_TARGETS, OPACITY

from .words import FIRST_WRONG, Box, Name, Picture, Strict

Pair = tuple[float, float]


class AttentionQuestion(Strict):
    """All but the images; neither point nor box: the image as a whole."""

    point: Annotated[Pair, Field(description="x, y on the upright picture, in pixels")] | None = None
    box: Box | None = None
    similarity: Literal["dot", "cosine"] = "dot"
    head: int | None = Field(None, description="of the last block, from 0; null: the mean. Only of a [CLS] row")
    threshold: float | None = Field(
        None, description="share of the mass whose fewest patches are kept, above 0 to 1. Only of a [CLS] row"
    )
    max_side: int | None = Field(
        None, description="long side of the network's input at most, in pixels; null: 1024, or what the server allows"
    )
    opacity: float = Field(OPACITY, description="of the map over the picture, 0 to 1")
    with_png: bool = Field(False, description="in JSON, each map also as a picture")
    model: str | None = Field(None, description="an id of GET /v1/models; null: the default, or the collection's own")
    collection: Name | None = Field(None, description="whose encoder is to answer")


class AttentionRequest(AttentionQuestion):
    image: Picture
    target: Annotated[list[Picture], FIRST_WRONG] = Field(
        [], max_length=MOST_TARGETS, description="pictures in which to look for the point, the box or the whole"
    )


class AttentionEntry(BaseModel):
    """A map, where its cells lie, and how its values become colors."""

    kind: Literal["dot", "cosine", "class_token"]
    values: list[list[float]] = Field(description="raw, row by row")
    shape: tuple[int, int] = Field(description="rows and columns of the values")
    size: tuple[int, int] = Field(description="width and height of the upright original, in pixels")
    input_size: tuple[int, int] = Field(description="width and height that the network was given")
    first: Pair = Field(description="x, y of the first cell's center, in pixels of the input")
    stride: Pair = Field(description="x, y from one center to the next, in pixels of the input")
    limits: Pair = Field(description="the values that become 0 and 1, of all maps together")
    peak: Pair = Field(description="x, y of the largest cell's center, in pixels of the original")
    png: str | None = Field(None, description="base64 of the map over the picture, as large as the original")


class AttentionResponse(BaseModel):
    model: str
    maps: list[AttentionEntry] = Field(description="that of the picture, or one a target")
