"""POST /api/v1/embed: images to vectors; an image that fails does not affect the others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from nnclr_hub.errors import ImageError, ModelError, UnknownModel
from nnclr_hub.workbench.payload import encode_vector

from ..answers import BYTES, JSON, NPY, NUMBER_BYTES, DType, PartsResponse, array_response, encoded, wanted
from ..keys import READ
from ..limits import while_connected
from ..models import Engines
from ..problems import UNREADABLE, answers, problem
from ..request_bodies import (
    FORM,
    UploadedImage,
    check_count,
    decode_each,
    in_thread_if_large,
    media_type,
    read_form,
    read_json,
    unsupported,
)
from ..security.access import requires
from ..url_fetcher import Fetcher
from .bodies import FIRST_WRONG, ImageText, ItemError, Strict, binary, form_body
from .dependencies import name_of, served_engine_async


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


router = APIRouter(prefix="/api/v1", tags=["embed"])
_BODY = form_body(
    {"files": "many", "model": "an id from GET /v1/models; default: the default model"},
    required=["files"],
    json=EmbedRequest,
)
_BODY["requestBody"]["content"]["image/*"] = {"schema": {"type": "string", "format": "binary"}}


@router.post(
    "/embed",
    response_model=EmbedResponse,
    responses={
        **answers(*UNREADABLE, UnknownModel, ModelError, "unsupported_media_type"),
        200: {
            "content": {
                NPY: binary("NumPy file of shape (N, D)"),
                BYTES: binary("N x D little-endian numbers, row by row"),
            }
        },
    },
    openapi_extra=_BODY,
)
@requires(READ)
async def embed(
    request: Request,
    dtype: Annotated[DType, Query(description="type of the numbers in a binary response")] = "float32",
    encoding_format: Annotated[
        Literal["float", "base64"], Query(description="encoding of the vectors in JSON")
    ] = "float",
) -> Response:
    """Embed images: 200 if at least one could be read, else 422.

    `Accept` selects JSON, a NumPy file or raw numbers. The binary formats are sent only if every image could be read.
    """
    state = request.app.state  # read here, because each dependency costs as much time as parsing the request
    engines: Engines = state.engines
    images, model = await _read(request, state.settings.max_images, state.fetcher)
    engine = await served_engine_async(engines, model)
    good = [image.data for image in images if isinstance(image.data, bytes)]
    vectors = iter(await while_connected(request, engine.embed_each_async(good)))
    results = [image.data if isinstance(image.data, ImageError) else next(vectors) for image in images]
    broken = [
        {"index": i, "name": images[i].name, "code": result.code, "detail": str(result)}
        for i, result in enumerate(results)
        if isinstance(result, ImageError)
    ]
    kind = wanted(request, NPY, BYTES)
    if len(broken) == len(results) or (kind != JSON and broken):
        detail = f"{len(broken)} of {len(results)} images could not be read; first error: {broken[0]['detail']}"
        return problem(request.url.path, 422, "undecodable_image", detail, items=broken)

    def response() -> Response:
        if kind != JSON:
            return array_response(np.stack([one for one in results if isinstance(one, np.ndarray)]), kind, dtype)
        data: list[dict[str, Any]] = []
        for index, (image, result) in enumerate(zip(images, results, strict=True)):
            entry: dict[str, Any] = {"index": index, "name": image.name}
            if isinstance(result, ImageError):
                entry["error"] = {"code": result.code, "detail": str(result)}
            else:
                entry["embedding"] = encode_vector(result) if encoding_format == "base64" else result
            data.append(entry)
        head = encoded({"model": name_of(engines, engine), "dim": engine.embed_dim})[:-1]
        return PartsResponse([head, b',"data":', *state.answers.open(request.state.budget, 0).list(data), b"}"])

    return await in_thread_if_large(len(good) * engine.embed_dim * NUMBER_BYTES, response)


async def _read(request: Request, limit: int, fetcher: Fetcher | None) -> tuple[list[UploadedImage], str | None]:
    """Return the images, and the model that the request names."""
    kind = media_type(request)
    if kind == FORM:
        form = await read_form(request, texts=("model",))
        return form.images("files", limit), form.texts.get("model")
    if kind == JSON:
        body = await read_json(request, EmbedRequest)
        return await decode_each(body.images, "images", limit, fetcher), body.model
    if kind.startswith("image/"):
        check_count(1, limit)
        return [UploadedImage(await request.body())], None
    raise unsupported(request, FORM, JSON, "image/*")
