"""The bodies of /api/v1/attention."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from nnclr_hub.encoder.attention import MAX_TARGETS, OPACITY

from .fields import FIRST_WRONG, Box, ImageText, Name, Strict

Pair = tuple[float, float]


class AttentionOptions(Strict):
    """Everything but the images. Without point and box, the map is of the whole image."""

    point: Annotated[Pair, Field(description="x, y on the upright image, in pixels")] | None = None
    box: Box | None = None
    similarity: Literal["dot", "cosine"] = "dot"
    head: int | None = Field(
        None, description="head of the last block, from 0; null: the mean of all. Only for a [CLS] attention map"
    )
    threshold: float | None = Field(
        None,
        description="keep the fewest patches that hold this share of the mass, above 0 to 1. Only for a [CLS] "
        "attention map",
    )
    max_side: int | None = Field(
        None, description="longest side of the network's input in pixels; null: 1024, or the limit of the server"
    )
    opacity: float = Field(OPACITY, description="opacity of the map over the image, 0 to 1")
    with_png: bool = Field(False, description="add each map as a PNG to the JSON response")
    model: str | None = Field(
        None, description="an id from GET /v1/models; null: the default model, or the model of the collection"
    )
    collection: Name | None = Field(None, description="use the encoder of this collection")


class AttentionRequest(AttentionOptions):
    image: ImageText
    target: Annotated[list[ImageText], FIRST_WRONG] = Field(
        [], max_length=MAX_TARGETS, description="images in which to look for the point, the box or the whole image"
    )


class AttentionEntry(BaseModel):
    """One map, the positions of its cells, and the limits of its color scale."""

    kind: Literal["dot", "cosine", "class_token"]
    values: list[list[float]] = Field(description="raw values, row by row")
    shape: tuple[int, int] = Field(description="rows and columns of the values")
    size: tuple[int, int] = Field(description="width and height of the upright original, in pixels")
    input_size: tuple[int, int] = Field(description="width and height of the network's input, in pixels")
    first: Pair = Field(description="x, y of the center of the first cell, in pixels of the input")
    stride: Pair = Field(description="x, y from one cell center to the next, in pixels of the input")
    limits: Pair = Field(description="values that are mapped to 0 and 1, shared by all maps of the response")
    peak: Pair = Field(description="x, y of the center of the largest value, in pixels of the original")
    png: str | None = Field(None, description="base64 PNG of the map over the image, in the size of the original")


class AttentionResponse(BaseModel):
    model: str
    maps: list[AttentionEntry] = Field(description="one map of the image, or one per target")
