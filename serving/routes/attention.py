"""POST /api/v1/attention: what an encoder looks at, as numbers or as an image."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import numpy as np
from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import BaseModel, Field

from nnclr_hub.encoder.attention import (
    MAX_TARGETS,
    OPACITY,
    AttentionMap,
    AttentionSettings,
    Point,
    check_opacity,
)
from nnclr_hub.encoder.attention import Box as ImageBox
from nnclr_hub.errors import InvalidRequest, RequestTooLarge
from nnclr_hub.images.decode import MAX_PIXELS

from ..access import READ
from ..answers import JSON, NPY, PNG, PartsResponse, array_response, encoded, wanted
from ..engine import Engine
from ..problems import UNREADABLE
from ..request_bodies import check_count, decode_text, fetch_each, in_thread_if_large, is_form, read_form, read_json
from ..telemetry import measured
from .router import Here, Parts, Router, name_of, served_source
from .schemas import FIRST_WRONG, Box, CollectionName, ImageText, Integer, Strict, binary, form_body

Pair = tuple[float, float]


class AttentionOptions(Strict):
    """Everything but the images. Without point and box, the map is of the whole image."""

    point: Annotated[Pair, Field(description="x, y on the upright image, in pixels")] | None = None
    box: Box | None = None
    similarity: Literal["dot", "cosine"] = "dot"
    head: Integer | None = Field(
        None, description="head of the last block, from 0; null: the mean of all. Only for a [CLS] attention map"
    )
    threshold: float | None = Field(
        None,
        description="keep the fewest patches that hold this share of the mass, above 0 to 1. Only for a [CLS] "
        "attention map",
    )
    max_side: Integer | None = Field(
        None, description="longest side of the network's input in pixels; null: 1024, or the limit of the server"
    )
    center_prior: bool | None = Field(
        None,
        description="true: the PNG shows the map times a Gaussian in the center and, without max_side, the network "
        "sees the image with a short side of at most 256 pixels; only for the whole image, without targets, head and "
        "threshold. false: the plain map of the image in its own size. null: true where that is possible",
    )
    opacity: float = Field(OPACITY, description="opacity of the map over the image, 0 to 1")
    with_png: bool = Field(False, description="add each map as a PNG to the JSON response")
    model: str | None = Field(
        None, description="an id from GET /v1/models; null: the default model, or the model of the collection"
    )
    collection: CollectionName | None = Field(None, description="use the encoder of this collection")


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
    peak: Pair = Field(
        description="x, y of the center of the largest of the values, in pixels of the original, without the prior"
    )
    center_prior: bool = Field(description="whether the PNG shows the map times a Gaussian in the center")
    png: str | None = Field(None, description="base64 PNG of the map over the image, in the size of the original")


class AttentionResponse(BaseModel):
    model: str
    heads: int | None = Field(None, description="number of heads that `head` selects from; null for networks without")
    maps: list[AttentionEntry] = Field(description="one map of the image, or one per target")


router = Router(prefix="/api/v1", tags=["attention"])
AT_ONCE = 3  # one is decoded, one is on the device, one is rendered; each holds all its images in memory
MAX_RENDERED_PIXELS = MAX_PIXELS  # in all PNGs of one JSON response
_ERRORS = "unknown_model model_error collection_not_found fingerprint_mismatch missing_dependency"
_FIELDS = {"image": "one", "target": "many", "query": "JSON with the other fields"}


@router.on(
    *("POST", "/attention", READ, f"{UNREADABLE} {_ERRORS}"),
    content={
        NPY: binary("NumPy file of shape (h, w), or (n, h, w) for n targets whose maps have one shape"),
        PNG: binary("The map over the image, in the size of the original. At most one target."),
    },
    response_model=AttentionResponse,
    openapi_extra=form_body(_FIELDS, ["image"], AttentionRequest),
)
async def attention(request: Request, here: Here) -> Response:
    """Compute what an encoder looks at in an image.

    The map is of the whole image, of a point or of a box. With targets, it shows where up to 6 other images contain
    what the point, the box or the image shows. `Accept` selects JSON, a NumPy file of the raw values, or a PNG of one
    map over its image.
    """
    options, image, targets = await _read(request, here)
    kind = wanted(request, NPY, PNG)
    _check_format(options, kind, len(targets))
    settings = _settings_of(options, here.settings.attention_side)
    model = await run_in_threadpool(_model, here, options)

    def render(maps: list[AttentionMap]) -> Response:
        with measured("render"):
            if kind == PNG:
                return Response(maps[0].png(options.opacity), media_type=PNG, headers={"Vary": "Accept"})
            if kind == NPY:
                return array_response(_stacked(maps) if targets else maps[0].values, NPY)
            _check_pixels(maps, options)
            content = {
                "model": name_of(here.engines, model),
                "heads": model.encoder.heads,
                "maps": [_entry(m, options) for m in maps],
            }
            return PartsResponse([encoded(content)], {"Vary": "Accept"})

    async with here.attention_slots:
        maps = await model.attention_maps_async(settings, image, targets)
        return await run_in_threadpool(render, maps)  # rendering a large image takes seconds


async def _read(request: Request, here: Parts) -> tuple[AttentionOptions, bytes, list[bytes]]:
    """Return the options, the image, and the targets; in a multipart request the images are file parts."""
    limit = here.settings.max_images
    if is_form(request):
        form = await read_form(request, files=("image", "target"), texts=("query",))
        images = form.images("image", 1)
        if any(name == "target" for name, _ in form.files):
            images += form.images("target", limit - 1)
        options = await form.query(AttentionOptions)
        image, *targets = (cast(bytes, one.data) for one in images)  # the data of a file part is always bytes
        return options, image, targets
    body = await read_json(request, AttentionRequest)
    texts = [body.image, *body.target]
    check_count(len(texts), limit)
    fetched = await fetch_each(texts, here.fetcher)
    names = ["image", *(f"target[{i}]" for i in range(len(body.target)))]

    def decode() -> list[bytes]:
        return [decode_text(text, name, fetched) for text, name in zip(texts, names, strict=True)]

    image, *targets = await in_thread_if_large(sum(map(len, texts)), decode)
    return body, image, targets


def _model(here: Parts, options: AttentionOptions) -> Engine:
    """Return the model that is named, or that of a collection.

    Raises:
        FingerprintMismatch: the model is not the collection's.
    """
    if options.collection is None:
        return here.engines.get(served_source(here.engines, options.model))
    source = None if options.model is None else served_source(here.engines, options.model)
    return cast(Engine, here.workbench.embedder(source, options.collection))


def _settings_of(options: AttentionOptions, max_side: int) -> AttentionSettings:
    """Return the settings for the encoder.

    Raises:
        InvalidRequest: both a point and a box, or a side above `max_side`.
    """
    if options.point is not None and options.box is not None:
        raise InvalidRequest("point and box are both given; remove one of them.")
    query = None if options.point is None else Point(*options.point)
    if options.box is not None:
        query = ImageBox(*options.box)
    side = options.max_side
    if side is not None and side > max_side:
        raise InvalidRequest(f"max_side must be at most {max_side} on this server, got {side}.")
    return AttentionSettings(query, options.similarity, options.head, options.threshold, side, options.center_prior)


def _check_format(options: AttentionOptions, kind: str, targets: int) -> None:
    """Raise InvalidRequest, before anything is computed, for what the format of the response cannot hold."""
    check_opacity(options.opacity)
    if kind == PNG and targets > 1:
        raise InvalidRequest(
            f"A PNG response holds one map, got {targets} targets; send one, or use JSON and with_png."
        )
    if kind != JSON and options.with_png:
        raise InvalidRequest(f"with_png needs a JSON response, got Accept: {kind}; send Accept: application/json.")


def _check_pixels(maps: Sequence[AttentionMap], options: AttentionOptions) -> None:
    """Raise RequestTooLarge if the PNGs in a JSON response would have too many pixels."""
    pixels = sum(width * height for width, height in (one.size for one in maps))
    if options.with_png and pixels > MAX_RENDERED_PIXELS:
        raise RequestTooLarge(
            f"with_png would render {pixels / 1e6:.0f} megapixels, above the limit of {MAX_RENDERED_PIXELS / 1e6:g}; "
            "request image/png, one target at a time."
        )


def _stacked(maps: Sequence[AttentionMap]) -> np.ndarray:
    """Stack the maps to (n, h, w) float32."""
    shapes = dict.fromkeys(one.values.shape for one in maps)
    if len(shapes) > 1:
        listed = ", ".join(f"{height} x {width}" for height, width in shapes)
        raise InvalidRequest(f"The maps have different shapes ({listed}) and do not fit into one array; use JSON.")
    return np.stack([one.values for one in maps])


def _entry(one: AttentionMap, options: AttentionOptions) -> dict[str, Any]:
    # the array is serialized as float32: a list of Python floats would have 17 digits
    entry = {**one.describe(), "values": one.values, "shape": one.values.shape}
    if options.with_png:
        entry["png"] = base64.b64encode(one.png(options.opacity)).decode()
    return entry
