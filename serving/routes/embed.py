"""POST /api/v1/embed: images in, vectors out, each image for itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from nnclr_hub.errors import DeadlineExceeded, ImageError, ImageTooLarge, ModelError, UnknownModel, UnsupportedImage

from ..departure import while_present
from ..edge.url_fetcher import Fetcher
from ..keys import READ
from ..payloads import encode_vector
from ..problems import answers, problem
from ..responses import BYTES, JSON, NPY, DType, VectorResponse, array_response, wanted
from ..schemas import EmbedRequest, EmbedResponse
from ..security.access import requires
from ..uploads import FORM, Picture, check_count, decode_each, fetch_each, kind_of, read_form, read_json, unsupported
from .described import binary, form_body
from .state import AppEngines, AppFetcher, AppSettings, name_of, served_engine_async

router = APIRouter(prefix="/api/v1", tags=["embed"])
_BODY = form_body({"files": "many", "model": "an id of GET /v1/models"}, required=["files"], json=EmbedRequest)
_BODY["requestBody"]["content"]["image/*"] = {"schema": {"type": "string", "format": "binary"}}


@router.post(
    "/embed",
    response_model=EmbedResponse,
    responses={
        **answers(
            ImageError,
            UnsupportedImage,
            ImageTooLarge,
            UnknownModel,
            ModelError,
            DeadlineExceeded,
            "unsupported_media_type",
        ),
        200: {"content": {NPY: binary("(N, D) as numpy's file"), BYTES: binary("N x D little-endian numbers")}},
    },
    openapi_extra=_BODY,
)
@requires(READ)
async def embed(
    request: Request,
    engines: AppEngines,
    settings: AppSettings,
    fetcher: AppFetcher,
    dtype: Annotated[DType, Query(description="of arrays")] = "float32",
    encoding_format: Annotated[Literal["float", "base64"], Query(description="of vectors in JSON")] = "float",
) -> Response:
    """Vectors of images: 200 if any could be read, else 422.

    By `Accept` as JSON, as numpy's file or as bare numbers; as an array only if every image could be read.
    """
    pictures, model = await _read(request, settings.max_images, fetcher)
    engine = await served_engine_async(engines, model)
    good = [picture.data for picture in pictures if isinstance(picture.data, bytes)]
    vectors = iter(await while_present(request, engine.embed_each_async(good)))
    results = [picture.data if isinstance(picture.data, ImageError) else next(vectors) for picture in pictures]
    broken = [
        {"index": i, "name": pictures[i].name, "code": result.code, "detail": str(result)}
        for i, result in enumerate(results)
        if isinstance(result, ImageError)
    ]
    kind = wanted(request, NPY, BYTES)
    if len(broken) == len(results) or (kind != JSON and broken):
        detail = f"{len(broken)} of {len(results)} images could not be read; the first: {broken[0]['detail']}"
        return problem(request.url.path, 422, "undecodable_image", detail, items=broken)
    if kind != JSON:
        return array_response(np.stack([one for one in results if isinstance(one, np.ndarray)]), kind, dtype)
    data: list[dict[str, Any]] = []
    for index, (picture, result) in enumerate(zip(pictures, results, strict=True)):
        entry: dict[str, Any] = {"index": index, "name": picture.name}
        if isinstance(result, ImageError):
            entry["error"] = {"code": result.code, "detail": str(result)}
        else:
            entry["embedding"] = encode_vector(result) if encoding_format == "base64" else result
        data.append(entry)
    return VectorResponse({"model": name_of(engines, engine), "dim": engine.embed_dim, "data": data})


async def _read(request: Request, limit: int, fetcher: Fetcher | None) -> tuple[list[Picture], str | None]:
    """The images, and the model that the request names."""
    kind = kind_of(request)
    if kind == FORM:
        form = await read_form(request, texts=("model",))
        return form.pictures("files", limit), form.texts.get("model")
    if kind == JSON:
        body = await read_json(request, EmbedRequest)
        check_count(len(body.images), limit)
        return await decode_each(body.images, "images", await fetch_each(body.images, fetcher)), body.model
    if kind.startswith("image/"):
        check_count(1, limit)
        return [Picture(await request.body())], None
    raise unsupported(request, FORM, JSON, "image/*")
